"""topk of numpy arrays against numpy."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import reference
import tamis

# Many ties, both zeros, both infinities and NaN, beside any other number.
SCORES = {
    np.float32: st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, np.inf, -np.inf, np.nan])
    | st.floats(width=32, allow_subnormal=True),
    np.float16: st.sampled_from([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan]) | st.floats(width=16),
}


@st.composite
def cases(draw):
    dtype = draw(st.sampled_from([np.float32, np.float16]))
    rows, width = draw(st.integers(0, 5)), draw(st.integers(0, 90))
    padding = draw(st.integers(0, 3))
    storage = draw(hnp.arrays(dtype, (rows, width + padding), elements=SCORES[dtype]))
    storage[:, width:] = np.inf  # must not be looked at
    numbers = st.integers(-(2**31), 2**31 - 1) | st.integers(-2, width + 2)
    ends = st.none() | hnp.arrays(np.int32, rows, elements=numbers)
    return storage[:, :width], draw(st.integers(0, 100)), draw(ends), draw(ends)


@settings(max_examples=400, deadline=None)
@given(cases())
def test_agrees_with_numpy(case):
    scores, k, starts, ends = case
    by_position, by_value = reference.topk(scores, k, starts, ends)
    before = scores.tobytes()
    assert np.array_equal(tamis.topk(scores, k, row_starts=starts, row_ends=ends), by_position)
    indices, values = tamis.topk(
        scores, k, row_starts=starts, row_ends=ends, order="by_value", values=True, index_dtype="int64"
    )
    assert indices.dtype == np.int64 and np.array_equal(indices, by_value)
    start = np.zeros(len(scores), int) if starts is None else np.clip(starts.astype(int), 0, scores.shape[1])
    for r, row in enumerate(indices):
        won = row[row >= 0]
        np.testing.assert_array_equal(values[r, : won.size], scores[r, start[r] + won])
        assert np.isnan(values[r, won.size :]).all()
    assert scores.tobytes() == before


@settings(max_examples=100, deadline=None)
@given(cases(), st.sampled_from(["select", "simd_filter"]), st.sampled_from([1, 3]))
def test_neither_algorithm_nor_threads_change_it(case, algorithm, num_threads):
    scores, k, starts, ends = case
    if algorithm == "simd_filter" and k > 4096:
        return
    expected, _ = reference.topk(scores, k, starts, ends)
    got = tamis.topk(scores, k, row_starts=starts, row_ends=ends, algorithm=algorithm, num_threads=num_threads)
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
def test_writes_into_out(index_dtype):
    rng = np.random.default_rng(1)
    scores = rng.standard_normal((3, 500), dtype=np.float32)
    wide = np.full((3, 12), 77, dtype=index_dtype)
    out = wide[:, 1:9]
    assert tamis.topk(scores, 8, out=out) is out
    assert np.array_equal(out, reference.topk(scores, 8)[0])
    assert (wide[:, 0] == 77).all() and (wide[:, 9:] == 77).all()


def test_unaligned_and_strided_rows():
    rng = np.random.default_rng(2)
    numbers = rng.standard_normal((4, 257), dtype=np.float32)
    bytes_ = np.zeros(numbers.nbytes + 3, dtype=np.uint8)
    shifted = bytes_[3:].view(np.float32).reshape(4, 257)  # an address that is no multiple of 4
    shifted[:] = numbers
    assert np.array_equal(tamis.topk(shifted, 16), reference.topk(numbers, 16)[0])
    assert np.array_equal(tamis.topk(numbers[::2], 16), reference.topk(numbers[::2], 16)[0])


def test_page_table_and_ragged_offsets():
    scores = np.array([[1, 5, 3, 4], [9, 0, 0, 0]], dtype=np.float32)
    table = np.array([[7, 2], [3, -1]], dtype=np.int32)
    slots = tamis.topk(scores, 2, page_table=table, page_size=2)
    assert slots.tolist() == [[7 * 2 + 1, 2 * 2 + 1], [3 * 2, 3 * 2 + 1]]
    swapped = tamis.topk(scores, 2, page_table=table, page_size=2, row_to_table=np.array([1, 0], np.int32))
    assert swapped.tolist() == [[7, -1], [14, 15]]
    moved = tamis.topk(scores, 2, page_table=table, page_size=2, page_starts=np.array([0, 2], np.int32))
    assert moved.tolist() == [[15, 5], [-1, -1]]
    ragged = tamis.topk(scores, 2, ragged_offsets=np.array([10, 20]), index_dtype="int64")
    assert ragged.tolist() == [[11, 13], [20, 21]]


def test_certificate():
    scores = np.array([[5, 1, 5, 2, 2, 2]], dtype=np.float32)
    indices, certificate = tamis.topk(scores, 4, certificate=True)
    assert indices.tolist() == [[0, 2, 3, 4]]
    assert certificate.view(np.float32)[0, 0] == 2 and certificate[0, 1:].tolist() == [2, 3, 2]
    indices, values, certificate = tamis.topk(scores, 4, values=True, certificate=True)
    assert values.tolist() == [[5, 5, 2, 2]]


def test_own_workspace():
    scores = np.random.default_rng(3).standard_normal((2, 4096), dtype=np.float32)
    memory = np.full(1 << 22, 0xFF, dtype=np.uint8)
    workspace = memory[-memory.ctypes.data % 64 :][: 1 << 21]
    assert np.array_equal(tamis.topk(scores, 64, workspace=workspace), reference.topk(scores, 64)[0])
    with pytest.raises(ValueError, match=r"topk: workspace has 8 bytes, must have at least \d+"):
        tamis.topk(scores, 64, workspace=workspace[:8])


class Foreign:
    """An array of a library that nobody has heard of, with nothing but DLPack's two methods."""

    def __init__(self, array, versioned=True):
        self.array, self.versioned = array, versioned

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **options):
        if options and not self.versioned:
            raise TypeError("unexpected keyword argument")
        return self.array.__dlpack__(**options)


