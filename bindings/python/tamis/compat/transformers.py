"""DeepSeek-V4 in transformers with tamis: ``attn_implementation="tamis"``.

Importing this module registers the name. A model loaded with it, or switched by
``model.set_attn_implementation("tamis")``, takes its indexer's top-k and its sparse attention from here; everything
else is transformers' own. Written against transformers 5.17.0.

Where this build has no sparse attention for a device (CUDA, so far) or dtype (float16, float64), the attention is
transformers' eager one and the top-k alone is ours. Inference only: gradients do not pass through ours, so that a
query that wants one is refused; wrap calls in torch.no_grad() or torch.inference_mode().
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as model

import tamis

NAME = "tamis"

_TOPK_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MLA_DTYPES = (torch.float32, torch.bfloat16)

_layer = threading.local()  # .ours: whether the attention layer that runs now was asked to be ours


class _IndexScores(torch.Tensor):
    """The indexer's scores [batch, tokens, entries], whose topk() is tamis.topk(). Masking keeps the type."""

    def topk(self, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:  # type: ignore[override]
        scores = self.as_subclass(torch.Tensor)  # type: ignore[arg-type]
        if dim not in (-1, scores.dim() - 1) or not largest or scores.dtype not in _TOPK_DTYPES:
            return scores.topk(k, dim, largest, sorted)
        rows = scores.flatten(0, -2)  # a prompt's first tokens have no entries yet
        indices, values = tamis.topk(rows, k, order="by_value", values=True, index_dtype="int64")
        shape = (*scores.shape[:-1], k)
        return torch.return_types.topk((values.reshape(shape), indices.reshape(shape)))


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of transformers' interface by tamis.sparse_mla(), over the entries that the mask leaves visible.

    Parameters
    ----------
    module
        The attention layer; its `sinks` are used.
    query : Tensor [batch, heads, tokens, 512]
    key, value : Tensor [batch, 1, entries, 512]
        The same: keys are values.
    attention_mask : Tensor [batch, 1, tokens, entries], optional
        0 where an entry is visible, hugely negative elsewhere.
    scaling : float
    dropout : float
        Must be 0.

    Returns
    -------
    Tensor [batch, tokens, heads, 512], None

    Raises
    ------
    NotImplementedError
        `dropout` is not 0, or the query wants a gradient.
    """
    if query.device.type != "cpu" or query.dtype not in _MLA_DTYPES or key.dtype not in _MLA_DTYPES:
        return model.eager_attention_forward(module, query, key, value, attention_mask, scaling, dropout, **kwargs)
    if query.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(
            "attention: query wants a gradient, must not: this is for inference, under torch.no_grad()"
        )
    if dropout != 0.0:
        raise NotImplementedError(f"attention: dropout is {dropout}, must be 0: this is for inference only")
    batch, heads, tokens, head_dim = query.shape
    entries = key.shape[2]
    rows = batch * tokens
    device = query.device

    # Entry j of sequence b is slot b * entries + j. The visible ones of a row, in order, by a top-k of the mask.
    offsets = torch.arange(batch, dtype=torch.int32, device=device).repeat_interleave(tokens) * entries
    if attention_mask is None:
        slots = offsets.unsqueeze(1) + torch.arange(entries, dtype=torch.int32, device=device)
        counts = torch.full((rows,), entries, dtype=torch.int32, device=device)
    else:
        visible = (attention_mask > -1e4).expand(batch, 1, tokens, entries).reshape(rows, entries)
        counts = visible.sum(dim=1, dtype=torch.int32)
        slots = tamis.topk(visible.float(), int(counts.max()), order="by_value", ragged_offsets=offsets)
    layout: Any = "bf16" if key.dtype == torch.bfloat16 else "fp32"
    keys = key[:, 0].contiguous()
    out = tamis.sparse_mla(
        query.transpose(1, 2).reshape(rows, heads, head_dim),
        tamis.PagedCache(keys, layout, head_dim, max(1, entries)),
        slots,
        topk_lens=counts,
        attn_sink=module.sinks.detach().float(),
        softmax_scale=scaling,
    )
    return out.reshape(batch, tokens, heads, head_dim), None


def _register() -> None:
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, eager_mask)

    layer_forward = model.DeepseekV4Attention.forward
    scorer_forward = model.DeepseekV4IndexerScorer.forward

    @functools.wraps(layer_forward)
    def layer(self: Any, *args: Any, **kwargs: Any) -> Any:
        before = getattr(_layer, "ours", False)
        _layer.ours = self.config._attn_implementation == NAME
        try:
            return layer_forward(self, *args, **kwargs)
        finally:
            _layer.ours = before

    @functools.wraps(scorer_forward)
    def scorer(self: Any, *args: Any, **kwargs: Any) -> Any:
        scores = scorer_forward(self, *args, **kwargs)
        return scores.as_subclass(_IndexScores) if getattr(_layer, "ours", False) else scores

    model.DeepseekV4Attention.forward = layer  # type: ignore[method-assign]
    model.DeepseekV4IndexerScorer.forward = scorer  # type: ignore[method-assign]


_register()
