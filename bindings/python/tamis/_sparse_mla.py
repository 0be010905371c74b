"""Sparse attention: defaults and documentation. What is done is in the extension module and below it."""

from __future__ import annotations

from typing import Any

from tamis import _core
from tamis._cache import PagedCache
from tamis._types import Array


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
