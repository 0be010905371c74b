#!/usr/bin/env python3
"""Runs a DeepSeek-V4 checkpoint in transformers and in tamis, side by side, and prints how much faster tamis is.

Both read the same made-up prompt and then write greedily, one request, fp32 weights and fp32 caches, on the CPU with
the same number of threads. Times are medians over all decode steps of all repeats, after a warm-up. The written tokens
are compared, so that two programs that do different things are not compared by speed.

Needs torch and transformers 5.17 or newer; exits with 3 and says so where they are missing. Exit codes: 0 done,
1 the tokens differ, 2 tamis failed or wrong usage, 3 torch or transformers is missing.

Example:
  scripts/bench_transformers.py --model models/tiny-v4 --context 2048 --threads 1 --tamis build/release/tamis
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GOAL_RATIO = 5.0  # decode at 2,048 tokens of context


def made_up_prompt(tokens, vocab_size):
    """The prompt of `tamis bench engine` (bench/ops.hpp, engine_prompt): both sides must read the same."""
    prompt, x = [], 12345
    for _ in range(tokens):
        x = (1103515245 * x + 12345) % 2**31
        prompt.append((x >> 16) % vocab_size)
    return prompt


def run_tamis(args):
    """Rows of `tamis bench engine` by op."""
    command = [args.tamis, "bench", "engine", "--model", args.model, "--context", str(args.context),
               "--new-tokens", str(args.new_tokens), "--threads", str(args.threads), "--repeats", str(args.repeats),
               "--kv-cache", "fp32", "--json"]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"bench_transformers: {' '.join(command)}: {error}", file=sys.stderr)
        sys.exit(2)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row["op"]: row for row in rows}


def set_threads(threads):
    # Before torch is imported: its OpenMP reads these once.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the model is a local folder
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def import_torch():
    try:
        import torch
        import transformers
    except ImportError as error:
        print(f"bench_transformers: needs torch and transformers >= 5.17 (pip install torch transformers): {error}",
              file=sys.stderr)
        sys.exit(3)
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2] if part.isdigit())
    if version < (5, 17):
        print(f"bench_transformers: transformers is {transformers.__version__}, must be 5.17 or newer: older ones have "
              "no DeepSeek-V4 or another one", file=sys.stderr)
        sys.exit(3)
    return torch, transformers


def load_model(torch, transformers, directory):
    """The model in fp32, and whether every weight came out of the checkpoint."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True)
    missing = sorted(info.get("missing_keys", []))
    if missing:
        print(f"bench_transformers: {len(missing)} weights were not in the checkpoint and are random, e.g. {missing[0]}: "
              "times hold, tokens will differ", file=sys.stderr)
    model.eval()
    return model, not missing


def run_transformers(torch, model, prompt, new_tokens, repeats, chunk):
    """Prefill time of each repeat, time of each decode step, and the tokens of the last repeat."""
    ids = torch.tensor([prompt], dtype=torch.long)

    def last_logits(inputs, past):
        out = model(input_ids=inputs, past_key_values=past, use_cache=True, logits_to_keep=1)
        return out.logits[0, -1], out.past_key_values

    def prefill():
        past = None
        for begin in range(0, len(prompt), chunk):
            logits, past = last_logits(ids[:, begin:begin + chunk], past)
        return logits, past

    prefill_seconds, decode_seconds, tokens = [], [], []
    with torch.inference_mode():
        logits, past = last_logits(ids[:, :min(len(prompt), 256)], None)  # warm-up: first calls allocate and choose kernels
        for _ in range(3):
            logits, past = last_logits(logits.argmax().view(1, 1), past)
        for repeat in range(repeats):
            start = time.perf_counter()
            logits, past = prefill()
            token = logits.argmax().view(1, 1)
            prefill_seconds.append(time.perf_counter() - start)
            tokens = [int(token)]
            for _ in range(new_tokens - 1):
                start = time.perf_counter()
                logits, past = last_logits(token, past)
                token = logits.argmax().view(1, 1)
                tokens.append(int(token))
                decode_seconds.append(time.perf_counter() - start)
            if sys.stderr.isatty():
                print(f"\rtransformers: run {repeat + 1} of {repeats} ", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)
    return prefill_seconds, decode_seconds, tokens


