#!/usr/bin/env python3
"""Writes bench/compressor_costs.inc, what a step of a compressor costs, from docs/measurements/compressor_h200.jsonl.

Usage: scripts/compressor_costs.py [--check]
With --check nothing is written; exits with 1 if the file is not what would be written.
"""

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MEASURED = ROOT / "docs/measurements/compressor_h200.jsonl"
COSTS = ROOT / "bench/compressor_costs.inc"

KINDS = {(128, 512): "kC128", (4, 512): "kC4", (4, 128): "kIndexer"}
FORMS = {
    "three_launches": "kThreeLaunches",
    "three_launches_skip": "kThreeLaunchesSkip",
    "fused": "kFused",
    "fused_skip": "kFusedSkip",
}


def costs(lines):
    """Rows by (kind, step, tokens, form): microseconds by mode. State is paged, as decode is measured."""
    rows = {}
    for line in lines:
        row = json.loads(line)
        if row["op"] != "compressor":
            continue
        step, state = row["distribution"].split()
        form, mode = row["algorithm"].split(", ")
        if state != "paged" or step not in ("save_only", "boundary", "prefill") or form not in FORMS:
            continue
        kind = KINDS[row["ratio"], row["head_dim"]]
        rows.setdefault((kind, step, row["tokens"], form), {})[mode] = row["us"]
    return rows


def text(rows):
    kinds, steps = list(KINDS.values()), ["save_only", "boundary", "prefill"]
    order = sorted(rows, key=lambda r: (kinds.index(r[0]), steps.index(r[1]), list(FORMS).index(r[3]), r[2]))
    lines = ["// Written by scripts/compressor_costs.py. Kind, step, tokens, form, microseconds eager and in a graph."]
    for kind, step, tokens, form in order:
        us = rows[kind, step, tokens, form]
        lines.append(
            f'{{CompressorKind::{kind}, "{step}", {tokens}, StepForm::{FORMS[form]}, {us["eager"]:.2f}, {us["graph"]:.2f}}},'
        )
    return "\n".join(lines) + "\n"


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    wanted = text(costs(MEASURED.read_text().splitlines()))
    if sys.argv[1:]:
        if COSTS.read_text() != wanted:
            sys.exit(f"{COSTS} is not up to date: run scripts/compressor_costs.py")
        return
    COSTS.write_text(wanted)


if __name__ == "__main__":
    main()
