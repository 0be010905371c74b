"""The compressor: defaults and documentation. What is done is in the extension module and below it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tamis import _core
from tamis._cache import PagedCache
from tamis._core import CompressPlan
from tamis._types import Array, CompressAlgorithm


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
        Finite, at least 0.
    plan : CompressPlan
        NONE skips the pooling; state is saved in every case. While a stream records a graph, NONE counts as UNKNOWN.
    listed_tokens : array [any], int32, optional
        The list of build_compress_step() for this step and ratio. Tokens that it lacks complete nothing; -1 and other
        numbers that are no token are skipped. With state_ring it must have all tokens that complete an entry, each
        once: on CUDA, entries also save rows that take the place of those that they pool.
    algorithm : {"auto", "short_window", "tall_window", "any_window"}
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