def spread(samples):
    if len(samples) < 2:
        return 0.0
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return (high - low) / statistics.median(samples)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=os.path.join(ROOT, "models", "tiny-v4"), help="model folder")
    parser.add_argument("--tamis", default=os.path.join(ROOT, "build", "release", "tamis"), help="the tamis program")
    parser.add_argument("--context", type=int, default=2048, help="tokens of the prompt (default 2048)")
    parser.add_argument("--new-tokens", type=int, default=32, help="tokens to write (default 32)")
    parser.add_argument("--threads", type=int, default=1, help="threads of both (default 1)")
    parser.add_argument("--repeats", type=int, default=3, help="whole runs of each (default 3)")
    parser.add_argument("--chunk", type=int, default=0,
                        help="prompt tokens a forward pass of transformers; 0, the default: the whole prompt at once")
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    args = parser.parse_args()
    if args.context < 1 or args.new_tokens < 2 or args.threads < 1 or args.repeats < 1 or args.chunk < 0:
        parser.error("--context, --threads and --repeats must be at least 1, --new-tokens 2, --chunk 0")

    set_threads(args.threads)
    torch, transformers = import_torch()
    torch.set_num_threads(args.threads)
    torch.set_num_interop_threads(1)

    ours = run_tamis(args)
    model, weights_loaded = load_model(torch, transformers, args.model)
    prompt = made_up_prompt(args.context, model.config.vocab_size)
    prefill, decode, tokens = run_transformers(torch, model, prompt, args.new_tokens, args.repeats,
                                               args.chunk or args.context)

    theirs_prefill_us = statistics.median(prefill) * 1e6 / args.context
    theirs_decode_us = statistics.median(decode) * 1e6
    our_prefill, our_decode = ours["engine_prefill"], ours["engine_decode"]
    agree = our_decode["tokens"] == tokens
    row = {
        "op": "engine_vs_transformers",
        "device": "cpu",
        "cpu": our_decode["cpu"],
        "dtype": "fp32",
        "model": os.path.basename(os.path.normpath(args.model)),
        "context": args.context,
        "new_tokens": args.new_tokens,
        "threads": args.threads,
        "repeats": len(decode),
        "decode_us": our_decode["us"],
        "decode_spread": our_decode["spread"],
        "transformers_decode_us": theirs_decode_us,
        "transformers_decode_spread": spread(decode),
        "decode_ratio": theirs_decode_us / our_decode["us"],
        "goal_ratio": GOAL_RATIO,
        "prefill_us": our_prefill["us"],
        "transformers_prefill_us": theirs_prefill_us,
        "prefill_ratio": theirs_prefill_us / our_prefill["us"],
        "tokens_agree": agree,
        "weights_loaded": weights_loaded,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "commit": our_decode["commit"],
    }
    if not args.json:
        print(f"{row['cpu']}, {args.threads} thread{'s' if args.threads > 1 else ''}, {row['model']} in fp32, "
              f"{args.context} tokens of context; torch {row['torch']}, transformers {row['transformers']}, "
              f"tamis {row['commit']}")
        print(f"{'':10} {'tamis':>14} {'transformers':>14} {'ratio':>8}")
        print(f"{'prefill':10} {row['prefill_us']:11.0f} us {theirs_prefill_us:11.0f} us {row['prefill_ratio']:7.1f}x"
              "   a token of the prompt")
        print(f"{'decode':10} {row['decode_us']:11.0f} us {theirs_decode_us:11.0f} us {row['decode_ratio']:7.1f}x"
              f"   a new token; goal {GOAL_RATIO:.0f}x")
        print(f"the {len(tokens)} new tokens " + ("agree" if agree else f"differ: {our_decode['tokens']} and {tokens}"))
    print(json.dumps(row))
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
