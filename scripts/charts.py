#!/usr/bin/env python3
"""Draws the charts and the figures of the README from the measurements in docs/measurements.

  scripts/charts.py           writes docs/measurements/charts/*.svg and the measured part of README.md
  scripts/charts.py --check   writes nothing; exits with 1 and names what is out of date

Measurements are the JSON lines that `tamis bench ... --json` and scripts/bench_transformers.py print. Where a file holds
several lines of the same case, the last one counts. The output depends on these files alone: no dates, no randomness.
"""

import argparse
import json
import math
import os
import sys
from xml.sax.saxutils import escape

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOLDER = os.path.join("docs", "measurements")
BEGIN, END = "<!-- measured: begin (scripts/charts.py writes this part) -->", "<!-- measured: end -->"

# Everything of a row that is not what it measured.
RESULTS = {"us", "spread", "floor_us", "goal_us", "checked", "repeats", "commit", "bytes", "flops", "entries", "digits",
           "right", "share"}
TORCH = "torch.topk"  # the algorithm of its rows in GPU files
# Shape by name, in the order of labels. A head size goes with its cache layout and is left out.
SHAPE = ["rows", "width", "columns", "k", "ratio", "requests", "tokens", "heads", "window", "topk"]


def read_lines(name):
    """All rows of docs/measurements/<name>; none where there is no such file."""
    path = os.path.join(ROOT, FOLDER, name)
    if not os.path.exists(path):
        return
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError as error:
                raise SystemExit(f"charts: {FOLDER}/{name}:{number}: not JSON: {error}")


def read_rows(name):
    """The last row of each case, in the order of their first appearance."""
    rows = {}
    for row in read_lines(name):
        key = json.dumps({k: v for k, v in row.items() if k not in RESULTS and not isinstance(v, (float, list))},
                         sort_keys=True)
        rows[key] = row
    return list(rows.values())


def microseconds(value):
    if value >= 10000:
        return f"{value / 1000:.0f} ms"
    if value >= 1000:
        return f"{value / 1000:.2f} ms"
    return f"{value:.0f} us" if value >= 100 else f"{value:.1f} us" if value >= 10 else f"{value:.2f} us"


def case_name(row):
    """What distinguishes the row: dtype, shape, and what is not the usual."""
    parts = [row["dtype"]] + [f"{name} {row[name]:,}" for name in SHAPE if row.get(name, 0) != 0]
    if row["distribution"] != "normal":
        parts.append(row["distribution"].replace("_", " "))
    if row["algorithm"] not in ("simd", "simd_filter", "paged", "gathered"):
        parts.append(row["algorithm"].replace("_", " "))
    return ", ".join(parts)


def shape_name(row):
    """The shape as in the table of goals."""
    return f"{row['rows']:,} x {row['width']:,}, k {row['k']:,}"


# --- Drawing ---------------------------------------------------------------------------------------------------------

STYLE = """<style>
  text { font: 12px system-ui, sans-serif; fill: #1f2328; }
  .title { font-size: 14px; font-weight: 600; }
  .note, .axis { fill: #59636e; font-size: 11px; }
  .grid { stroke: #d1d9e0; } .goal { stroke: #bc4c00; stroke-dasharray: 4 3; } .goaltext { fill: #bc4c00; font-size: 11px; }
  .bar { fill: #0969da; } .other { fill: #8c959f; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .note, .axis { fill: #9198a1; } .grid { stroke: #3d444d; }
    .goal { stroke: #f0883e; } .goaltext { fill: #f0883e; } .bar { fill: #4493f8; } .other { fill: #656c76; }
  }
</style>"""

WIDTH, LABELS, VALUES, ROW = 900, 400, 130, 22


