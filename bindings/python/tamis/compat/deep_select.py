"""DeepSelect's interface on tamis: ``from tamis.compat import deep_select``.

Written against DeepSelect 1.0.0 (deepseek-ai/DeepSelect, deep_select/interface.py of September 2026).

What differs from it:

- Any row stride, width, address and k; float16, too; values sorted for every dtype; also on the CPU.
- Ties are fixed (the lower position wins), so the set of indices is reproducible. Without `sorted` and `sorted_index`
  indices come in ascending position.
- A NaN ranks below everything and is selected only where nothing else is left. The process is never aborted and no
  index is replaced by 0x3F3F3F3F, whatever `abort_when_nan_found` says.
- New outputs are contiguous.
"""

from __future__ import annotations

from typing import Any

import torch

import tamis
from tamis.compat._errors import renamed

__all__ = ["get_stride_requirement", "topk"]


def get_stride_requirement() -> tuple[int, int]:
    """Bytes of which row strides of input and output must be multiples: one element, so that callers who divide by an
    element's size get at least 1.

    Examples
    --------
    >>> from tamis.compat import deep_select
    >>> deep_select.get_stride_requirement()
    (8, 8)
    """
    return 8, 8


def topk(
    input: torch.Tensor,
    topk: int,
    sorted: bool = False,
    begin: torch.Tensor | None = None,
    end: torch.Tensor | None = None,
    indices_type: torch.dtype = torch.int64,
    sorted_index: bool = False,
    hint: torch.Tensor | None = None,
    output_idx: torch.Tensor | None = None,
    output_idx_offset: torch.Tensor | None = None,
    idx_oob_fill_value: int = 2147483647,
    value_oob_fill_value: float = float("-inf"),
    return_value: bool = True,
    abort_when_nan_found: bool = True,
) -> tuple[torch.Tensor | None, torch.Tensor]:
    """The k largest values of each row and their positions.

    Parameters
    ----------
    input : Tensor [b, vocab_size], float32, bfloat16 or float16
    topk : int
    sorted : bool
        Largest value first.
    begin, hint : None
        DeepSelect refuses them, and so does this.
    end : Tensor [b], int32, optional
        One past the last position of each row; default vocab_size.
    indices_type : torch.int32 or torch.int64
    sorted_index : bool
        Ascending positions.
    output_idx : Tensor [b, topk], indices_type, optional
    output_idx_offset : Tensor [b], int32, optional
        Added to each row's indices.
    idx_oob_fill_value, value_oob_fill_value
        What stands behind the elements of a row shorter than topk.
    return_value : bool
        False leaves the values out.
    abort_when_nan_found : bool
        Accepted; see the module's documentation.

    Returns
    -------
    values : Tensor [b, topk], dtype of input, or None
    indices : Tensor [b, topk], indices_type

    Raises
    ------
    TypeError
        What must be a tensor is none, or has a wrong dtype.
    ValueError
        `sorted` with `sorted_index` or without `return_value`; a wrong shape; an index type that is neither.
    NotImplementedError
        `begin` or `hint`.

    Examples
    --------
    >>> import torch
    >>> from tamis.compat import deep_select
    >>> values, indices = deep_select.topk(torch.tensor([[1.0, 3.0, 2.0]]), 2, sorted=True)
    >>> values, indices
    (tensor([[3., 2.]]), tensor([[1, 2]]))
    """
    if sorted and sorted_index:
        raise ValueError("topk: sorted and sorted_index are both True, must be at most one of them")
    if sorted and not return_value:
        raise ValueError("topk: sorted is True and return_value False, must be True where values are sorted")
    for name, tensor in (("input", input), ("end", end), ("output_idx", output_idx),
                         ("output_idx_offset", output_idx_offset)):
        if not isinstance(tensor, torch.Tensor) and (tensor is not None or name == "input"):
            raise TypeError(f"topk: {name} is {type(tensor).__name__}, must be a torch.Tensor")
    for name, value in (("begin", begin), ("hint", hint)):
        if value is not None:
            raise NotImplementedError(f"topk: {name} is given, must be None: DeepSelect does not say what it means")
    if indices_type not in (torch.int32, torch.int64):
        raise ValueError(f"topk: indices_type is {indices_type}, must be torch.int32 or torch.int64")
    if output_idx is not None and output_idx.dtype != indices_type:
        raise ValueError(f"topk: output_idx is {output_idx.dtype}, must be indices_type = {indices_type}")

    try:
        result = tamis.topk(
            input,
            topk,
            row_ends=end,
            order="by_value" if sorted else "position",
            values=bool(return_value),
            index_dtype="int64" if indices_type == torch.int64 else "int32",
            ragged_offsets=output_idx_offset,
            out=output_idx,
        )
    except (TypeError, ValueError) as error:
        raise renamed(error, scores="input", k="topk", row_ends="end", ragged_offsets="output_idx_offset", out="output_idx") from None
    values, indices = (result[1], result[0]) if return_value else (None, result)
    _fill(values, indices, input.shape[1], end, idx_oob_fill_value, value_oob_fill_value)
    return values, indices


def _fill(
    values: torch.Tensor | None,
    indices: torch.Tensor,
    width: int,
    end: torch.Tensor | None,
    index_fill: int,
    value_fill: float,
) -> None:
    """Replace -1 and NaN behind the elements of short rows. Nothing to do for full rows, where most calls end."""
    topk = indices.shape[1]
    if end is None:
        if width < topk:
            indices[:, width:] = index_fill
            if values is not None:
                values[:, width:] = value_fill
        return
    if values is None and index_fill == -1:
        return
    lengths = end.clamp(0, width).unsqueeze(1)
    outside = torch.arange(topk, dtype=torch.int32, device=end.device) >= lengths
    indices.masked_fill_(outside, index_fill)
    if values is not None:
        values.masked_fill_(outside, value_fill)
