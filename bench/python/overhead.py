#!/usr/bin/env python3
"""What a call of tamis.topk from Python costs the host, beside a bare kernel launch from C++.

On CUDA the host's part of a call is measured: a batch of calls is enqueued, which the GPU's queue swallows, and the
clock stops before the GPU is waited for. The bare launch is bare_launch.cu beside this, built with nvcc. Without a GPU
the whole call on the CPU is measured, on rows so short that the work is nothing.

Usage: bench/python/overhead.py [--json FILE]
"""

import argparse
import ctypes
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

import tamis
import tamis.torch
from tamis.compat import vllm

BATCH, REPEATS = 200, 41  # CUDA's queue takes 1,024 launches before a launch waits
WARM_UP_SECONDS = 2.0  # a machine that was idle gets faster for about a second
GOAL_US = 6.0
BARE = "bare launch"


def host_us(call, device):
    """Mean host microseconds of a batch of calls."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(BATCH):
        call()
    return (time.perf_counter() - start) / BATCH * 1e6


def build_bare_launch(folder):
    """A function that gives the mean host microseconds of a batch of bare launches."""
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        sys.exit("overhead: nvcc is not installed, so there is no bare launch to compare with")
    source, library = Path(__file__).with_name("bare_launch.cu"), Path(folder) / "bare_launch.so"
    subprocess.run([nvcc, "-O3", "-shared", "-Xcompiler", "-fPIC", source, "-o", library], check=True)
    function = ctypes.CDLL(str(library)).bare_launch_us
    function.restype = ctypes.c_double
    return lambda: function(BATCH)


def commit():
    """The commit that is measured: from git, or as `scripts/dev.sh python-stage` wrote it down."""
    root = Path(__file__).resolve().parents[2]
    noted = root / "COMMIT"
    if noted.exists():
        return noted.read_text().strip()
    describe = ["git", "-C", root, "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(describe, capture_output=True, text=True, check=True).stdout.strip()


def driver():
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0].strip()


def measure(cases, bare_launch, device):
    """Samples by case. All take turns, so that a change of clock or a busy neighbour meets all of them."""
    samples = {name: [] for name in cases} | ({BARE: []} if bare_launch else {})
    warm = time.perf_counter() + WARM_UP_SECONDS
    while time.perf_counter() < warm or len(samples[next(iter(cases))]) < REPEATS:
        if time.perf_counter() < warm:
            samples = {name: [] for name in samples}
        for name, call in cases.items():
            samples[name].append(host_us(call, device))
        if bare_launch:
            samples[BARE].append(bare_launch())
    return samples


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="append a JSON line a case to this file")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"

    scores = torch.randn(4, 512, device=device)
    ends = torch.full((4,), 300, dtype=torch.int32, device=device)
    out = torch.empty(4, 64, dtype=torch.int32, device=device)
    cases = {
        "topk, out=": lambda: tamis.topk(scores, 64, num_threads=1, out=out),
        "topk, out= and row_ends": lambda: tamis.topk(scores, 64, row_ends=ends, num_threads=1, out=out),
        "topk, new output": lambda: tamis.topk(scores, 64, num_threads=1),
        "vllm.persistent_topk": lambda: vllm.persistent_topk(scores, ends, out, None, 64, 512),
        "torch.ops.tamis.topk_out": lambda: torch.ops.tamis.topk_out(scores, 64, None, ends, out=out),
        "torch.empty of the output": lambda: torch.empty((4, 64), dtype=torch.int32, device=device),
        "torch.topk": lambda: torch.topk(scores, 64),
    }
    # Right before it is timed: the same as on the CPU.
    tamis.topk(scores, 64, row_ends=ends, out=out)
    if not torch.equal(out.cpu(), tamis.topk(scores.cpu(), 64, row_ends=ends.cpu())):
        sys.exit("overhead: the result differs from that of the CPU")
    with tempfile.TemporaryDirectory() as folder:
        bare_launch = build_bare_launch(folder) if device == "cuda" else None
        times = measure(cases, bare_launch, device)
    bare = statistics.median(times.pop(BARE)) if bare_launch else 0.0
    if bare_launch:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: bare launch {bare:.2f} us")
    met = True
    for name, samples in times.items():
        first, us, third = statistics.quantiles(samples, n=4)
        more = f", {us - bare:5.2f} us more than the bare launch" if bare_launch else ""
        print(f"{name:26} {us:6.2f} us (middle half within {third - first:.2f}){more}")
        if name.startswith("topk"):
            met &= us - bare < GOAL_US
        if options.json:
            row = {"op": "python_overhead", "case": name, "us": round(us, 3), "spread": round((third - first) / us, 4),
                   "device": device, "checked": not name.startswith("torch."), "repeats": REPEATS,
                   "torch": torch.__version__, "commit": commit()}
            if bare_launch:
                row |= {"floor_us": round(bare, 3), "goal_us": round(bare + GOAL_US, 3), "driver": driver(),
                        "gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda}
            with options.json.open("a") as file:
                file.write(json.dumps(row) + "\n")
    if device == "cpu":
        print("no GPU: the whole call, work included; the goal is about a GPU")
        return 0
    print(f"goal, less than {GOAL_US:g} us more than the bare launch: {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
