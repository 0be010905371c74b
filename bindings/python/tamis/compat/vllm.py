"""vLLM's top-k entry points on tamis.

Written against vLLM 0.30, its main branch of September 2026 (vllm/_custom_ops.py, csrc/topk.cu, and
vllm/model_executor/layers/indexer_topk.py, documented at docs.vllm.ai/en/latest as of 2026-09-23). Not run with vLLM
itself: its entry points are stood for by modules of the tests. install() puts
these functions behind vLLM's own; with TAMIS_VLLM=1 in the environment vLLM does so itself, through its plugins.

Results differ from vLLM's kernels where those leave them open: the set is exact, of equal scores the lower position
wins, and indices ascend. Lengths are clamped on the device. Nothing is limited to some k, width or stride.
"""

from __future__ import annotations

import importlib
import numbers
import os
import sys
from typing import TYPE_CHECKING, Any

import tamis
from tamis.compat._errors import renamed

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "SparseIndexerTopk",
    "cooperative_topk",
    "get_c128_boundary",
    "install",
    "persistent_topk",
    "top_k_per_row_decode",
    "top_k_per_row_prefill",
]


def _row_ends(seq_lens: Tensor, next_n: int, num_rows: int, name: str = "seq_lens") -> Tensor:
    """One end a row, on the device of seq_lens: seq_len - next_n + 1 + i for row i of a request, or as given."""
    if next_n == 1 and seq_lens.shape == (num_rows,):
        return seq_lens  # most calls; every operation on a tensor costs the host more than a microsecond
    requests = num_rows // max(next_n, 1)
    by_row = seq_lens.dim() == 2 and seq_lens.shape[1] == next_n
    if next_n < 1 or requests * next_n != num_rows or seq_lens.numel() < (num_rows if by_row else requests):
        raise ValueError(
            f"topk: {name} has shape {list(seq_lens.shape)}, must have num_rows / next_n = {num_rows} / {next_n} "
            f"elements or rows of next_n, or more of them"
        )
    if by_row:
        return (seq_lens if seq_lens.shape[0] == requests else seq_lens[:requests]).reshape(-1)
    of_requests = seq_lens.reshape(-1)[:requests]
    if next_n == 1:
        return of_requests
    import torch

    # Made anew: a tensor kept from a call would be that of its graph capture, or a fake one of its compiler.
    drafts = torch.arange(1 - next_n, 1, dtype=torch.int32, device=seq_lens.device)
    # Without the clamp the lowest lengths would wrap. What is negative after the sum is clamped by topk().
    return (of_requests.unsqueeze(1).clamp(min=0) + drafts).reshape(-1)


def _rows_of(logits: Tensor, num_rows: int, stride0: int, stride1: int) -> Tensor:
    if logits.stride() == (stride0, stride1):
        return logits if logits.shape[0] == num_rows else _first_rows("logits", logits, num_rows)
    return logits.as_strided((num_rows, logits.shape[1]), (stride0, stride1))


def _first_rows(name: str, tensor: Tensor, num_rows: int) -> Tensor:
    if not 0 <= num_rows <= tensor.shape[0]:
        raise ValueError(f"topk: {name} has {tensor.shape[0]} rows, must have at least num_rows = {num_rows}")
    return tensor[:num_rows]


def _head(name: str, indices: Tensor, num_rows: int, topk: int) -> Tensor:
    if indices.shape == (num_rows, topk):
        return indices
    if indices.dim() == 2 and not 0 <= topk <= indices.shape[1]:
        raise ValueError(f"topk: {name} has {indices.shape[1]} columns, must have at least topk = {topk}")
    return _first_rows(name, indices, num_rows)[:, :topk]


