"""Names of the types in the signatures of operations."""

from __future__ import annotations

from typing import Any, Literal

# Any array: numpy, torch, cupy, jax, or whatever else has __dlpack__.
Array = Any
Order = Literal["position", "unsorted", "by_value"]
Layout = Literal["fp32", "bf16", "fp8_tensor", "fp8_mla584", "fp8_mla656", "indexer_fp8", "indexer_mxfp4"]
Format = Literal["fp32", "bf16", "fp8", "mxfp4"]
CompressAlgorithm = Literal["auto", "short_window", "tall_window", "any_window"]