def bar_chart(title, note, bars, axis, goal=None, texts_from=0):
    """Horizontal bars. bars: (label, length, text, class), or None for a gap; axis: (largest, step, unit);
    goal: (position, text); texts_from: no text begins before this position."""
    largest, step, unit = axis
    left, right, top = LABELS + 10, WIDTH - VALUES, 52
    bottom = top + ROW * len(bars)
    at = lambda value: left + (right - left) * min(value, largest) / largest
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 44}" role="img" '
           f'aria-label="{escape(title)}">', STYLE,
           f'<text class="title" x="10" y="20">{escape(title)}</text>']
    tick = 0
    while tick <= largest + 1e-9:
        x = at(tick)
        out.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 6}" y2="{bottom}"/>')
        out.append(f'<text class="axis" x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{tick:g}{unit}</text>')
        tick += step
    for i, bar in enumerate(bars):
        if bar is None:
            continue
        label, length, text, kind = bar
        y = top + ROW * i
        out.append(f'<text x="{LABELS}" y="{y + 13}" text-anchor="end">{escape(label)}</text>')
        out.append(f'<rect class="{kind}" x="{left}" y="{y + 2}" width="{at(length) - left:.1f}" height="{ROW - 7}" rx="2"/>')
        out.append(f'<text x="{at(max(length, texts_from)) + 6:.1f}" y="{y + 13}">{escape(text)}</text>')
    if goal:
        x = at(goal[0])
        out.append(f'<line class="goal" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 6}" y2="{bottom}"/>')
        out.append(f'<text class="goaltext" x="{x:.1f}" y="{top - 11}" text-anchor="middle">{escape(goal[1])}</text>')
    out.append(f'<text class="note" x="10" y="{bottom + 34}">{escape(note)}</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"


def commits(rows):
    """The commits of some rows, in the order in which they are met."""
    names = list(dict.fromkeys(row["commit"] for row in rows))
    return f"commit{'' if len(names) == 1 else 's'} {', '.join(names)}"


def machine(rows):
    row = rows[-1]
    if row.get("device") == "cuda":
        return f"{row['gpu']}, driver {row['driver']}, CUDA {row['cuda']}, {commits(rows)}"
    threads = row["threads"]
    return f"{row['cpu']}, {threads} thread{'' if threads == 1 else 's'}, commit {row['commit']}"


def floor_chart(title, rows, goal=None):
    """How much of the floor's speed is reached."""
    rows = [row for row in rows if row.get("floor_us")]
    bars = []
    for row in rows:
        share = 100 * row["floor_us"] / row["us"]
        bars.append((case_name(row), share, f"{share:.0f}%, {microseconds(row['us'])}", "bar"))
    largest = max(100, max(bar[1] for bar in bars))
    return bar_chart(title, "Share of the floor's speed (floor / time). " + machine(rows), bars, (largest, 25, "%"), goal)


def recall_chart(rows):
    bars = [(f"{row['length']:,} tokens, topk {row['topk']}" + (", at random" if row["selection"] == "random" else ""),
             100 * row["share"], f"{100 * row['share']:.1f}% of {row['digits']}",
             "other" if row["selection"] == "random" else "bar") for row in rows]
    return bar_chart("Digits of codes that tiny-v4 finds again in a long text",
                     "Entries chosen by the indexer and, as a control, at random; fp8 caches. tamis recall --json", bars,
                     (100, 25, "%"), (99, "goal for topk 16"))


def transformers_chart(row):
    bars = []
    for what in ("prefill", "decode"):
        bars.append((f"{what}, tamis", row[f"{what}_us"] / 1000, f"{row[f'{what}_us'] / 1000:.2f} ms", "bar"))
        theirs = row[f"transformers_{what}_us"]
        bars.append((f"{what}, transformers {row['transformers']}", theirs / 1000, f"{theirs / 1000:.2f} ms", "other"))
    largest = max(bar[1] for bar in bars)
    step = next(s * 10**e for e in range(-4, 6) for s in (1, 2, 5) if largest / (s * 10**e) <= 6)
    return bar_chart(f"{row['model']} at {row['context']:,} tokens of context: time a token",
                     f"fp32, {machine([row])}, torch {row['torch']}", bars, (largest, step, " ms"))


# --- Top-k on the GPU ------------------------------------------------------------------------------------------------

KINDS_GOAL = 1.1  # kOtherKindsGoal of bench/cuda/topk_targets.hpp: the goal of other distributions over the normal time
KIND_NAMES = {"normal_plus_100": "normal + 100", "normal_times_1e_8": "normal x 1e-8", "relu_90": "ReLU, 90% zeros"}
HEADLINES = ((1, 262144, 512), (64, 262144, 512), (256, 1048576, 512))

GPU_STYLE = """<style>
  .cited { fill: none; stroke: #59636e; stroke-dasharray: 3 2; }
  .floormark { stroke: #1f2328; stroke-width: 2; } .goalmark { stroke: #bc4c00; stroke-width: 2; }
  .value { font-size: 10px; } .head { font-weight: 600; }
  @media (prefers-color-scheme: dark) {
    .cited { stroke: #9198a1; } .floormark { stroke: #e6edf3; } .goalmark { stroke: #f0883e; }
  }
</style>"""


def read_gpu_topk(name):
    """The last row of each case by (dtype, rows, width, k, distribution), in the order of their first appearance: ours,
    whatever its algorithm, and torch.topk's."""
    ours, torch = {}, {}
    for row in read_lines(name):
        case = (row["dtype"], row["rows"], row["width"], row["k"], row["distribution"])
        (torch if row["algorithm"] == TORCH else ours)[case] = row
    return ours, torch


def kind_ratio(row):
    """Time over that of the normal distribution in the same run, which the goal is a multiple of."""
    return KINDS_GOAL * row["us"] / row["goal_us"]


def log_ticks(least, most):
    """1, 2, 5, 10, ... from the last below `least` to the first that is no less than `most`."""
    steps = [digit * 10.0**power for power in range(-3, 9) for digit in (1, 2, 5)]
    first = max(i for i, step in enumerate(steps) if step < least)
    last = min(i for i, step in enumerate(steps) if step >= most)
    return steps[first:last + 1]


def gpu_topk_chart(title, ours, torch):
    """A group of bars for each shape of the table of goals, on one logarithmic axis of time."""
    bar_height, group_gap, left, right, top = 11, 9, 190, WIDTH - 130, 78
    groups = []  # (dtype, shape, our row, bars); a bar: (us, text, class)
    for case, row in ours.items():
        if "best_other_us" not in row:
            continue
        bars = [(row["us"], f"{microseconds(row['us'])}, {100 * row['floor_us'] / row['us']:.0f}% of floor", "bar"),
                (row["best_other_us"], f"{microseconds(row['best_other_us'])} {row['best_other']}", "cited")]
        if case in torch:
            bars.append((torch[case]["us"], f"{microseconds(torch[case]['us'])} torch.topk", "other"))
        else:
            bars.append((row["table_torch_us"], f"{microseconds(row['table_torch_us'])} torch.topk", "cited"))
        groups.append((row["dtype"], shape_name(row), row, bars))
    groups.sort(key=lambda group: group[0] != "fp32")  # stable: the table's order otherwise

    times = [bar[0] for group in groups for bar in group[3]]
    marks = [row[name] for _, _, row, _ in groups for name in ("floor_us", "goal_us")]
    ticks = log_ticks(min(times + marks), max(times + marks))
    at = lambda us: left + (right - left) * math.log(us / ticks[0]) / math.log(ticks[-1] / ticks[0])
    body, y, dtype = [], top, None
    for group_dtype, shape, row, bars in groups:
        if group_dtype != dtype:
            y += 0 if dtype is None else 6
            body.append(f'<text class="head" x="10" y="{y + 11}">{escape(group_dtype)}</text>')
            dtype = group_dtype
        body.append(f'<text x="{left - 10}" y="{y + bar_height * len(bars) / 2 + 4:g}" text-anchor="end">{escape(shape)}</text>')
        marks_y = f'y1="{y - 2}" y2="{y + bar_height + 1}"'
        for i, (us, text, kind) in enumerate(bars):
            end = at(us)
            body.append(f'<rect class="{kind}" x="{left}" y="{y + 1.5}" width="{end - left:.1f}" height="{bar_height - 3}" rx="1"/>')
            if i == 0:
                end = max(end, at(row["goal_us"]))
                body.append(f'<line class="floormark" x1="{at(row["floor_us"]):.1f}" x2="{at(row["floor_us"]):.1f}" {marks_y}/>')
                body.append(f'<line class="goalmark" x1="{at(row["goal_us"]):.1f}" x2="{at(row["goal_us"]):.1f}" {marks_y}/>')
            body.append(f'<text class="value" x="{end + 5:.1f}" y="{y + 9}">{escape(text)}</text>')
            y += bar_height
        y += group_gap
    bottom = y - group_gap + 6

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 58}" role="img" '
           f'aria-label="{escape(title)}">', STYLE, GPU_STYLE, f'<text class="title" x="10" y="20">{escape(title)}</text>']
    x = 10
    versions = sorted({torch[case]["torch"] for case in torch})
    for kind, text in (("bar", "tamis"), ("cited", "best other library, cited from another run of an H200"),
                       ("other", f"torch.topk {', '.join(versions)}, same run" if versions else ""),
                       ("floormark", "read floor"), ("goalmark", "goal")):
        if not text:
            continue
        if kind.endswith("mark"):
            out.append(f'<line class="{kind}" x1="{x + 9}" x2="{x + 9}" y1="33" y2="46"/>')
        else:
            out.append(f'<rect class="{kind}" x="{x}" y="35.5" width="18" height="9" rx="1"/>')
        out.append(f'<text class="note" x="{x + 24}" y="44">{escape(text)}</text>')
        x += 46 + round(5.7 * len(text))
    for us in ticks:
        unit = f"{us / 1000:g} ms" if us >= 1000 else f"{us:g} us"
        out.append(f'<line class="grid" x1="{at(us):.1f}" x2="{at(us):.1f}" y1="{top - 6}" y2="{bottom}"/>')
        for label_y in (top - 11, bottom + 14):
            out.append(f'<text class="axis" x="{at(us):.1f}" y="{label_y}" text-anchor="middle">{unit}</text>')
    out += body
    machines = machine([row for _, _, row, _ in groups] + list(torch.values()))
    for i, note in enumerate(("Time of a call in a replayed CUDA graph, inputs rotated past the L2; the axis is logarithmic. Normal scores. "
                              "Read floor: a kernel",
                              f"that only reads the same scores, in the same run; % of floor: floor / time. {machines}")):
        out.append(f'<text class="note" x="10" y="{bottom + 34 + 15 * i}">{escape(note)}</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"


def gpu_kinds_chart(title, ours):
    """Time of each kind of scores, relative to the normal one."""
    kinds = {}  # rows by shape
    for row in ours.values():
        if row["distribution"] != "normal" and row["goal_us"]:
            kinds.setdefault((row["dtype"], shape_name(row)), []).append(row)
    if not kinds:
        return None
    bars, used = [], []
    for (dtype, shape), rows in kinds.items():
        normal = [row for row in ours.values()
                  if (row["dtype"], shape_name(row), row["distribution"]) == (dtype, shape, "normal")]
        bars += [None] if bars else []
        for row in normal + rows:
            ratio = 1 if row["distribution"] == "normal" else kind_ratio(row)
            kind = KIND_NAMES.get(row["distribution"], row["distribution"].replace("_", " "))
            bars.append((f"{dtype}, {shape}: {kind}", ratio, f"{ratio:.2f}x, {microseconds(row['us'])}",
                         "other" if row["distribution"] == "normal" else "bar"))
        used += normal + rows
    largest = max(1.25, math.ceil(4 * max(bar[1] for bar in bars if bar)) / 4)
    return bar_chart(title, f"Time over that of normal scores in the same run. {machine(used)}", bars, (largest, 0.25, "x"),
                     (KINDS_GOAL, f"goal: at most {KINDS_GOAL}x"), texts_from=KINDS_GOAL)


def gpu_topk_figures(ours, torch):
    """Rows of the README: headlines, then what all shapes of the table of goals come to."""
    figures = []
    table = {case: row for case, row in ours.items() if "best_other_us" in row}
    for headline in HEADLINES:
        case = ("fp32", *headline, "normal")
        if case not in table:
            continue
        row = table[case]
        text = f"{100 * row['floor_us'] / row['us']:.0f}% of the speed of only reading them"
        text += f" (goal {microseconds(row['goal_us'])}); {row['best_other_us'] / row['us']:.2f}x as fast as {row['best_other']}"
        text += f" ({microseconds(row['best_other_us'])}, cited from another run)"
        if case in torch:
            text += f" and {torch[case]['us'] / row['us']:.1f}x torch.topk {torch[case]['torch']}"
        figures.append((f"top-k on the GPU, {shape_name(row)}, fp32", microseconds(row["us"]), text, machine([row])))
    if table:
        rows = sorted(table.values(), key=lambda row: row["floor_us"] / row["us"])
        share = lambda row: f"{100 * row['floor_us'] / row['us']:.0f}%"
        name = lambda row: f"{row['dtype']} {shape_name(row)}"
        figures.append(("top-k on the GPU, share of the read floor's speed", f"{share(rows[0])} to {share(rows[-1])}",
                        f"least at {name(rows[0])}, most at {name(rows[-1])}", machine(list(table.values()))))
        met = sum(row["us"] <= row["goal_us"] for row in rows)
        faster = sum(row["us"] < row["best_other_us"] for row in rows)
        hardly = sum(0.99 * row["best_other_us"] <= row["us"] < row["best_other_us"] for row in rows)
        by = f", in {hardly} of these by 1% or less" if hardly else ""
        figures.append(("top-k on the GPU, goals met", f"{met} of {len(rows)} shapes",
                        f"faster than the best other library in {faster}{by}; goals are set near what reading alone takes", machine(list(table.values()))))
    kinds = [row for row in ours.values() if row["distribution"] != "normal" and row["goal_us"]]
    if kinds:
        worst = max(kinds, key=kind_ratio)
        met = sum(row["us"] <= row["goal_us"] for row in kinds)
        figures.append(("top-k on the GPU, slowest kind of scores", f"{kind_ratio(worst):.2f}x the normal time",
                        f"{KIND_NAMES.get(worst['distribution'], worst['distribution'].replace('_', ' '))}, {shape_name(worst)}; "
                        f"goal at most {KINDS_GOAL}x, met by {met} of {len(kinds)}", machine(kinds)))
    return figures


# --- Compressor on the GPU --------------------------------------------------------------------------------------------

STEP_NAMES = {"save_only": "no entry completes", "boundary": "every request completes one", "steady": "steady state",
              "prefill": "prefill"}


def step_name(row):
    step, state = row["distribution"].split()
    ratio = f"C{row['ratio']}" + (" indexer" if row["head_dim"] == 128 else "")
    tokens = f"{row['tokens']:,} token{'' if row['tokens'] == 1 else 's'}"
    return f"{ratio}, {tokens}, {STEP_NAMES[step]}" + (", ring" if state == "ring" else "")


def read_gpu_steps(name):
    """Rows of a measured step by (step, form), e.g. ("C128, 1 token, no entry completes", "fused, graph")."""
    return {(step_name(row), row["algorithm"]): row for row in read_rows(name) if row["op"] == "compressor"}


def is_launches_alone(step):
    """Whether launches are all that the three of the benchmark differ in from the one: the kernel that pools in them is
    a plain one, so steps with entries are no fair comparison."""
    return STEP_NAMES["save_only"] in step


def steps_with_goals(rows):
    """Names of steps that have a goal, with the mode that it is for."""
    return [(step, form.split(", ")[1]) for (step, form), row in rows.items() if form.startswith("fused, ") and row["goal_us"]]


def gpu_steps_chart(title, rows):
    bars, used = [], []
    for step, mode in steps_with_goals(rows):
        for form, name, style in (("three_launches", "three launches", "other"), ("fused", "one launch", "bar")):
            row = rows.get((step, f"{form}, {mode}"))
            if row is None or (form != "fused" and not is_launches_alone(step)):
                continue
            used.append(row)
            label = microseconds(row["us"])
            if form == "fused":
                label += f", goal {microseconds(row['goal_us'])}, floor {microseconds(row['floor_us'])}"
            bars.append((f"{step}, {mode}: {name}", row["us"], label, style))
    if not bars:
        return None
    largest = 25 * math.ceil(max(bar[1] for bar in bars) / 25)
    return bar_chart(title, f"Time of a step of one layer. {machine(used)}", bars, (largest, 25, " us"))


def gpu_steps_figures(rows):
    figures = []
    for step, mode in steps_with_goals(rows):
        row, three = rows[step, f"fused, {mode}"], rows.get((step, f"three_launches, {mode}"))
        text = f"goal {microseconds(row['goal_us'])}, reading alone {microseconds(row['floor_us'])}"
        if three and is_launches_alone(step):
            text += f"; {three['us'] / row['us']:.1f}x as fast as three launches ({microseconds(three['us'])})"
        where = "in a graph" if mode == "graph" else "enqueued by the host"
        figures.append((f"compressor on the GPU, {step}, {where}", microseconds(row["us"]), text, machine([row])))
    return figures


# --- What there is ---------------------------------------------------------------------------------------------------


def outputs():
    """Texts by path below the root."""
    files, figures = {}, []
    chart = lambda name: f"{FOLDER}/charts/{name}.svg".replace(os.sep, "/")

    topk = [row for row in read_rows("topk_cpu.jsonl")]
    ours = [row for row in topk if row["algorithm"] != "nth_element_pairs"]
    if ours:
        files[chart("topk_cpu")] = floor_chart("Top-k against a SIMD sum of the same rows", ours, (50, "goal for 262,144 fp32, k 512"))
    for row in ours:
        if (row["rows"], row["width"], row["k"], row["dtype"], row["distribution"]) != (1, 262144, 512, "fp32", "normal"):
            continue
        figures.append(("top-k of 262,144 fp32 scores, k 512", microseconds(row["us"]),
                        f"{100 * row['floor_us'] / row['us']:.0f}% of the speed of a SIMD sum of the row (goal 50%)",
                        machine([row])))
        for other in topk:
            if other["algorithm"] == "nth_element_pairs" and all(
                    other[name] == row[name] for name in ("rows", "width", "k", "dtype", "distribution", "threads")):
                figures.append(("the same by `std::nth_element` over pairs", microseconds(other["us"]),
                                f"tamis is {other['us'] / row['us']:.1f}x as fast (goal 5x)", machine([other])))
    gpu, torch = read_gpu_topk("topk_h200.jsonl")
    if any("best_other_us" in row for row in gpu.values()):
        files[chart("topk_h200")] = gpu_topk_chart("Top-k on the GPU beside other libraries", gpu, torch)
    kinds = gpu_kinds_chart("Top-k on the GPU, other kinds of scores", gpu)
    if kinds:
        files[chart("topk_h200_distributions")] = kinds
    figures += gpu_topk_figures(gpu, torch)
    steps = read_gpu_steps("compressor_h200.jsonl")
    steps_chart = gpu_steps_chart("A step of a compressor on the GPU: three launches and one", steps)
    if steps_chart:
        files[chart("compressor_h200")] = steps_chart
    figures += gpu_steps_figures(steps)
    for name, title in (("compressor_cpu", "Compressor steps"), ("indexer_cpu", "Index scores and selection"),
                        ("sparse_mla_cpu", "Sparse attention")):
        rows = read_rows(name + ".jsonl")
        if rows:
            files[chart(name)] = floor_chart(title + " against their floors", rows)
    for row in read_rows("transformers_cpu.jsonl"):
        if row["context"] == 2048:
            if row["threads"] == 1:
                files[chart("transformers_cpu")] = transformers_chart(row)
            figures.append((f"decode of {row['model']} at 2,048 tokens, fp32", microseconds(row["decode_us"]) + " a token",
                            f"{row['decode_ratio']:.1f}x transformers {row['transformers']}, threads equal (goal 5x)",
                            machine([row])))
    for row in read_rows("engine_cpu.jsonl"):
        if row["op"] == "engine_decode" and row["context"] >= 60000:
            peak, goal = row["peak_rss_bytes"] / 1e6, row["peak_rss_goal_bytes"] / 1e6
            figures.append((f"{row['model']} with {row['context']:,} tokens, {row['kv_cache']} cache", f"{peak:.0f} MB peak",
                            f"goal: below caches + weights + 200 MB = {goal:.0f} MB", machine([row])))
    recall = [row for row in read_rows("recall_cpu.jsonl") if row["kv_cache"] == "fp8"]
    if recall:
        files[chart("recall_cpu")] = recall_chart(recall)
    for row in recall:
        if row["topk"] == 16:
            goal = "below 45%, the control" if row["selection"] == "random" else "at least 99%" if row["length"] <= 2048 else "at least 98.5%"
            figures.append((f"codes found in {row['length']:,} tokens, 16 entries "
                            + ("at random" if row["selection"] == "random" else "by the indexer"),
                            f"{100 * row['share']:.1f}% of {row['digits']} digits", f"goal: {goal}", "any machine"))

    readme = os.path.join(ROOT, "README.md")
    text = ""
    if os.path.exists(readme):
        with open(readme, encoding="utf-8") as file:
            text = file.read()
    if BEGIN in text and END in text and figures:
        lines = ["", "| what | measured | | where |", "| --- | --- | --- | --- |"]
        lines += ["| " + " | ".join(figure) + " |" for figure in figures]
        lines += ["", f"How to repeat it: [{FOLDER}]({FOLDER}/README.md).".replace(os.sep, "/"), ""]
        for name, alt in (("recall_cpu", "Digits found again, by the indexer's choice and at random"),
                          ("topk_cpu", "Top-k against a SIMD sum of the same rows"),
                          ("topk_h200", "Top-k on the GPU beside other libraries"),
                          ("topk_h200_distributions", "Top-k on the GPU, other kinds of scores over the normal one"),
                          ("compressor_h200", "A step of a compressor on the GPU: three launches and one"),
                          ("transformers_cpu", "Time a token beside transformers")):
            if chart(name) in files:
                lines += [f"![{alt}]({chart(name)})", ""]
        before, rest = text.split(BEGIN, 1)
        files["README.md"] = before + BEGIN + "\n".join(lines) + END + rest.split(END, 1)[1]
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say what is out of date")
    args = parser.parse_args()
    files = outputs()
    stale = []
    for path, text in files.items():
        full = os.path.join(ROOT, path)
        current = None
        if os.path.exists(full):
            with open(full, encoding="utf-8") as file:
                current = file.read()
        if current == text:
            continue
        stale.append(path)
        if not args.check:
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as file:
                file.write(text)
    charts = os.path.join(ROOT, FOLDER, "charts")
    for name in sorted(os.listdir(charts)) if os.path.isdir(charts) else []:
        path = f"{FOLDER}/charts/{name}".replace(os.sep, "/")
        if name.endswith(".svg") and path not in files:
            stale.append(path)  # its measurements are gone
            if not args.check:
                os.remove(os.path.join(charts, name))
    for path in stale:
        print(f"{path}: {'out of date: run scripts/charts.py' if args.check else 'written' if path in files else 'removed'}")
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