def top_k_per_row_decode(
    logits: Tensor, next_n: int, seq_lens: Tensor, indices: Tensor, num_rows: int, stride0: int, stride1: int, topk: int
) -> None:
    """Write, for each row, the positions of its topk largest logits; -1 behind those of a short row.

    Parameters
    ----------
    logits : Tensor [num_rows or more, width], float32, bfloat16 or float16
    next_n : int
        Rows a request.
    seq_lens : Tensor [requests or more] or [requests or more, next_n], int32
        Row i of request r ends at seq_lens[r] - next_n + 1 + i, or at seq_lens[r, i].
    indices : Tensor [num_rows or more, topk or more], int32
        Written.
    num_rows, stride0, stride1, topk : int
        Rows that count; the strides of `logits`.

    Raises
    ------
    TypeError, ValueError
        As of tamis.topk.

    Examples
    --------
    >>> import torch
    >>> from tamis.compat import vllm
    >>> logits, indices = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0]]), torch.empty(2, 2, dtype=torch.int32)
    >>> vllm.top_k_per_row_decode(logits, 2, torch.tensor([3], dtype=torch.int32), indices, 2, 3, 1, 2)
    >>> indices
    tensor([[0, 1],
            [0, 2]], dtype=torch.int32)
    """
    scores = _rows_of(logits, num_rows, stride0, stride1)
    ends = _row_ends(seq_lens, next_n, num_rows)
    try:
        tamis.topk(scores, topk, row_ends=ends, out=_head("indices", indices, num_rows, topk))
    except (TypeError, ValueError) as error:
        raise renamed(error, scores="logits", k="topk", row_ends="seq_lens", out="indices") from None


def top_k_per_row_prefill(
    logits: Tensor,
    row_starts: Tensor,
    row_ends: Tensor,
    indices: Tensor,
    num_rows: int,
    stride0: int,
    stride1: int,
    topk: int,
) -> None:
    """Write, for each row, the positions of its topk largest logits within [row_start, row_end), relative to row_start.

    Parameters
    ----------
    logits : Tensor [num_rows or more, width], float32, bfloat16 or float16
    row_starts, row_ends : Tensor [num_rows or more], int32
    indices : Tensor [num_rows or more, topk or more], int32
        Written; -1 behind the positions of a short row.
    num_rows, stride0, stride1, topk : int
        Rows that count; the strides of `logits`.

    Raises
    ------
    TypeError, ValueError
        As of tamis.topk.

    Examples
    --------
    >>> import torch
    >>> from tamis.compat import vllm
    >>> logits, indices = torch.tensor([[9.0, 1.0, 2.0]]), torch.empty(1, 2, dtype=torch.int32)
    >>> starts, ends = torch.tensor([1], dtype=torch.int32), torch.tensor([3], dtype=torch.int32)
    >>> vllm.top_k_per_row_prefill(logits, starts, ends, indices, 1, 3, 1, 2)
    >>> indices
    tensor([[0, 1]], dtype=torch.int32)
    """
    try:
        tamis.topk(
            _rows_of(logits, num_rows, stride0, stride1),
            topk,
            row_starts=_first_rows("row_starts", row_starts, num_rows),
            row_ends=_first_rows("row_ends", row_ends, num_rows),
            out=_head("indices", indices, num_rows, topk),
        )
    except (TypeError, ValueError) as error:
        raise renamed(error, scores="logits", k="topk", out="indices") from None


def persistent_topk(
    logits: Tensor, lengths: Tensor, output: Tensor, workspace: Tensor, k: int, max_seq_len: int
) -> None:
    """Write, for each row, the positions of its k largest logits; -1 behind those of a short row.

    Parameters
    ----------
    logits : Tensor [rows, width], float32, bfloat16 or float16
    lengths : Tensor [rows], [requests, next_n] or [requests], int32
        With fewer elements than rows, rows / elements of them are drafts of one request.
    output : Tensor [rows, k], int32
        Written.
    workspace : Tensor
        Not used: scratch memory comes from PyTorch's allocator.
    k : int
    max_seq_len : int
        Not used: lengths are clamped to the width.

    Raises
    ------
    TypeError, ValueError
        As of tamis.topk.

    Examples
    --------
    >>> import torch
    >>> from tamis.compat import vllm
    >>> output = torch.empty(1, 2, dtype=torch.int32)
    >>> vllm.persistent_topk(
    ...     torch.tensor([[9.0, 1.0, 2.0]]), torch.tensor([3], dtype=torch.int32), output, torch.empty(0), 2, 3
    ... )
    >>> output
    tensor([[0, 2]], dtype=torch.int32)
    """
    rows = logits.shape[0]
    next_n = lengths.shape[1] if lengths.dim() == 2 and lengths.shape[1] > 1 else rows // max(1, lengths.numel())
    ends = _row_ends(lengths, next_n, rows, "lengths")
    try:
        tamis.topk(logits, k, row_ends=ends, out=_head("output", output, rows, k))
    except (TypeError, ValueError) as error:
        raise renamed(error, scores="logits", row_ends="lengths", out="output") from None


