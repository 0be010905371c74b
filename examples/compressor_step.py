#!/usr/bin/env python3
"""One layer's C128 compressor over two steps: state is saved at every token, an entry is written at the 128th.

Usage: examples/compressor_step.py
"""

import numpy as np

import tamis

RATIO, HEAD_DIM = 128, 512
rng = np.random.default_rng(0)

# What a layer owns: the learned bias and norm, and a rotary table (cos in columns 0..31, sin in 32..63).
ape = rng.standard_normal((RATIO, HEAD_DIM), dtype=np.float32)
norm_weight = np.ones(HEAD_DIM, dtype=np.float32)
angles = np.arange(1024)[:, None] * 160000.0 ** (-np.arange(0, 64, 2) / 64)
cos_sin = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

# What an engine owns: a ring of state rows a request, and the compressed cache in the layout of DeepSeek-V4.
state = np.empty((1, tamis.compress_ring_rows(RATIO, overlap=False), 2 * HEAD_DIM), dtype=np.float32)
cache = tamis.PagedCache.empty(num_pages=1, layout="fp8_mla584", head_dim=HEAD_DIM, page_size=64)


def step(begin: int, tokens: int) -> None:
    positions = np.arange(begin, begin + tokens)
    plan = tamis.compress_plan([begin], [tokens], RATIO)
    tamis.compress(
        kv=rng.standard_normal((tokens, HEAD_DIM), dtype=np.float32),  # wkv x
        gate=rng.standard_normal((tokens, HEAD_DIM), dtype=np.float32),  # wgate x
        ape=ape,
        norm_weight=norm_weight,
        cos_sin=cos_sin,
        positions=positions,
        token_to_request=np.zeros(tokens, dtype=np.int32),
        query_start_loc=np.array([0, tokens], dtype=np.int32),
        state=state,
        state_ring=np.zeros(1, dtype=np.int32),  # the request owns block 0
        cache=cache,
        kv_slots=positions // RATIO,  # where the entry goes that a token completes
        compress_ratio=RATIO,
        plan=plan,
    )
    print(f"positions {begin}..{begin + tokens - 1}: plan {plan.name}")


step(0, 100)  # a prompt: no group is complete, so only state is saved
step(100, 28)  # the 128th token completes entry 0
entry = cache.read(np.array([0]))[0]
print(f"entry 0: {entry.size} numbers, root mean square {np.sqrt((entry**2).mean()):.3f}")
