"""Paged caches: defaults and documentation. What is done is in the extension module and below it."""

from __future__ import annotations

from typing import NamedTuple

from tamis import _core
from tamis._types import Array, Layout


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