def cooperative_topk(
    logits: Tensor, lengths: Tensor, output: Tensor, workspace: Tensor, k: int, max_seq_len: int
) -> None:
    """The same as persistent_topk(): which kernel serves a call is the library's choice.

    Parameters
    ----------
    logits, lengths, output, workspace, k, max_seq_len
        As of persistent_topk().

    Raises
    ------
    TypeError, ValueError
        As of tamis.topk.

    Examples
    --------
    >>> import torch
    >>> from tamis.compat import vllm
    >>> output = torch.empty(1, 1, dtype=torch.int32)
    >>> vllm.cooperative_topk(
    ...     torch.tensor([[1.0, 9.0]]), torch.tensor([2], dtype=torch.int32), output, torch.empty(0), 1, 2
    ... )
    >>> output
    tensor([[1]], dtype=torch.int32)
    """
    persistent_topk(logits, lengths, output, workspace, k, max_seq_len)


def get_c128_boundary(num_computed_tokens: Any, query_start_loc: Any) -> bool | None:
    """Whether a step completes a 128-token group of any request.

    Parameters
    ----------
    num_computed_tokens : sequence of int, array on the CPU, a pair (lowest, highest) of these, or None
        Tokens of each request that are computed before the step, exactly or as bounds. None: not known.
    query_start_loc : sequence of int, or array on the CPU, [requests + 1]
        Request r has query_start_loc[r + 1] - query_start_loc[r] tokens in the step.

    Returns
    -------
    True, False or None
        None where it is not known: launch then. Also None while PyTorch records a CUDA graph.

    Raises
    ------
    ValueError
        The sizes differ, or a number is negative.

    Examples
    --------
    >>> from tamis.compat import vllm
    >>> vllm.get_c128_boundary([126, 5], [0, 1, 2]), vllm.get_c128_boundary([127, 5], [0, 1, 2])
    (False, True)
    >>> vllm.get_c128_boundary(([124], [128]), [0, 1]), vllm.get_c128_boundary(None, [0, 1])
    (None, None)
    """
    if num_computed_tokens is None:
        return None
    starts, start_hi = num_computed_tokens, None
    if isinstance(num_computed_tokens, tuple) and len(num_computed_tokens) == 2:
        if not isinstance(num_computed_tokens[0], numbers.Integral):
            starts, start_hi = num_computed_tokens
            if starts is None or start_hi is None:
                return None
    bounds = query_start_loc.tolist() if hasattr(query_start_loc, "tolist") else list(query_start_loc)
    query_lens = [end - begin for begin, end in zip(bounds, bounds[1:], strict=False)]
    plan = tamis.compress_plan(starts, query_lens, 128, start_hi=start_hi)
    return {tamis.CompressPlan.NONE: False, tamis.CompressPlan.SOME: True}.get(plan)


