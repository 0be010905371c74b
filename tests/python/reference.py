"""What the operations are, in numpy and double precision, written from the formulas of docs/spec."""

import numpy as np

ROPE_DIMS = 64


def topk(scores, k, starts=None, ends=None):
    """[rows, k] positions relative to each row's start by ascending position, and by falling value; -1 behind."""
    rows, width = scores.shape
    by_position = np.full((rows, k), -1, dtype=np.int64)
    by_value = by_position.copy()
    for r in range(rows):
        start = 0 if starts is None else min(max(int(starts[r]), 0), width)
        end = width if ends is None else min(int(ends[r]), width)
        row = scores[r, start : max(start, end)].astype(np.float64)
        rank_as = np.where(np.isnan(row), 0.0, row)
        # Last key first: NaN behind everything, then the larger value, then the lower position.
        order = np.lexsort((np.arange(row.size), -rank_as, np.isnan(row)))[:k]
        by_value[r, : order.size] = order
        by_position[r, : order.size] = np.sort(order)
    return by_position, by_value


def rope(x, position, theta=10000.0):
    """Rotates the last 64 numbers of a vector in interleaved pairs."""
    out = x.copy()
    angle = position * theta ** (-np.arange(0, ROPE_DIMS, 2) / ROPE_DIMS)
    even, odd = x[-ROPE_DIMS::2], x[-ROPE_DIMS + 1 :: 2]
    out[-ROPE_DIMS::2] = even * np.cos(angle) - odd * np.sin(angle)
    out[-ROPE_DIMS + 1 :: 2] = odd * np.cos(angle) + even * np.sin(angle)
    return out


def cos_sin(positions, theta=10000.0):
    """The table that the operations take: [positions, 64], cos then sin."""
    angle = np.arange(positions)[:, None] * theta ** (-np.arange(0, ROPE_DIMS, 2) / ROPE_DIMS)
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)


def compressed_entry(kv, gate, ape, norm_weight, entry, ratio, overlap, eps):
    """Entry `entry` of one request whose tokens begin at position 0."""
    d = norm_weight.size
    kv, gate = kv.astype(np.float64), gate.astype(np.float64)
    own = slice(entry * ratio, (entry + 1) * ratio)
    half = slice(d, 2 * d) if overlap else slice(0, d)
    values, gates = [kv[own, half]], [gate[own, half] + ape[:, half]]
    if overlap and entry > 0:
        before = slice((entry - 1) * ratio, entry * ratio)
        values.append(kv[before, :d])
        gates.append(gate[before, :d] + ape[:, :d])
    values, gates = np.concatenate(values), np.concatenate(gates)
    weight = np.exp(gates - gates.max(axis=0))
    pooled = (values * weight).sum(axis=0) / weight.sum(axis=0)
    normed = pooled / np.sqrt((pooled**2).mean() + eps) * norm_weight
    return rope(normed, entry * ratio)


def index_scores(q, weights, keys):
    """[rows, columns] of rows of queries [rows, heads, 128] against keys [columns, 128]."""
    products = np.einsum("rhd,cd->rhc", q.astype(np.float64), keys.astype(np.float64))
    return np.einsum("rh,rhc->rc", weights.astype(np.float64), np.maximum(products, 0))


def attention(q, keys, lists, sink, scale):
    """[rows, heads, 512] and lse [rows, heads]; lists of slots a row, negative ones invalid."""
    rows, heads, _ = q.shape
    out = np.zeros((rows, heads, 512))
    lse = np.full((rows, heads), -np.inf)
    for r in range(rows):
        slots = [s for s in lists[r] if 0 <= s < len(keys)]
        if not slots:
            continue
        chosen = keys[slots].astype(np.float64)
        logits = scale * q[r].astype(np.float64) @ chosen.T
        lse[r] = np.log(np.exp(logits).sum(axis=1))
        out[r] = np.exp(logits) @ chosen[:, :512] / (np.exp(logits).sum(axis=1) + np.exp(sink))[:, None]
    return out, lse
