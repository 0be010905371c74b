#!/usr/bin/env python3
"""Top-k of PyTorch tensors: exact, on the CPU or a GPU, into your own buffers, inside a CUDA graph.

Usage: examples/topk_from_torch.py [cpu|cuda]
"""

import sys

import torch

import tamis

device = sys.argv[1] if len(sys.argv) > 1 else ("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
scores = torch.randn(4, 100_000, device=device)
lengths = torch.tensor([100_000, 70_000, 300, 0], dtype=torch.int32, device=device)

# The 512 best positions of each row, in ascending order; short rows end in -1.
indices = tamis.topk(scores, 512, row_ends=lengths)
print(f"{scores.device}: {tuple(indices.shape)} {indices.dtype}, row 2 has {int((indices[2] >= 0).sum())} positions")

# The same set as torch.topk's, row by row. Unlike there, ties have a rule, so a second run gives the same bits.
best = scores[0].topk(512).indices.sort().values
print("row 0 is torch.topk's set:", torch.equal(best, indices[0].long()))

# Into a buffer of your own; nothing is copied, and on a GPU nothing waits.
out = torch.empty(4, 512, dtype=torch.int32, device=device)
tamis.topk(scores, 512, row_ends=lengths, out=out)
print("into out=:", torch.equal(out, indices))

if device == "cuda":
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tamis.topk(scores, 512, row_ends=lengths, out=out)
    lengths.fill_(600)  # a replay reads what is there then
    graph.replay()
    print("replayed with other lengths:", torch.equal(out, tamis.topk(scores[:, :600], 512)))