class SparseIndexerTopk:
    """The top-k stage of vLLM's sparse indexer, with a choice of who serves it.

    Parameters
    ----------
    backend : str, optional
        "auto" (the default) and "tamis": this library. So are vLLM's own names "cooperative", "persistent", "per_row"
        and "flashinfer_gvr2", which stand for kernels that it replaces. "torch": torch.topk on masked logits.
        "flashinfer", "deep_select": those libraries, imported when they are used.

    Raises
    ------
    ValueError
        Another name.

    Examples
    --------
    >>> import torch
    >>> from tamis.compat import vllm
    >>> indices = torch.empty(2, 2, dtype=torch.int32)
    >>> logits, seq_lens = torch.tensor([[3.0, 1.0, 2.0], [3.0, 1.0, 2.0]]), torch.tensor([[3]], dtype=torch.int32)
    >>> vllm.SparseIndexerTopk()(logits, seq_lens, 2, indices, 2, 3)
    >>> indices
    tensor([[0, 1],
            [0, 2]], dtype=torch.int32)
    """

    OURS = ("auto", "tamis", "cooperative", "persistent", "per_row", "flashinfer_gvr2")
    OTHERS = ("torch", "flashinfer", "deep_select")

    def __init__(self, backend: str | None = None) -> None:
        self.backend = "auto" if backend is None else backend
        if self.backend not in self.OURS + self.OTHERS:
            names = ", ".join(repr(name) for name in self.OURS + self.OTHERS)
            raise ValueError(f"SparseIndexerTopk: backend is {self.backend!r}, must be one of {names}")

    def resolve_backend(self, logits: Tensor, topk_tokens: int, num_rows: int) -> str:
        """Who serves such a call: "tamis", "torch", "flashinfer" or "deep_select".

        Raises
        ------
        RuntimeError
            The backend cannot; every unmet constraint is listed.
        """
        unmet = []
        if logits.dim() != 2 or logits.stride(1) != 1:
            unmet.append(f"logits must have two dimensions, the last contiguous, has strides {logits.stride()}")
        if self.backend in ("flashinfer", "deep_select"):
            unmet += getattr(self, f"_{self.backend}_unmet")(logits, topk_tokens)
        else:
            if str(logits.dtype) not in ("torch.float32", "torch.bfloat16", "torch.float16"):
                unmet.append(f"logits must be float32, bfloat16 or float16, is {logits.dtype}")
            if self.backend == "torch" and topk_tokens > logits.shape[-1]:
                unmet.append(f"topk_tokens must be at most the width {logits.shape[-1]}, is {topk_tokens}")
        if unmet:
            raise RuntimeError(f"SparseIndexerTopk: backend {self.backend!r} was asked for, but: " + "; ".join(unmet))
        return "tamis" if self.backend in self.OURS else self.backend

    @staticmethod
    def _flashinfer_unmet(logits: Tensor, topk_tokens: int) -> list[str]:
        unmet = []
        if isinstance(flashinfer := _importable("flashinfer"), str):
            unmet.append(flashinfer)
        if not logits.is_cuda:
            unmet.append(f"logits must be on CUDA, is on {logits.device}")
        if str(logits.dtype) != "torch.float32":
            unmet.append(f"logits must be float32, is {logits.dtype}")
        return unmet

    @staticmethod
    def _deep_select_unmet(logits: Tensor, topk_tokens: int) -> list[str]:
        unmet = []
        bytes_a_row = logits.stride(0) * logits.element_size() if logits.dim() == 2 else 0
        if isinstance(deep_select := _importable("deep_select"), str):
            unmet.append(deep_select)
        elif bytes_a_row % (required := deep_select.get_stride_requirement()[0]):
            unmet.append(f"the row stride of logits must be a multiple of {required} bytes, is {bytes_a_row}")
        if not logits.is_cuda:
            unmet.append(f"logits must be on CUDA, is on {logits.device}")
        if str(logits.dtype) not in ("torch.float32", "torch.bfloat16"):
            unmet.append(f"logits must be float32 or bfloat16, is {logits.dtype}")
        if topk_tokens > 4096:
            unmet.append(f"topk_tokens must be at most 4096, is {topk_tokens}")
        if logits.shape[-1] >= 1 << 23:
            unmet.append(f"the width must be below 8388608, is {logits.shape[-1]}")
        return unmet

    def forward(
        self,
        logits: Tensor,
        seq_lens: Tensor,
        next_n: int,
        topk_indices: Tensor,
        topk_tokens: int,
        max_seq_len: int,
    ) -> None:
        """Write the positions of the topk_tokens largest logits of each row; -1 behind those of a short row.

        Parameters
        ----------
        logits : Tensor [rows, width]
        seq_lens : Tensor [requests], [requests, 1] or [requests, next_n], int32, or with more requests
        next_n : int
            Rows a request.
        topk_indices : Tensor [rows, topk_tokens], int32
            Written.
        topk_tokens, max_seq_len : int
        """
        rows = logits.shape[0]
        backend = self.resolve_backend(logits, topk_tokens, rows)
        row_ends = _row_ends(seq_lens, next_n, rows)
        out = _head("topk_indices", topk_indices, rows, topk_tokens)
        if backend == "tamis":
            try:
                tamis.topk(logits, topk_tokens, row_ends=row_ends, out=out)
            except (TypeError, ValueError) as error:
                raise renamed(error, scores="logits", k="topk_tokens", row_ends="seq_lens", out="topk_indices") from None
        elif backend == "torch":
            self._by_torch(logits, row_ends, out)
        elif backend == "flashinfer":
            transform = importlib.import_module("flashinfer.topk").top_k_ragged_transform
            ends = row_ends.clamp(min=0)
            out.copy_(transform(logits, ends.new_zeros(rows), ends, topk_tokens))
        else:
            importlib.import_module("deep_select").topk(
                logits,
                topk_tokens,
                end=row_ends.clamp(0, logits.shape[1]),
                indices_type=out.dtype,
                output_idx=out,
                idx_oob_fill_value=-1,
                return_value=False,
                abort_when_nan_found=False,
            )

    __call__ = forward

    @staticmethod
    def _by_torch(logits: Tensor, row_ends: Tensor, out: Tensor) -> None:
        import torch

        ends = row_ends.unsqueeze(1)
        columns = torch.arange(logits.shape[1], device=logits.device)
        # As integers in the order of the scores, since what lies past the end has to rank below -inf and NaN, too.
        bits = logits.float().view(torch.int32)
        lowest = torch.iinfo(torch.int32).min
        keys = (bits ^ (bits >> 31 & torch.iinfo(torch.int32).max)).masked_fill(logits.isnan(), lowest + 1)
        best = keys.masked_fill(columns >= ends, lowest).topk(out.shape[1], dim=-1).indices
        out.copy_(torch.where(columns[: out.shape[1]] < ends, best, -1))


