"""The operations: defaults and documentation. What they do is in the extension module and below it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from tamis import _core
from tamis._core import CompressPlan

# Any array: numpy, torch, cupy, jax, or whatever else has __dlpack__.
Array = Any
Order = Literal["position", "unsorted", "by_value"]
Layout = Literal["fp32", "bf16", "fp8_tensor", "fp8_mla584", "fp8_mla656", "indexer_fp8", "indexer_mxfp4"]
Format = Literal["fp32", "bf16", "fp8", "mxfp4"]
CompressAlgorithm = Literal["auto", "short_window", "tall_window", "tall_slices", "any_window"]


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


class PagedCache(NamedTuple):
    """A paged cache: slot s is entry ``s % page_size`` of page ``s // page_size``.

    Attributes
    ----------
    data : array [num_pages, ...]
        The first dimension counts pages, of any stride; within a page the bytes are contiguous. uint8 [num_pages,
        page_bytes] for every layout; float32, bfloat16 or float8_e4m3 [num_pages, page_size, head_dim] for "fp32",
        "bf16" and "fp8_tensor".
    layout : str
        How an entry is stored: "fp32", "bf16", "fp8_tensor" (one scale a cache), "fp8_mla584" (V4's main attention),
        "fp8_mla656" (V3.2's), "indexer_fp8" or "indexer_mxfp4".
    head_dim : int
    page_size : int
        Entries a page. n gathered rows are one page of n entries.
    scale : float
        "fp8_tensor" only.

    Examples
    --------
    >>> import numpy as np
    >>> import tamis
    >>> cache = tamis.PagedCache.empty(num_pages=2, layout="fp8_mla584", head_dim=512, page_size=64)
    >>> cache.data.shape
    (2, 37440)
    >>> cache.write(np.full((1, 512), 0.5, dtype=np.float32), slots=np.array([70]))
    >>> cache.read(np.array([70, -1]))[:, :3]
    array([[0.5, 0.5, 0.5],
           [0. , 0. , 0. ]], dtype=float32)
    """

    data: Array
    layout: Layout
    head_dim: int
    page_size: int
    scale: float = 1.0

    @classmethod
    def empty(
        cls, num_pages: int, layout: Layout, head_dim: int, page_size: int, scale: float = 1.0
    ) -> PagedCache:
        """A numpy cache of pages without contents, as far apart as engines keep them."""
        import numpy

        bytes_a_page = _core.cache_page_bytes(layout, head_dim, page_size)
        return cls(numpy.empty((num_pages, bytes_a_page), dtype=numpy.uint8), layout, head_dim, page_size, scale)

    def write(self, rows: Array, slots: Array) -> None:
        """Quantise rows and store row i at slots[i]; a slot outside of the cache writes nothing.

        Parameters
        ----------
        rows : array [n, head_dim], float32 or bfloat16
        slots : array [n], int32 or int64
            Distinct.
        """
        _core.cache_write(self, rows, slots)

    def read(self, slots: Array, *, out: Array | None = None) -> Array:
        """Entries as numbers; a slot outside of the cache gives zeros.

        Parameters
        ----------
        slots : array [n], int32 or int64
        out : array [n, head_dim], float32 or bfloat16, optional

        Returns
        -------
        array [n, head_dim], float32
            Of the library of `slots`, or `out`.
        """
        return _core.cache_read(self, slots, out)


def _capturing() -> bool:
    """Whether PyTorch is loaded and records a CUDA graph on the current stream. Never loads it."""
    torch = sys.modules.get("torch")
    return bool(torch and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def compress_plan(
    starts: Sequence[int] | Array,
    query_lens: Sequence[int] | Array,
    compress_ratio: int,
    *,
    start_hi: Sequence[int] | Array | None = None,
    capturing: bool | None = None,
) -> CompressPlan:
    """Whether a step completes a compressed entry, as far as the host knows.

    Request i owns the positions starts[i] .. starts[i] + query_lens[i] - 1. With `start_hi` its start is known to be
    in starts[i] .. start_hi[i] only: NONE then needs that no start in any range can complete an entry, SOME that
    every start in some request's range does.

    Parameters
    ----------
    starts, query_lens : sequence of int, or array on the CPU
    compress_ratio : int
        4 or 128 in DeepSeek-V4.
    start_hi : sequence of int, optional
    capturing : bool, optional
        True while the stream records a graph: the answer is then UNKNOWN, so that no skip is baked in. Default: ask
        PyTorch, where it is loaded.

    Returns
    -------
    CompressPlan

    Raises
    ------
    TypeError, ValueError
        No integers; the sizes differ, compress_ratio < 1, or a start or length is negative.

    Examples
    --------
    >>> import tamis
    >>> tamis.compress_plan([125, 7], [2, 1], 128).name
    'NONE'
    >>> tamis.compress_plan([125, 7], [3, 1], 128).name
    'SOME'
    >>> tamis.compress_plan([124], [1], 128, start_hi=[128]).name
    'UNKNOWN'
    """
    if capturing is None:
        capturing = _capturing()
    return _core.compress_plan(starts, query_lens, compress_ratio, start_hi, capturing)


def compress_ring_rows(compress_ratio: int, overlap: bool, max_drafts: int = 0) -> int:
    """Rows that a ring of state must have so that rejected drafts never overwrite a row that is still needed.

    Parameters
    ----------
    compress_ratio : int
        1 to 1024.
    overlap : bool
    max_drafts : int
        Most rejected tokens a step.

    Returns
    -------
    int
        compress_ratio * ceil((window + max_drafts) / compress_ratio) with a window of compress_ratio, or twice that
        with overlap.

    Raises
    ------
    TypeError, ValueError
        No integer, no bool; a number outside its range.

    Examples
    --------
    >>> import tamis
    >>> tamis.compress_ring_rows(128, overlap=False), tamis.compress_ring_rows(4, overlap=True, max_drafts=3)
    (128, 12)
    """
    return _core.compress_ring_rows(compress_ratio, overlap, max_drafts)


def compress_state_begin(start: int, compress_ratio: int, overlap: bool) -> int:
    """The first earlier position whose state a request at position `start` can still need.

    After a prefix hit at `start`, replay or restore the positions from there to start - 1.

    Parameters
    ----------
    start, compress_ratio : int
    overlap : bool

    Returns
    -------
    int
        The group's first token, one group earlier with overlap, never below 0.

    Raises
    ------
    ValueError
        A number outside its range.

    Examples
    --------
    >>> import tamis
    >>> tamis.compress_state_begin(514, 4, overlap=True)
    508
    """
    return _core.compress_state_begin(start, compress_ratio, overlap)


def stream_is_capturing(stream: int, device: Any = "cuda") -> bool:
    """Whether a stream of a device records a graph, as its driver says.

    Parameters
    ----------
    stream : int
        The handle (cudaStream_t) of a stream that exists: ``torch.cuda.current_stream().cuda_stream``, cupy's
        ``stream.ptr``; 0 is the default stream.
    device : str or torch.device
        "cuda" or "cuda:N", where the stream lives; "cpu", where nothing records.

    Returns
    -------
    bool

    Raises
    ------
    TypeError, ValueError
        `stream` is no integer; `device` is none of these.
    NotImplementedError
        This build has no code for the device.
    RuntimeError
        A call of the CUDA driver failed.

    Examples
    --------
    >>> import tamis
    >>> tamis.stream_is_capturing(0, "cpu")
    False
    """
    return _core.stream_is_capturing(stream, device)


def compress_list_capacity(tokens: int, requests: int, compress_ratio: int) -> int:
    """Most entries that a step can complete: the length of its list for build_compress_step().

    Parameters
    ----------
    tokens, requests : int
        Of the step, padding included.
    compress_ratio : int
        1 to 1024.

    Returns
    -------
    int
        min(tokens, tokens // compress_ratio + requests).

    Raises
    ------
    TypeError, ValueError
        No integer; a number outside its range.

    Examples
    --------
    >>> import tamis
    >>> tamis.compress_list_capacity(8192, 1, 128), tamis.compress_list_capacity(256, 256, 128)
    (65, 256)
    """
    return _core.compress_list_capacity(tokens, requests, compress_ratio)


def build_compress_step(
    positions: Array,
    token_to_request: Array,
    query_start_loc: Array,
    compress_ratios: int | Sequence[int],
    *,
    out: Array | Sequence[Array] | None = None,
) -> Any:
    """The tokens of a step that complete a compressed entry, once for all layers of the model.

    compress() takes a list as `listed_tokens`: it then need not search, and its work is bounded by the list. This is
    for a step whose positions the host does not know, on CUDA one small launch; in a graph every replay fills the
    lists anew. Padding is never listed.

    Parameters
    ----------
    positions : array [tokens], int64
        As of compress(), like the next two.
    token_to_request : array [tokens], int32
    query_start_loc : array [requests + 1], int32
    compress_ratios : int or sequence of at most 4 int
        The ratios of the model's compressors.
    out : array [compress_list_capacity() or more], int32, or a sequence of one a ratio, optional
        Where to write. Every element is written.

    Returns
    -------
    array, or tuple of arrays
        One list a ratio: the tokens in ascending order, then -1. New arrays of the caller's library and device have
        compress_list_capacity() elements. A sequence of ratios gives a tuple.

    Raises
    ------
    TypeError, ValueError
        A wrong dtype; a wrong shape, device, ratio or overlap.
    NotImplementedError
        This build has no code for the device.
    RuntimeError
        A call of the CUDA driver failed.

    Examples
    --------
    Two requests, at positions 2, 3, 4 and 126, 127:

    >>> import numpy as np
    >>> import tamis
    >>> positions = np.array([2, 3, 4, 126, 127])
    >>> token_to_request = np.array([0, 0, 0, 1, 1], np.int32)
    >>> query_start_loc = np.array([0, 3, 5], np.int32)
    >>> c4, c128 = tamis.build_compress_step(positions, token_to_request, query_start_loc, [4, 128])
    >>> c4
    array([ 1,  4, -1], dtype=int32)
    >>> c128
    array([ 4, -1], dtype=int32)
    """
    return _core.build_compress_step(positions, token_to_request, query_start_loc, compress_ratios, out)


@dataclass
class CompressCounts:
    """Launches that compress() made, for whoever wants to know what a plan saves; a graph's replays are not counted.

    Attributes
    ----------
    pooled : int
        Calls that saved state and looked for entries to pool.
    skipped : int
        Calls that saved state only, because of CompressPlan.NONE.

    Examples
    --------
    >>> import tamis
    >>> tamis.CompressCounts()  # to be given to compress(..., counts=), which adds to it
    CompressCounts(pooled=0, skipped=0)
    """

    pooled: int = 0
    skipped: int = 0


def compress(
    kv: Array,
    gate: Array,
    *,
    ape: Array,
    norm_weight: Array,
    cos_sin: Array,
    positions: Array,
    token_to_request: Array,
    query_start_loc: Array,
    state: Array,
    cache: PagedCache,
    kv_slots: Array,
    compress_ratio: int,
    state_table: Array | None = None,
    state_slots: Array | None = None,
    state_ring: Array | None = None,
    overlap: bool | None = None,
    hadamard: bool = False,
    rms_norm_eps: float = 1e-6,
    plan: CompressPlan = CompressPlan.UNKNOWN,
    listed_tokens: Array | None = None,
    algorithm: CompressAlgorithm = "auto",
    counts: CompressCounts | None = None,
    num_threads: int = 0,
    workspace: Array | None = None,
) -> None:
    """One step of one compressor: save the state of every token, write the entries that the step completes.

    For each token that completes a group of R = compress_ratio it pools, norms, rotates, quantises and stores one
    entry. The same bits come out for any split of a prompt into steps, any batch and any place in it. Which earlier
    state is read: compress_state_begin().

    Parameters
    ----------
    kv, gate : array [tokens, c * d], float32 or bfloat16
        Projections wkv x and wgate x (before the position bias) with d = cache.head_dim, c = 2 with `overlap`, else 1.
    ape : array [R, c * d], float32
        Gate bias by position modulo R.
    norm_weight : array [d], float32
    cos_sin : array [max_positions, 64], float32
        Columns 0..31 cos, 32..63 sin. Entry j is rotated at j * R; an entry past the table is not written.
    positions : array [tokens], int64
        Absolute; negative is padding.
    token_to_request : array [tokens], int32
        Out of range is padding.
    query_start_loc : array [requests + 1], int32
        Request r owns the tokens query_start_loc[r] .. query_start_loc[r + 1] - 1.
    state : array [blocks, block_size, 2 * c * d], float32 or bfloat16
        Written. Rows of values and gates, in one of two forms:
    state_table, state_slots : array [requests, max_blocks], int32; array [tokens], int64
        Paged: position t is row t % block_size of block state_table[r][t // block_size]; where each token's row is
        saved, -1 saves nothing.
    state_ring : array [requests], int32
        Ring: the block each request owns, -1 for none; position t is row t % block_size, with a block_size of at least
        compress_ring_rows().
    cache : PagedCache
        Written. Layout "fp8_mla584", "bf16", "fp32", "fp8_tensor", "indexer_fp8" or "indexer_mxfp4".
    kv_slots : array [tokens], int64
        Where the entry goes that token i completes; -1 writes nothing.
    compress_ratio : int
        4 or 128 in DeepSeek-V4.
    overlap : bool, optional
        Each entry also pools the group before its own. Default: where compress_ratio is 4.
    hadamard : bool
        Rotate the 128-vector after RoPE (indexer keys only).
    rms_norm_eps : float
    plan : CompressPlan
        NONE skips the pooling; state is saved in every case. While a stream records a graph, NONE counts as UNKNOWN.
    listed_tokens : array [any], int32, optional
        The list of build_compress_step() for this step and ratio. Tokens that it lacks complete nothing; -1 and other
        numbers that are no token are skipped.
    algorithm : {"auto", "short_window", "tall_window", "tall_slices", "any_window"}
        CUDA only: force a kernel. "auto" takes the first that fits.
    counts : CompressCounts, optional
        Written: whether the call pooled or skipped is added.
    num_threads : int
        CPU: 0 uses all cores, 1 stays on the calling thread. Never changes the result.
    workspace : array [bytes], uint8, 64-byte aligned, optional

    Raises
    ------
    TypeError, ValueError
        A wrong dtype; a wrong shape, device, layout or overlap; an algorithm other than "auto" on the CPU.
    NotImplementedError
        A forced algorithm cannot serve the call (all unmet constraints are listed), or this build has no code for the
        device.
    RuntimeError
        A call of the CUDA driver failed.

    Notes
    -----
    The same bits on the CPU and on CUDA, where the call enqueues one launch on the array library's current stream and
    returns; it is safe in graph capture.

    Examples
    --------
    >>> import numpy as np
    >>> import tamis
    >>> d, ratio, tokens = 512, 128, 128
    >>> cache = tamis.PagedCache(np.zeros((1, 4, d), np.float32), "fp32", d, page_size=4)
    >>> tamis.compress(
    ...     kv=np.ones((tokens, d), np.float32),
    ...     gate=np.zeros((tokens, d), np.float32),
    ...     ape=np.zeros((ratio, d), np.float32),
    ...     norm_weight=np.ones(d, np.float32),
    ...     cos_sin=np.tile(np.repeat(np.float32([1, 0]), 32), (ratio, 1)),
    ...     positions=np.arange(tokens),
    ...     token_to_request=np.zeros(tokens, np.int32),
    ...     query_start_loc=np.array([0, tokens], np.int32),
    ...     state=np.zeros((1, ratio, 2 * d), np.float32),
    ...     state_ring=np.zeros(1, np.int32),
    ...     cache=cache,
    ...     kv_slots=np.arange(tokens) // ratio,
    ...     compress_ratio=ratio,
    ...     plan=tamis.compress_plan([0], [tokens], ratio),
    ... )
    >>> cache.data[0, :2, 0]  # the mean of 128 ones, normed; the second entry is not complete
    array([0.9999995, 0.       ], dtype=float32)
    """
    _core.compress(
        kv,
        gate,
        ape,
        norm_weight,
        cos_sin,
        positions,
        token_to_request,
        query_start_loc,
        state,
        state_table,
        state_slots,
        state_ring,
        cache,
        kv_slots,
        compress_ratio,
        compress_ratio == 4 if overlap is None else overlap,
        hadamard,
        rms_norm_eps,
        plan,
        listed_tokens,
        algorithm,
        counts,
        num_threads,
        workspace,
    )


def index_query(
    q: Array,
    weights: Array,
    positions: Array,
    cos_sin: Array,
    *,
    format: Format = "fp8",
    hadamard: bool = False,
    num_threads: int = 0,
    index_q: Array | None = None,
    index_q_scale: Array | None = None,
    index_weights: Array | None = None,
) -> Any:
    """Indexer queries from their projection: RoPE, Hadamard rotation, quantisation.

    Parameters
    ----------
    q : array [tokens, index_heads, 128], float32 or bfloat16
    weights : array [tokens, index_heads], float32 or bfloat16
    positions : array [tokens], int64
        Out of the table's range is padding.
    cos_sin : array [max_positions, 64], float32
    format : {"fp32", "bf16", "fp8", "mxfp4"}
        Keys must be in the matching cache layout.
    hadamard : bool
        Must agree with how the keys were written.
    num_threads : int
    index_q, index_q_scale, index_weights : array, optional
        Where to write; see Returns.

    Returns
    -------
    index_q : array [tokens, index_heads, 128], float32, bfloat16 or uint8
        "mxfp4": [tokens, index_heads, 64] uint8.
    index_weights : array [tokens, index_heads], float32
        weight (* the query's scale) * 128**-0.5 * index_heads**-0.5
    index_q_scale : array [tokens, index_heads, 4], uint8
        "mxfp4" only.

    Raises
    ------
    TypeError, ValueError
        A wrong dtype; a wrong shape or device.

    Examples
    --------
    >>> import numpy as np
    >>> import tamis
    >>> table = np.tile(np.repeat(np.float32([1, 0]), 32), (1, 1))  # position 0: no rotation
    >>> q, w = tamis.index_query(
    ...     np.ones((1, 4, 128), np.float32), np.ones((1, 4), np.float32), np.array([0]), table, format="fp32"
    ... )
    >>> q.shape, float(w[0, 0])
    ((1, 4, 128), 0.04419417306780815)
    """
    return _core.index_query(
        q, weights, positions, cos_sin, format, hadamard, num_threads, index_q, index_q_scale, index_weights
    )


def index_logits(
    index_q: Array,
    index_weights: Array,
    index_k: PagedCache,
    row_ends: Array,
    *,
    format: Format = "fp8",
    index_q_scale: Array | None = None,
    page_table: Array | None = None,
    row_to_table: Array | None = None,
    row_starts: Array | None = None,
    max_columns: int | None = None,
    clean: bool = True,
    num_threads: int = 0,
    out: Array | None = None,
) -> Array:
    """Scores of the indexer: sum_h index_weights[r, h] * max(0, index_q[r, h] . key[j]), times the key's scale.

    Each score is the same float32 whatever the batch, window or thread count.

    Parameters
    ----------
    index_q : array [rows, index_heads, 128 or 64]
        As index_query() writes it.
    index_weights : array [rows, index_heads], float32
    index_k : PagedCache
        Keys, in the layout that matches `format`.
    row_ends : array [rows], int32
        One past the last column of each row, clamped to start .. max_columns.
    format : {"fp32", "bf16", "fp8", "mxfp4"}
    index_q_scale : array [rows, index_heads, 4], uint8, optional
        "mxfp4" only.
    page_table : array [tables, max_pages], int32, optional
        Without it column j is slot j.
    row_to_table, row_starts : array [rows], int32, optional
        Default: row r uses table r; 0.
    max_columns : int, optional
        Columns of the matrix; default as many as the tables or the cache have slots.
    clean : bool
        Write -inf outside each row's window; otherwise those columns are left alone.
    num_threads : int
    out : array [rows, max_columns], float32 or bfloat16, optional

    Returns
    -------
    array [rows, max_columns], float32

    Raises
    ------
    TypeError, ValueError
        A wrong dtype; a wrong shape, device or layout.

    Examples
    --------
    >>> import numpy as np
    >>> import tamis
    >>> keys = np.zeros((1, 3, 128), np.float32)
    >>> keys[0, :, 0] = [1, -1, 2]
    >>> q = np.zeros((1, 1, 128), np.float32)
    >>> q[0, 0, 0] = 1
    >>> cache = tamis.PagedCache(keys, "fp32", 128, page_size=3)
    >>> tamis.index_logits(q, np.ones((1, 1), np.float32), cache, np.array([3], np.int32), format="fp32")
    array([[1., 0., 2.]], dtype=float32)
    """
    return _core.index_logits(
        index_q,
        index_weights,
        index_k,
        row_ends,
        format,
        index_q_scale,
        page_table,
        row_to_table,
        row_starts,
        max_columns,
        clean,
        num_threads,
        out,
    )


def index_topk(
    index_q: Array,
    index_weights: Array,
    index_k: PagedCache,
    row_ends: Array,
    k: int,
    *,
    format: Format = "fp8",
    index_q_scale: Array | None = None,
    page_table: Array | None = None,
    row_to_table: Array | None = None,
    row_starts: Array | None = None,
    max_columns: int | None = None,
    order: Order = "position",
    values: bool | Array = False,
    index_dtype: Literal["int32", "int64"] = "int32",
    mapping_page_table: Array | None = None,
    mapping_page_size: int = 0,
    page_starts: Array | None = None,
    ragged_offsets: Array | None = None,
    num_threads: int = 0,
    out: Array | None = None,
    workspace: Array | None = None,
) -> Any:
    """index_logits() followed by topk(), without ever storing the matrix.

    Parameters
    ----------
    index_q, index_weights, index_k, row_ends, format, index_q_scale, page_table, row_to_table, row_starts, max_columns
        As for index_logits().
    k, order, index_dtype, ragged_offsets, page_starts, num_threads, out, workspace
        As for topk().
    values : bool or array [rows, k], float32
    mapping_page_table : array [tables, max_pages], int32, optional
        Write physical slots of the cache attended to (same row_to_table).
    mapping_page_size : int
        Entries of its pages.

    Returns
    -------
    indices : array [rows, k]
        Relative to the row's start; the winners come first, then -1.
    values : array [rows, k], float32
        In a tuple behind the indices where asked for; NaN past the winners.

    Raises
    ------
    TypeError, ValueError
        A wrong dtype; a wrong shape, device or layout.

    Examples
    --------
    >>> import numpy as np
    >>> import tamis
    >>> keys = np.zeros((1, 3, 128), np.float32)
    >>> keys[0, :, 0] = [1, -1, 2]
    >>> q = np.zeros((1, 1, 128), np.float32)
    >>> q[0, 0, 0] = 1
    >>> cache = tamis.PagedCache(keys, "fp32", 128, page_size=3)
    >>> tamis.index_topk(q, np.ones((1, 1), np.float32), cache, np.array([3], np.int32), 2, format="fp32")
    array([[0, 2]], dtype=int32)
    """
    return _core.index_topk(
        index_q,
        index_weights,
        index_k,
        row_ends,
        k,
        format,
        index_q_scale,
        page_table,
        row_to_table,
        row_starts,
        max_columns,
        order,
        values,
        index_dtype,
        mapping_page_table,
        mapping_page_size,
        page_starts,
        ragged_offsets,
        num_threads,
        out,
        workspace,
    )


def sparse_mla(
    q: Array,
    cache: PagedCache,
    topk_indices: Array,
    *,
    topk_lens: Array | None = None,
    extra_cache: PagedCache | None = None,
    extra_topk_indices: Array | None = None,
    extra_topk_lens: Array | None = None,
    attn_sink: Array | None = None,
    softmax_scale: float | None = None,
    lse: bool | Array = False,
    max_logits: bool | Array = False,
    num_threads: int = 0,
    out: Array | None = None,
    workspace: Array | None = None,
) -> Any:
    """Attention of each row to listed entries of one or two caches, with a sink.

    ``out = sum_k softmax(l)_k V_k`` with ``l_k = softmax_scale * (q . key_k)`` over the union of both lists and the
    sink in the denominator; V is the first 512 dims of the key. Invalid lanes are not read. A row without a valid key
    gives 0 and lse -inf.

    Parameters
    ----------
    q : array [rows, num_q_heads, head_dim_qk], float32 or bfloat16
    cache : PagedCache
        Raw window keys, or gathered rows: "fp8_mla584", "bf16", "fp32" (head_dim 512 or 576) or "fp8_mla656".
    topk_indices : array [rows, topk], int32
        Physical slots; negative or past the cache is invalid in any lane.
    topk_lens : array [rows], int32, optional
        Clamped to 0 .. topk; lanes from there on are never read.
    extra_cache, extra_topk_indices, extra_topk_lens : optional
        The same of the compressed cache.
    attn_sink : array [num_q_heads], float32, optional
        A logit that adds to the denominator only.
    softmax_scale : float, optional
        Not 0. Default head_dim_qk**-0.5.
    lse, max_logits : bool or array [rows, num_q_heads], float32
        True: return them, too. lse is the natural log, without the sink.
    num_threads : int
    out : array [rows, num_q_heads, 512], float32 or bfloat16, optional
    workspace : array [bytes], uint8, 64-byte aligned, optional

    Returns
    -------
    out : array [rows, num_q_heads, 512], dtype of q
    lse, max_logits : array
        In a tuple behind it, as far as they were asked for.

    Raises
    ------
    TypeError, ValueError
        A wrong dtype; a wrong shape, device or layout.
    NotImplementedError
        This build has no code for the device.

    Examples
    --------
    >>> import numpy as np
    >>> import tamis
    >>> keys = np.zeros((1, 2, 512), np.float32)
    >>> keys[0, 1, :] = 4
    >>> cache = tamis.PagedCache(keys, "fp32", 512, page_size=2)
    >>> q = np.zeros((1, 8, 512), np.float32)  # indifferent: the mean of what is listed
    >>> tamis.sparse_mla(q, cache, np.array([[0, 1, -1]], np.int32))[0, 0, :3]
    array([2., 2., 2.], dtype=float32)
    """
    return _core.sparse_mla(
        q,
        cache,
        topk_indices,
        topk_lens,
        extra_cache,
        extra_topk_indices,
        extra_topk_lens,
        attn_sink,
        softmax_scale,
        lse,
        max_logits,
        num_threads,
        out,
        workspace,
    )
