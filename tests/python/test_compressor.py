"""The compressor's plan of a step on numpy arrays: lists, counts, algorithms, and what is wrong with a call."""

import numpy as np
import pytest

import reference
import tamis

INT32 = np.int32
# Requests at positions 2 3 4, at 8 .. 16 and at 3: tokens 1, 6, 10 and 12 complete an entry of 4.
POSITIONS = np.array([2, 3, 4, *range(8, 17), 3])
REQUESTS = np.array([0] * 3 + [1] * 9 + [2], INT32)
STARTS = np.array([0, 3, 12, 13], INT32)


def build(ratios, **arguments):
    step = {"positions": POSITIONS, "token_to_request": REQUESTS, "query_start_loc": STARTS, **arguments}
    return tamis.build_compress_step(compress_ratios=ratios, **step)


def test_lists():
    single = build(4)
    assert isinstance(single, np.ndarray) and single.dtype == INT32
    assert single.tolist() == [1, 6, 10, 12, -1, -1] and single.size == tamis.compress_list_capacity(13, 3, 4)
    lists = build((4, 16, 128))
    assert type(lists) is tuple and [one.tolist() for one in lists] == [[1, 6, 10, 12, -1, -1], [10, -1, -1], [-1] * 3]
    assert [one.tolist() for one in build(np.array([16]))] == [[10, -1, -1]]
    assert build(np.int64(16)).tolist() == [10, -1, -1]
    assert build([]) == ()
    # Padding is not listed: a negative position, a request that is none, a token outside its request's range.
    positions, requests = POSITIONS.copy(), REQUESTS.copy()
    positions[1], requests[6], requests[10] = -1, 7, 0
    assert build(4, positions=positions, token_to_request=requests).tolist() == [12, -1, -1, -1, -1, -1]
    none = np.zeros(0, np.int64), np.zeros(0, INT32), np.zeros(1, INT32)
    assert tamis.build_compress_step(*none, 4).shape == (0,)


def test_lists_into_given_arrays():
    memory = np.full(20, -9, INT32)
    assert build(4, out=memory[2:10]).base is memory
    assert memory.tolist() == [-9, -9, 1, 6, 10, 12, -1, -1, -1, -1] + [-9] * 10
    given = [np.full(6, -9, INT32), np.full(3, -9, INT32)]
    lists = build([4, 16], out=given)
    assert lists[0] is given[0] and lists[1] is given[1]
    assert [one.tolist() for one in given] == [[1, 6, 10, 12, -1, -1], [10, -1, -1]]


READ_ONLY = np.zeros(6, INT32)
READ_ONLY.setflags(write=False)


@pytest.mark.parametrize(
    ("error", "text", "ratios", "arguments"),
    [
        (TypeError, "positions is int32, must be int64", 4, {"positions": POSITIONS.astype(INT32)}),
        (TypeError, "positions is list, must be an array", 4, {"positions": POSITIONS.tolist()}),
        (TypeError, "token_to_request is None, must be an array of int32", 4, {"token_to_request": None}),
        (TypeError, "out is int64, must be int32", 4, {"out": np.zeros(6, np.int64)}),
        (TypeError, "compress_ratios is float, must be an integer", 4.0, {}),
        (TypeError, "compress_ratios is str, must be a sequence of integers", "4", {}),
        (TypeError, r"compress_ratios\[1\] is float, must be an integer", [4, 1.5], {}),
        (TypeError, "out is int, must be a sequence of arrays", [4], {"out": 7}),
        (ValueError, r"token_to_request is int32 \[12\], must be int32 \[13\]", 4, {"token_to_request": REQUESTS[1:]}),
        (ValueError, "query_start_loc is empty", 4, {"query_start_loc": STARTS[:0]}),
        (ValueError, "positions has stride 2 in its last dimension", 4, {"positions": np.arange(26)[::2]}),
        (ValueError, r"positions is int64 \[13, 1\], must be", 4, {"positions": POSITIONS[:, None]}),
        (ValueError, "compress_ratios has 5 elements, must have at most 4", [4] * 5, {}),
        (ValueError, "out has 1 arrays, must have 2 like compress_ratios", [4, 16], {"out": [np.zeros(6, INT32)]}),
        (ValueError, r"out is int32 \[5\], must be int32 \[6\]", 4, {"out": np.zeros(5, INT32)}),
        (ValueError, r"out\[1\] is int32 \[2\], must be", [4, 16], {"out": [np.zeros(6, INT32), np.zeros(2, INT32)]}),
        (ValueError, r"out is int32 \[6, 1\], must be int32 \[6\]", 4, {"out": np.zeros((6, 1), INT32)}),
        (ValueError, "out has stride 2 in its last dimension", 4, {"out": np.zeros(12, INT32)[::2]}),
        (TypeError, "out is list, must be an array", 4, {"out": [1] * 6}),
        (ValueError, "out is read-only, must be writable", 4, {"out": READ_ONLY}),
        (ValueError, r"out\[0\] shares memory with out\[1\]", [4, 4], {"out": [np.zeros(6, INT32)] * 2}),
        (ValueError, "out shares memory with token_to_request", 4, {"out": REQUESTS[:6]}),
    ],
)
def test_wrong_step(error, text, ratios, arguments):
    with pytest.raises(error, match=f"^build_compress_step: {text}"):
        build(ratios, **arguments)