def install() -> list[str]:
    """Put these functions behind vLLM's own entry points.

    Returns
    -------
    list of str
        What was replaced. What this vLLM does not have is left out.

    Raises
    ------
    ImportError
        vLLM cannot be imported.

    Notes
    -----
    Replaces ``top_k_per_row_decode`` and ``top_k_per_row_prefill`` of vllm._custom_ops, ``persistent_topk`` and
    ``cooperative_topk`` of torch.ops._C (plain functions there, each its own ``default``: torch.compile breaks its
    graph at them), and the forward pass of SparseIndexerTopk for the backends "auto", "tamis", "cooperative",
    "persistent" and "per_row". Other backends, and tensors that are on neither CUDA nor the CPU, remain vLLM's own. A
    second call changes nothing.
    """
    import torch

    replaced = []

    def replace(owner: Any, owner_name: str, name: str, function: Any) -> None:
        if owner is not None and hasattr(owner, name):
            setattr(owner, name, function)
            replaced.append(f"{owner_name}.{name}")

    importlib.import_module("vllm")
    custom_ops = _optional("vllm._custom_ops")
    replace(custom_ops, "vllm._custom_ops", "top_k_per_row_decode", top_k_per_row_decode)
    replace(custom_ops, "vllm._custom_ops", "top_k_per_row_prefill", top_k_per_row_prefill)
    for function in (persistent_topk, cooperative_topk):
        function.default = function  # type: ignore[attr-defined]  # as an operator's overload is called
        replace(torch.ops._C, "torch.ops._C", function.__name__, function)
    layer_module = "vllm.model_executor.layers.indexer_topk"
    layer = getattr(_optional(layer_module), "SparseIndexerTopk", None)
    if layer is not None:
        original = getattr(layer.forward, "tamis_original", layer.forward)

        def forward(self: Any, logits: Any, *args: Any, **kwargs: Any) -> None:
            ours = ("auto", "tamis", "cooperative", "persistent", "per_row")
            if getattr(self, "_backend", "auto") in ours and logits.device.type in ("cuda", "cpu"):
                SparseIndexerTopk().forward(logits, *args, **kwargs)
            else:
                original(self, logits, *args, **kwargs)

        forward.tamis_original = original  # type: ignore[attr-defined]
        replace(layer, f"{layer_module}.SparseIndexerTopk", "forward", forward)
    return replaced


def _importable(name: str) -> Any:
    """A module, or why there is none."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # a broken installation may raise anything
        return f"{name} cannot be imported ({type(error).__name__}: {error})"


def _optional(name: str) -> Any:
    """A module, or None where this vLLM has none of that name."""
    if name in sys.modules:
        return sys.modules[name]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            return None
        raise


def plugin() -> None:
    """What vLLM calls in every process it starts: install() where TAMIS_VLLM=1."""
    if os.environ.get("TAMIS_VLLM") == "1":
        install()
