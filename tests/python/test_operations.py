"""The other operations on numpy arrays against their formulas: what the package hands over arrives where it belongs."""

import numpy as np
import pytest

import reference
import tamis

RNG = np.random.default_rng(11)


def normal(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


@pytest.mark.parametrize(("ratio", "tokens"), [(4, 11), (128, 300)])
@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("paged", [False, True])
def test_compress(ratio, tokens, chunk, paged):
    overlap, d, eps = ratio == 4, 512, 1e-6
    width = (2 if overlap else 1) * d
    kv, gate, ape, weight = normal(tokens, width), normal(tokens, width), normal(ratio, width), 1 + normal(d) / 4
    cache = tamis.PagedCache(np.full((1, 4, d), np.nan, np.float32), "fp32", d, page_size=4)
    block, blocks = 8, -(-tokens // 8)
    if paged:
        state = np.full((blocks, block, 2 * width), np.nan, np.float32)
        where = {"state_table": np.arange(blocks, dtype=np.int32)[None]}
    else:
        rows = tamis.compress_ring_rows(ratio, overlap, 0)
        state = np.full((1, rows, 2 * width), np.nan, np.float32)
        where = {"state_ring": np.zeros(1, np.int32)}
    for begin in range(0, tokens, chunk or tokens):
        part = np.arange(begin, min(tokens, begin + (chunk or tokens)))
        if paged:
            where["state_slots"] = part
        tamis.compress(
            kv[part],
            gate[part],
            ape=ape,
            norm_weight=weight,
            cos_sin=reference.cos_sin(tokens),
            positions=part,
            token_to_request=np.zeros(part.size, np.int32),
            query_start_loc=np.array([0, part.size], np.int32),
            state=state,
            cache=cache,
            kv_slots=part // ratio,
            compress_ratio=ratio,
            rms_norm_eps=eps,
            plan=tamis.compress_plan([begin], [part.size], ratio),
            **where,
        )
    for entry in range(4):
        got = cache.data[0, entry]
        if (entry + 1) * ratio > tokens:
            assert np.isnan(got).all()
            continue
        expected = reference.compressed_entry(kv, gate, ape, weight, entry, ratio, overlap, eps)
        # Sums of at most 512 fp32 terms of size 1, and cos/sin rounded to fp32.
        np.testing.assert_allclose(got, expected, rtol=0, atol=512 * 2.0**-24 * np.abs(expected).max())


def test_plan():
    plan = tamis.compress_plan
    assert plan([127], [1], 128) is tamis.CompressPlan.SOME
    assert plan([126], [1], 128) is tamis.CompressPlan.NONE
    assert plan(np.array([126]), np.array([1]), 128, start_hi=np.array([127])) is tamis.CompressPlan.UNKNOWN
    assert plan([126], [1], 128, capturing=True) is tamis.CompressPlan.UNKNOWN
    assert tamis.compress_ring_rows(128, False, 8) == 256
    assert tamis.compress_state_begin(130, 4, True) == 124


@pytest.mark.parametrize("layout", ["fp32", "bf16", "fp8_mla584", "fp8_tensor"])
def test_cache(layout):
    cache = tamis.PagedCache.empty(3, layout, 512, page_size=4, scale=0.5)
    rows = RNG.integers(-4, 5, (3, 512)).astype(np.float32)  # exact in every format
    slots = np.array([11, 0, 5], np.int32)
    cache.write(rows, slots)
    np.testing.assert_array_equal(cache.read(slots), rows)
    out = np.full((4, 512), np.nan, np.float32)
    assert cache.read(np.array([5, -1, 12, 11]), out=out) is out
    np.testing.assert_array_equal(out, [rows[2], 0 * rows[0], 0 * rows[0], rows[0]])


@pytest.mark.parametrize("form", ["fp32", "fp8", "mxfp4"])
def test_indexer(form):
    tokens, heads, columns, page_size = 5, 8, 40, 8
    q, weights, keys = normal(tokens, heads, 128), normal(tokens, heads), normal(columns, 128)
    table = np.array([3, 0, 4, 1, 2], dtype=np.int32)[None]
    layout = {"fp32": "fp32", "fp8": "indexer_fp8", "mxfp4": "indexer_mxfp4"}[form]
    cache = tamis.PagedCache.empty(5, layout, 128, page_size)
    column = np.arange(columns)
    cache.write(keys, table[0, column // page_size] * page_size + column % page_size)
    queries, scaled, *scale = tamis.index_query(
        q, weights, np.arange(tokens), reference.cos_sin(tokens), format=form, num_threads=1
    )
    ends = np.array([40, 0, 7, 33, -5], np.int32)
    score = {
        "format": form,
        "index_q_scale": scale[0] if scale else None,
        "page_table": table,
        "row_to_table": np.zeros(tokens, np.int32),
    }
    logits = tamis.index_logits(queries, scaled, cache, ends, **score)
    assert logits.shape == (tokens, columns)
    rotated = np.stack([[reference.rope(h, t) for h in row] for t, row in enumerate(q.astype(np.float64))])
    expected = reference.index_scores(rotated, weights * 128**-0.5 * heads**-0.5, keys)
    inside = column < ends[:, None]
    assert np.isneginf(logits[~inside]).all()
    # Numbers of one head add up 128 products, each as exact as the format: fp32 24 bits, e4m3 4, e2m1 2.
    step = {"fp32": 2.0**-18, "fp8": 2.0**-4, "mxfp4": 2.0**-1}[form]
    assert np.abs(logits - expected)[inside].max() < step * np.abs(expected).max()
    indices, values = tamis.index_topk(queries, scaled, cache, ends, 6, values=True, **score)
    np.testing.assert_array_equal(indices, tamis.topk(logits, 6, row_ends=ends))
    np.testing.assert_array_equal(values, tamis.topk(logits, 6, row_ends=ends, values=True)[1])
    mapped = tamis.index_topk(
        queries, scaled, cache, ends, 6, mapping_page_table=table, mapping_page_size=page_size, **score
    )
    slots = table[0, indices // page_size] * page_size + indices % page_size
    np.testing.assert_array_equal(mapped, np.where(indices < 0, -1, slots))


def test_sparse_mla():
    rows, heads, window, compressed = 4, 8, 16, 24
    q, keys, more = normal(rows, heads, 512), normal(window, 512), normal(compressed, 512)
    sink = normal(heads)
    lists = RNG.integers(-2, window + 2, (rows, 9)).astype(np.int32)
    extra = RNG.integers(-2, compressed + 2, (rows, 5)).astype(np.int32)
    lens, extra_lens = np.array([9, 0, 3, 100], np.int32), np.array([5, 0, -1, 2], np.int32)
    out, lse, most = tamis.sparse_mla(
        q,
        tamis.PagedCache(keys.reshape(4, 4, 512), "fp32", 512, 4),
        lists,
        topk_lens=lens,
        extra_cache=tamis.PagedCache(more[None], "fp32", 512, compressed),
        extra_topk_indices=extra,
        extra_topk_lens=extra_lens,
        attn_sink=sink,
        lse=True,
        max_logits=True,
    )
    both = np.concatenate([keys, more])
    merged = []
    for r in range(rows):
        first = [s for s in lists[r, : np.clip(lens[r], 0, 9)] if 0 <= s < window]
        second = [s + window for s in extra[r, : np.clip(extra_lens[r], 0, 5)] if 0 <= s < compressed]
        merged.append(first + second)
    expected, expected_lse = reference.attention(q, both, merged, sink, 512**-0.5)
    # 512 products and at most 14 weights in fp32.
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(lse, expected_lse, rtol=0, atol=1e-5)
    assert (most <= lse).all() and np.isneginf(lse[1]).all() and not out[1].any()
