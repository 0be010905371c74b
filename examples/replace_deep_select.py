#!/usr/bin/env python3
"""In the place of DeepSelect: one import changes, the calls stay.

Usage: examples/replace_deep_select.py [cpu|cuda]
"""

import sys

import torch

from tamis.compat import deep_select  # was: import deep_select

device = sys.argv[1] if len(sys.argv) > 1 else ("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)

# DeepSelect asks for rows that are a multiple of 1,024 bytes apart; here any row will do.
logits = torch.randn(2, 129_281, dtype=torch.bfloat16, device=device)
end = torch.tensor([129_281, 700], dtype=torch.int32, device=device)
values, indices = deep_select.topk(logits, 1000, end=end, sorted_index=True, indices_type=torch.int32)
print(f"{device}: values {tuple(values.shape)} {values.dtype}, indices {indices.dtype}")
print("ascending:", bool((indices[0].diff() > 0).all()))
print("behind the 700 of row 1:", indices[1, 700].item(), values[1, 700].item())
