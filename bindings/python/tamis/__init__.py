"""DeepSeek's sparse attention: compress the KV cache, score it, select the best entries, attend to them.

Arrays come from numpy, PyTorch, cupy or jax, on the CPU or (top-k, compressor) on a CUDA device, and are used where
they lie. The results are exact and reproducible: the same input gives the same bits, whatever the batch or the number
of threads.

Importing this package touches no GPU and imports no array library but numpy.
"""

from tamis._cache import PagedCache
from tamis._compressor import (
    CompressCounts,
    build_compress_step,
    compress,
    compress_list_capacity,
    compress_plan,
    compress_ring_rows,
    compress_state_begin,
    stream_is_capturing,
)
from tamis._core import CompressPlan, __version__
from tamis._engine import Engine, generate
from tamis._indexer import index_logits, index_query, index_topk
from tamis._sparse_mla import sparse_mla
from tamis._topk import topk, topk_row_ends, topk_support

__all__ = [
    "CompressCounts",
    "CompressPlan",
    "Engine",
    "PagedCache",
    "__version__",
    "build_compress_step",
    "compress",
    "compress_list_capacity",
    "compress_plan",
    "compress_ring_rows",
    "compress_state_begin",
    "generate",
    "index_logits",
    "index_query",
    "index_topk",
    "sparse_mla",
    "stream_is_capturing",
    "topk",
    "topk_row_ends",
    "topk_support",
]