@pytest.mark.parametrize("versioned", [False, True])
def test_any_library(versioned):
    scores = np.random.default_rng(4).standard_normal((3, 300), dtype=np.float32)
    expected, _ = reference.topk(scores, 5)
    assert np.array_equal(tamis.topk(Foreign(scores, versioned), 5), expected)
    out = np.zeros((3, 5), np.int32)
    foreign = Foreign(out, versioned)
    assert tamis.topk(scores, 5, out=foreign) is foreign and np.array_equal(out, expected)


def test_extension_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed: its test is skipped")
    scores = np.random.default_rng(4).standard_normal((3, 300), dtype=np.float32).astype(ml_dtypes.bfloat16)
    indices, values = tamis.topk(scores, 5, values=True)
    assert np.array_equal(indices, reference.topk(scores.astype(np.float32), 5)[0])
    assert values.dtype == scores.dtype and (values == np.take_along_axis(scores, indices, 1)).all()


def test_threads():
    """Calls of many threads at once, each with its own arrays."""
    rng = np.random.default_rng(6)
    inputs = [rng.standard_normal((4, 5000), dtype=np.float32) for _ in range(16)]
    with ThreadPoolExecutor(8) as pool:
        for scores, indices in zip(inputs, pool.map(lambda scores: tamis.topk(scores, 50), inputs), strict=True):
            assert np.array_equal(indices, reference.topk(scores, 50)[0])


def test_row_ends():
    assert tamis.topk_row_ends(np.array([9, -3], np.int32), 2, 4).tolist() == [2, 2, 0, 0]


def test_support():
    assert all(available and why == "" for _, available, why in tamis.topk_support())
    for name, available, why in tamis.topk_support("cuda:63"):
        assert not available and why, name
    with pytest.raises(ValueError, match="device is 'tpu'"):
        tamis.topk_support("tpu")
