"""Top-k: defaults and documentation. What is done is in the extension module and below it."""

from __future__ import annotations

from typing import Any, Literal

from tamis import _core
from tamis._types import Array, Order


def topk(
    scores: Array,
    k: int,
    *,
    row_starts: Array | None = None,
    row_ends: Array | None = None,
    order: Order = "position",
    values: bool | Array = False,
    certificate: bool | Array = False,
    index_dtype: Literal["int32", "int64"] = "int32",
    page_table: Array | None = None,
    row_to_table: Array | None = None,
    page_starts: Array | None = None,
    page_size: int = 0,
    ragged_offsets: Array | None = None,
    algorithm: str = "auto",
    num_threads: int = 0,
    out: Array | None = None,
    workspace: Array | None = None,
) -> Any:
    """Positions of the k largest scores of each row.

    Exactly the k largest, and a pure function of the input: NaN < -inf < finite < +inf, -0 equals +0, and of equal
    scores the lower position wins. Neither the batch, the thread count, the algorithm nor the device changes a row's
    result.

    Parameters
    ----------
    scores : array [rows, width], float32, bfloat16 or float16
        The last dimension is contiguous; any row stride of at least width will do. The call runs on its device.
    k : int
        Winners a row, at least 0.
    row_starts, row_ends : array [rows], int32, optional
        The row's window, clamped to 0 <= start <= end <= width; default the whole row. What lies outside is never
        looked at.
    order : {"position", "unsorted", "by_value"}
        Ascending position; whatever is cheapest; or the largest score first.
    values : bool or array [rows, k] of the dtype of scores
        True: return the winners' scores, too, NaN past the winners. An array: write them there.
    certificate : bool or array [rows, 4], int32
        Evidence a row: the last winner's score (the bits of a float32), how many positions rank above it, how many
        equal it, and how many of these won.
    index_dtype : {"int32", "int64"}
        Of the indices where `out` is not given.
    page_table : array [tables, max_pages], int32, optional
        Write physical slots, ``page_table[t][q // page_size] * page_size + q % page_size`` with q = position +
        page_starts[row] and t = row_to_table[row], in place of positions. A page that is missing or negative gives -1.
    row_to_table, page_starts : array [rows], int32, optional
        Default: row r uses table r; 0.
    page_size : int
        Entries a page, for `page_table`.
    ragged_offsets : array [rows], int32 or int64, optional
        Write position + ragged_offsets[row].
    algorithm : str
        "auto", or one that topk_support() names.
    num_threads : int
        CPU: 0 uses all cores, 1 stays on the calling thread.
    out : array [rows, k], int32 or int64, optional
        Where to write the indices. Every element is written.
    workspace : array [bytes], uint8, 64-byte aligned, optional
        Scratch memory; its contents may be anything. By default it comes from the caller's array library.

    Returns
    -------
    indices : array [rows, k]
        Relative to the row's start. The min(k, n) winners come first, then -1. A new array of the caller's library
        and device, or `out`.
    values, certificate : array
        In a tuple behind the indices, as far as they were asked for.

    Raises
    ------
    TypeError
        An argument is no array or has a wrong dtype.
    ValueError
        A shape, device or value outside of what is said above; an output that is read-only or overlaps another array.
    NotImplementedError
        A forced algorithm cannot serve the call (all unmet constraints are listed), or this build has no code for the
        device.
    RuntimeError
        A call of the CUDA driver failed.

    Notes
    -----
    On CUDA the call enqueues work on the array library's current stream and returns; it is safe in graph capture.

    Examples
    --------
    >>> import numpy as np
    >>> import tamis
    >>> scores = np.array([[0.5, 2.0, -1.0, 2.0], [1.0, 3.0, 0.0, 9.0]], dtype=np.float32)
    >>> tamis.topk(scores, 2)
    array([[1, 3],
           [1, 3]], dtype=int32)
    >>> ends = np.array([4, 1], dtype=np.int32)
    >>> indices, values = tamis.topk(scores, 2, row_ends=ends, order="by_value", values=True)
    >>> indices
    array([[ 1,  3],
           [ 0, -1]], dtype=int32)
    >>> values
    array([[ 2.,  2.],
           [ 1., nan]], dtype=float32)
    """
    return _core.topk(
        scores,
        k,
        row_starts,
        row_ends,
        order,
        values,
        certificate,
        index_dtype,
        page_table,
        row_to_table,
        page_starts,
        page_size,
        ragged_offsets,
        algorithm,
        num_threads,
        out,
        workspace,
    )


def topk_row_ends(seq_lens: Array, next_n: int, compress_ratio: int = 0, *, out: Array | None = None) -> Array:
    """Row ends for `next_n` query rows a request, on the CPU.

    Row i of request r ends at ``max(0, seq_lens[r] - next_n + 1 + i) // compress_ratio``: the division comes after the
    clamp.

    Parameters
    ----------
    seq_lens : array [requests], int32
        Tokens including the `next_n` of this step; may be stale or negative.
    next_n : int
        Query rows a request, at least 1.
    compress_ratio : int
        0 or 1 leaves raw lengths.
    out : array [requests * next_n], int32, optional

    Returns
    -------
    array [requests * next_n], int32

    Raises
    ------
    TypeError, ValueError
        A wrong dtype; a wrong shape or value.

    Examples
    --------
    >>> import numpy as np
    >>> import tamis
    >>> tamis.topk_row_ends(np.array([2, 9], dtype=np.int32), next_n=4)
    array([0, 0, 1, 2, 6, 7, 8, 9], dtype=int32)
    """
    return _core.topk_row_ends(seq_lens, next_n, compress_ratio, out)


def topk_support(device: Any = "cpu") -> list[tuple[str, bool, str]]:
    """The top-k algorithms of a device: name, whether calls can take it, and why not.

    For CUDA the driver is asked, so the first call may take as long as starting it takes. A device that is not there
    is an answer, not an error.

    Parameters
    ----------
    device : str or torch.device
        "cpu", "cuda" or "cuda:N".

    Returns
    -------
    list of (str, bool, str)
        In the order in which the rules try them.

    Raises
    ------
    TypeError, ValueError
        `device` is none of these.

    Examples
    --------
    >>> import tamis
    >>> [name for name, available, why in tamis.topk_support("cpu") if available]
    ['identity', 'simd_filter', 'select']
    """
    return _core.topk_support(device)
