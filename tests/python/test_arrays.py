"""What a call does to the arrays that it is given: nothing but what it says."""

import gc
import pickle
import tracemalloc
import weakref
from pathlib import Path

import hypothesis
import hypothesis.strategies
import numpy as np
import pytest

import reference
import tamis

SCORES = np.random.default_rng(2).standard_normal((3, 50)).astype(np.float32)


def test_others_see_the_same_buffer():
    """numpy lends its strides to all who ask: they are not ours to change."""
    scores = SCORES.copy()
    buffer, view = pickle.PickleBuffer(scores), memoryview(scores)
    for _ in range(3):
        assert np.array_equal(tamis.topk(scores, 2), reference.topk(SCORES, 2)[0])
        assert view.strides == (200, 4) and memoryview(scores).strides == (200, 4)
    assert bytes(buffer.raw()) == SCORES.tobytes()
    assert np.array_equal(tamis.topk(scores[::2, 5:40], 2), reference.topk(SCORES[::2, 5:40], 2)[0])


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux")
def test_calls_leave_nothing_behind():
    scores, ends = SCORES.copy(), np.full(3, 40, np.int32)
    out = np.empty((3, 4), np.int32)

    def calls(count):
        for _ in range(count):
            tamis.topk(scores, 4, row_ends=ends, out=out, num_threads=1)

    calls(2000)
    before = resident_bytes()
    calls(40000)
    assert resident_bytes() - before < 2 << 20  # 52 bytes a call would be more
    tracemalloc.start()
    calls(10)
    first = tracemalloc.get_traced_memory()[0]
    calls(1000)
    assert tracemalloc.get_traced_memory()[0] - first < 1000
    tracemalloc.stop()


def test_masked_arrays():
    with pytest.raises(TypeError, match="topk: scores is numpy.ma.*MaskedArray, must be an array without a mask"):
        tamis.topk(np.ma.masked_less(SCORES, 0), 2)


def test_types_are_not_kept_for_ever():
    for _ in range(200):
        kind = type("Rows", (np.ndarray,), {})
        assert np.array_equal(tamis.topk(SCORES.view(kind), 2), reference.topk(SCORES, 2)[0])
    rejected = type("Rejected", (), {})
    with pytest.raises(TypeError, match="scores is .*Rejected, must be an array"):
        tamis.topk(rejected(), 2)
    gone = weakref.ref(rejected)
    del rejected
    gc.collect()
    assert gone() is None


def shares(scores, out):
    try:
        tamis.topk(scores, out.shape[-1], out=out)
    except ValueError as error:
        assert "topk: out shares memory with scores" in str(error)
        return True
    return False


def test_halves_of_a_buffer_are_apart():
    cache = np.zeros((1, 4, 512), np.float32)
    lists = np.array([[1]] * 12, np.int32)
    paged = tamis.PagedCache(cache, "fp32", 512, 4)
    both = np.zeros((12, 8, 1024), np.float32)
    tamis.sparse_mla(both[:, :, :512], paged, lists, out=both[:, :, 512:])
    with pytest.raises(ValueError, match="sparse_mla: out shares memory with q"):
        tamis.sparse_mla(both[:, :, :512], paged, lists, out=both[:, :, 511:1023])
    # Dimensions that run backwards.
    with pytest.raises(ValueError, match="sparse_mla: out shares memory with q"):
        tamis.sparse_mla(both[:, ::-1, :512], paged, lists, out=both[:, :, :512])
    with pytest.raises(ValueError, match="sparse_mla: out shares memory with q"):
        tamis.sparse_mla(both[::-1, ::-1, :512], paged, lists, out=both[:, :, 256:768])
    tamis.sparse_mla(both[:, ::-1, :512], paged, lists, out=both[:, :, 512:])


@hypothesis.given(hypothesis.strategies.data())
@hypothesis.settings(deadline=None, max_examples=300)
def test_overlaps_agree_with_numpy(data):
    """Two windows of one buffer: no overlap is missed, and none invented."""
    integers = hypothesis.strategies.integers
    buffer = np.zeros((6, 12), np.float32)

    def window(width):
        top, left = data.draw(integers(0, 4)), data.draw(integers(0, 12 - width))
        return buffer[top : top + 4 : data.draw(integers(1, 2)), left : left + width][:2]

    scores, out = window(data.draw(integers(3, 8))), window(3).view(np.int32)
    hypothesis.assume(len(scores) == len(out))
    assert shares(scores, out) == np.shares_memory(scores, out)


@pytest.mark.parametrize("layout", ["fp32", "bf16", "fp8_tensor", "fp8_mla584", "fp8_mla656", "indexer_fp8",
                                    "indexer_mxfp4"])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16", "float8_e4m3fn"])
def test_cache_of_another_dtype(layout, dtype):
    if dtype not in ("uint8", "float32"):
        ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: this dtype is skipped")
        dtype = getattr(ml_dtypes, dtype)
    own = {"fp32": "float32", "bf16": "bfloat16", "fp8_tensor": "float8_e4m3fn"}.get(layout)
    data = np.zeros((2, 1 << 14), dtype)
    head_dim = {"fp8_mla656": 576, "indexer_fp8": 128, "indexer_mxfp4": 128}.get(layout, 512)
    cache = tamis.PagedCache(data, layout, head_dim, 2)
    dtype = data.dtype.name
    if dtype in ("uint8", own):
        cache.read(np.array([0]))
        return
    names = {"float32": "fp32", "bfloat16": "bf16", "float8_e4m3fn": "fp8_e4m3"}
    expected = "uint8" if own is None else f"uint8 or {names[own]}"
    with pytest.raises(TypeError, match=f"^cache_read: cache is {names[dtype]}, must be {expected}$"):
        cache.read(np.array([0]))
    with pytest.raises(TypeError, match=f"^cache_write: cache is {names[dtype]}, must be {expected}$"):
        cache.write(np.zeros((1, head_dim), np.float32), np.array([0]))
