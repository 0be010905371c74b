"""The indexer: defaults and documentation. What is done is in the extension module and below it."""

from __future__ import annotations

from typing import Any, Literal

from tamis import _core
from tamis._cache import PagedCache
from tamis._types import Array, Format, Order


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