def test_wrong_capacity():
    with pytest.raises(ValueError, match=r"^compress_list_capacity: compress_ratio is 0, must be in \[1, 1024\]"):
        tamis.compress_list_capacity(1, 1, 0)
    with pytest.raises(ValueError, match=r"^compress_list_capacity: compress_ratio is 0, must be in \[1, 1024\]"):
        build([4, 0])
    with pytest.raises(TypeError, match="^compress_list_capacity: requests is str, must be an integer"):
        tamis.compress_list_capacity(1, "1", 4)
    with pytest.raises(ValueError, match="^compress_list_capacity: tokens is -1"):
        tamis.compress_list_capacity(-1, 1, 4)
    with pytest.raises(ValueError, match="^compress_list_capacity: requests is -2"):
        tamis.compress_list_capacity(1, -2, 4)


def test_capturing():
    assert tamis.stream_is_capturing(0, "cpu") is False
    for device in ("gpu", "cuda:x", "cuda:-1", "cpu:0", f"cuda:{2**32}"):
        with pytest.raises(ValueError, match=f"^stream_is_capturing: device is '{device}', must be "):
            tamis.stream_is_capturing(0, device)
    with pytest.raises(TypeError, match="^stream_is_capturing: stream is NoneType, must be an integer"):
        tamis.stream_is_capturing(None, "cpu")
    # No machine has so many: the driver says so, or a build without CUDA that it has none.
    with pytest.raises((RuntimeError, NotImplementedError)):
        tamis.stream_is_capturing(0, "cuda:1000")


class Step:
    """One request of 11 tokens from position 0, ratio 4: entries 0 and 1 are complete."""

    tokens, d, ratio = 11, 128, 4

    def __init__(self):
        rng = np.random.default_rng(5)
        width = 2 * self.d
        self.state = np.zeros((1, 8, 2 * width), np.float32)
        self.entries = np.zeros((1, 3, self.d), np.float32)
        self.arguments = {
            "kv": rng.standard_normal((self.tokens, width), np.float32),
            "gate": rng.standard_normal((self.tokens, width), np.float32),
            "ape": rng.standard_normal((self.ratio, width), np.float32),
            "norm_weight": np.ones(self.d, np.float32),
            "cos_sin": reference.cos_sin(self.tokens),
            "positions": np.arange(self.tokens),
            "token_to_request": np.zeros(self.tokens, INT32),
            "query_start_loc": np.array([0, self.tokens], INT32),
            "state": self.state,
            "state_ring": np.zeros(1, INT32),
            "cache": tamis.PagedCache(self.entries, "fp32", self.d, 3),
            "kv_slots": np.arange(self.tokens) // self.ratio,
            "compress_ratio": self.ratio,
        }

    def list(self):
        names = ("positions", "token_to_request", "query_start_loc")
        return tamis.build_compress_step(*(self.arguments[name] for name in names), self.ratio)

    def run(self, **arguments):
        tamis.compress(**{**self.arguments, **arguments})
        return self


def test_a_step_with_its_list_writes_the_same():
    plain, listed = Step().run(), Step()
    listed.run(listed_tokens=listed.list())
    np.testing.assert_array_equal(listed.entries, plain.entries)
    np.testing.assert_array_equal(listed.state, plain.state)
    assert plain.entries[0, :2].any(axis=1).all() and not plain.entries[0, 2].any()


def test_only_listed_tokens_complete():
    plain, listed = Step().run(), Step()
    listed.run(listed_tokens=np.array([-(2**31), 7, 11, 2**31 - 1, 6, -1], INT32))
    assert not listed.entries[0, 0].any() and not listed.entries[0, 2].any()
    np.testing.assert_array_equal(listed.entries[0, 1], plain.entries[0, 1])
    np.testing.assert_array_equal(listed.state, plain.state)


def test_counts():
    counts = tamis.CompressCounts(pooled=100)
    for plan in ("NONE", "UNKNOWN", "NONE"):
        Step().run(plan=tamis.CompressPlan[plan], counts=counts)
    assert counts == tamis.CompressCounts(pooled=101, skipped=2)
    with pytest.raises(ValueError, match="^compress: num_threads is -1"):
        Step().run(num_threads=-1, counts=counts)
    assert counts == tamis.CompressCounts(pooled=101, skipped=2)


@pytest.mark.parametrize("name", ["short_window", "tall_window", "any_window"])
def test_algorithms_are_for_cuda(name):
    with pytest.raises(ValueError, match=f"^compress: algorithm is {name}, on the CPU it must be auto"):
        Step().run(algorithm=name)


@pytest.mark.parametrize(
    ("error", "text", "arguments"),
    [
        (TypeError, "listed_tokens is int64, must be int32", {"listed_tokens": np.zeros(3, np.int64)}),
        (ValueError, r"listed_tokens is int32 \[3, 1\], must be", {"listed_tokens": np.zeros((3, 1), INT32)}),
        (ValueError, "listed_tokens has stride 2", {"listed_tokens": np.zeros(6, INT32)[::2]}),
        (ValueError, "algorithm is 'magic', must be one of 'auto', 'short_window', 'tall_w", {"algorithm": "magic"}),
        (TypeError, "algorithm is NoneType, must be a str", {"algorithm": None}),
        (TypeError, "counts is dict, must be a tamis.CompressCounts", {"counts": {}}),
        (TypeError, "counts is type, must be a tamis.CompressCounts", {"counts": tamis.CompressCounts}),
        (TypeError, "counts is .*CompressCounts, must be a .* with integers", {"counts": tamis.CompressCounts("1")}),
        (ValueError, "rms_norm_eps is nan, must be finite and >= 0", {"rms_norm_eps": float("nan")}),
    ],
)
def test_wrong_choices(error, text, arguments):
    step = Step()
    with pytest.raises(error, match=f"^compress: {text}"):
        step.run(**arguments)
    assert not step.state.any() and not step.entries.any()


def test_state_is_not_to_lie_on_the_list():
    step = Step()
    with pytest.raises(ValueError, match="^compress: state shares memory with listed_tokens"):
        step.run(listed_tokens=step.state.view(INT32).reshape(-1)[:3])
