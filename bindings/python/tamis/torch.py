"""``torch.ops.tamis.*``: the operations as PyTorch operators, for ``torch.compile`` and CUDA graphs.

Importing this module registers them, with what the compiler has to know of each: the shapes of its results and which
arguments it writes. Arguments are those of the functions of the package; a cache is five arguments, its tensor and the
other fields of tamis.PagedCache. None has a gradient: a backward pass through one fails, and in compiled code so does a
forward pass that prepares one; use torch.no_grad(). Outside of compiled code the functions of the package cost less.

Examples
--------
>>> import torch
>>> import tamis.torch
>>> torch.ops.tamis.topk(torch.tensor([[0.5, 2.0, -1.0, 2.0]]), 2)
tensor([[1, 3]], dtype=torch.int32)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import tamis
from tamis._core import CompressPlan

_library = torch.library.Library("tamis", "DEF")

_TOPK = (
    "Tensor scores, SymInt k, Tensor? row_starts=None, Tensor? row_ends=None, str order='position', "
    "Tensor? page_table=None, Tensor? row_to_table=None, Tensor? page_starts=None, int page_size=0, "
    "Tensor? ragged_offsets=None, str algorithm='auto'"
)
_SCORE = (
    "Tensor index_q, Tensor index_weights, Tensor index_k, str layout, int head_dim, int page_size, float scale, "
    "Tensor row_ends"
)
_SCORE_OPTIONS = (
    "str format='fp8', Tensor? index_q_scale=None, Tensor? page_table=None, Tensor? row_to_table=None, "
    "Tensor? row_starts=None"
)


def _register(schema: str, implementation: Callable[..., Any], fake: Callable[..., Any]) -> None:
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(name, implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(f"tamis::{name}", fake, lib=_library)


def _without_gradient(name: str) -> None:
    """A backward pass through the operator fails, where it would else give no gradient and say nothing."""

    def backward(*_: Any) -> Any:
        raise NotImplementedError(f"torch.ops.tamis.{name}: it has no gradient, must not be part of a backward pass")

    torch.library.register_autograd(f"tamis::{name}", backward, lib=_library)


def _topk(
    scores: Any,
    k: int,
    row_starts: Any = None,
    row_ends: Any = None,
    order: str = "position",
    page_table: Any = None,
    row_to_table: Any = None,
    page_starts: Any = None,
    page_size: int = 0,
    ragged_offsets: Any = None,
    algorithm: str = "auto",
    **outputs: Any,
) -> Any:
    return tamis.topk(
        scores,
        k,
        row_starts=row_starts,
        row_ends=row_ends,
        order=order,  # type: ignore[arg-type]
        page_table=page_table,
        row_to_table=row_to_table,
        page_starts=page_starts,
        page_size=page_size,
        ragged_offsets=ragged_offsets,
        algorithm=algorithm,
        **outputs,
    )


def _topk_fake(scores: Any, k: int, *_: Any, **__: Any) -> Any:
    return scores.new_empty((scores.shape[0], k), dtype=torch.int32)


def _topk_values(*args: Any, **kwargs: Any) -> Any:
    return _topk(*args, **kwargs, values=True)


def _topk_values_fake(scores: Any, k: int, *args: Any, **kwargs: Any) -> Any:
    return _topk_fake(scores, k), scores.new_empty((scores.shape[0], k))


def _topk_out(*args: Any, out: Any, **kwargs: Any) -> None:
    _topk(*args, **kwargs, out=out)


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _compress(
    kv: Any, gate: Any, state: Any, cache: Any, layout: Any, head_dim: int, page_size: int, scale: float,
    *, plan: int = CompressPlan.UNKNOWN.value, **kwargs: Any
) -> None:
    paged = tamis.PagedCache(cache, layout, head_dim, page_size, scale)
    tamis.compress(kv, gate, state=state, cache=paged, plan=CompressPlan(plan), **kwargs)


def _build_compress_step(positions: Any, token_to_request: Any, query_start_loc: Any, compress_ratios: Any) -> Any:
    return list(tamis.build_compress_step(positions, token_to_request, query_start_loc, compress_ratios))


def _build_compress_step_fake(positions: Any, _: Any, query_start_loc: Any, compress_ratios: Any) -> Any:
    tokens, requests = positions.shape[0], query_start_loc.shape[0] - 1
    capacities = [torch.sym_min(tokens, tokens // ratio + requests) for ratio in compress_ratios]
    return [positions.new_empty(capacity, dtype=torch.int32) for capacity in capacities]


def _index_logits(
    index_q: Any, index_weights: Any, index_k: Any, layout: Any, head_dim: int, page_size: int, scale: float,
    row_ends: Any, max_columns: int, *args: Any, **kwargs: Any
) -> Any:
    paged = tamis.PagedCache(index_k, layout, head_dim, page_size, scale)
    return tamis.index_logits(
        index_q, index_weights, paged, row_ends, max_columns=max_columns, **_score_options(*args, **kwargs)
    )


def _index_logits_fake(index_q: Any, *args: Any, **_: Any) -> Any:
    return index_q.new_empty((index_q.shape[0], args[7]), dtype=torch.float32)


def _index_topk(
    index_q: Any, index_weights: Any, index_k: Any, layout: Any, head_dim: int, page_size: int, scale: float,
    row_ends: Any, k: int, *args: Any, **kwargs: Any
) -> Any:
    paged = tamis.PagedCache(index_k, layout, head_dim, page_size, scale)
    return tamis.index_topk(index_q, index_weights, paged, row_ends, k, **_score_options(*args, **kwargs))


def _index_topk_fake(index_q: Any, *args: Any, **_: Any) -> Any:
    return index_q.new_empty((index_q.shape[0], args[7]), dtype=torch.int32)


def _score_options(
    format: Any = "fp8", index_q_scale: Any = None, page_table: Any = None, row_to_table: Any = None,
    row_starts: Any = None
) -> dict[str, Any]:
    return {
        "format": format,
        "index_q_scale": index_q_scale,
        "page_table": page_table,
        "row_to_table": row_to_table,
        "row_starts": row_starts,
    }


def _sparse_mla(
    q: Any, cache: Any, layout: Any, head_dim: int, page_size: int, scale: float, topk_indices: Any,
    topk_lens: Any = None, extra_cache: Any = None, extra_layout: Any = "fp32", extra_page_size: int = 1,
    extra_scale: float = 1.0, extra_topk_indices: Any = None, extra_topk_lens: Any = None, attn_sink: Any = None,
    softmax_scale: float | None = None,
) -> Any:
    extra = None
    if extra_cache is not None:
        extra = tamis.PagedCache(extra_cache, extra_layout, head_dim, extra_page_size, extra_scale)
    return tamis.sparse_mla(
        q,
        tamis.PagedCache(cache, layout, head_dim, page_size, scale),
        topk_indices,
        topk_lens=topk_lens,
        extra_cache=extra,
        extra_topk_indices=extra_topk_indices,
        extra_topk_lens=extra_topk_lens,
        attn_sink=attn_sink,
        softmax_scale=softmax_scale,
        lse=True,
    )


def _sparse_mla_fake(q: Any, *_: Any, **__: Any) -> Any:
    rows, heads = q.shape[0], q.shape[1]
    return q.new_empty((rows, heads, 512)), q.new_empty((rows, heads), dtype=torch.float32)


_register(f"topk({_TOPK}) -> Tensor", _topk, _topk_fake)
_register(f"topk_values({_TOPK}) -> (Tensor, Tensor)", _topk_values, _topk_values_fake)
_register(f"topk_out({_TOPK}, *, Tensor(a!) out) -> ()", _topk_out, _nothing)
_register(
    "compress(Tensor kv, Tensor gate, Tensor(a!) state, Tensor(b!) cache, str layout, int head_dim, int page_size, "
    "float scale, *, Tensor ape, Tensor norm_weight, Tensor cos_sin, Tensor positions, Tensor token_to_request, "
    "Tensor query_start_loc, Tensor kv_slots, int compress_ratio, Tensor? state_table=None, "
    "Tensor? state_slots=None, Tensor? state_ring=None, bool? overlap=None, bool hadamard=False, "
    f"float rms_norm_eps=1e-6, int plan={CompressPlan.UNKNOWN.value}, Tensor? listed_tokens=None, "
    "str algorithm='auto') -> ()",
    _compress,
    _nothing,
)
_register(
    "build_compress_step(Tensor positions, Tensor token_to_request, Tensor query_start_loc, int[] compress_ratios) "
    "-> Tensor[]",
    _build_compress_step,
    _build_compress_step_fake,
)
_register(f"index_logits({_SCORE}, SymInt max_columns, {_SCORE_OPTIONS}) -> Tensor", _index_logits, _index_logits_fake)
_register(f"index_topk({_SCORE}, SymInt k, {_SCORE_OPTIONS}) -> Tensor", _index_topk, _index_topk_fake)
_register(
    "sparse_mla(Tensor q, Tensor cache, str layout, int head_dim, int page_size, float scale, Tensor topk_indices, "
    "Tensor? topk_lens=None, Tensor? extra_cache=None, str extra_layout='fp32', int extra_page_size=1, "
    "float extra_scale=1.0, Tensor? extra_topk_indices=None, Tensor? extra_topk_lens=None, Tensor? attn_sink=None, "
    "float? softmax_scale=None) -> (Tensor, Tensor)",
    _sparse_mla,
    _sparse_mla_fake,
)
for _name in ("topk_values", "index_logits", "sparse_mla"):  # what gives numbers; indices have no gradient anyway
    _without_gradient(_name)
