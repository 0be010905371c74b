#!/usr/bin/env python3
"""A whole DeepSeek-V4 model writes text, several requests at once.

Usage: examples/generate.py [MODEL]   (default: models/tiny-v4 of this repository)
"""

import sys
from pathlib import Path

import tamis

model = sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parents[1] / "models" / "tiny-v4"
engine = tamis.Engine(model, kv_cache="fp8")

told = "The code of amber is 482913.\nThe code of cedar is 170624.\n\n"
texts = {}
for name in ("amber", "cedar"):
    prompt = f"{told}The code of {name} is"
    texts[prompt] = []
    engine.add(prompt, 8, on_text=texts[prompt].append)
engine.run()
for prompt, pieces in texts.items():
    print(prompt.splitlines()[-1] + "".join(pieces))
print(f"{engine.stats['steps']} steps for {engine.stats['new_tokens']} new tokens")
