"""What is wrong with a call is said: the argument, what came and what was expected."""

import numpy as np
import pytest

import tamis

SCORES = np.zeros((2, 8), dtype=np.float32)
OUT = np.zeros((2, 4), dtype=np.int32)
PACKED = np.zeros(2, dtype=[("row", np.float32, 8), ("tail", np.uint8)])


def test_no_array():
    with pytest.raises(TypeError, match=r"topk: scores is list, must be an array"):
        tamis.topk([[1.0]], 1)
    with pytest.raises(TypeError, match=r"topk: scores is None, must be an array of fp32 or bf16 or fp16"):
        tamis.topk(None, 1)


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("scores", "float64, must be fp32 or bf16 or fp16", {"scores": SCORES.astype(np.float64)}),
        ("scores", "int32, must be fp32 or bf16 or fp16", {"scores": SCORES.astype(np.int32)}),
        ("scores", "bool8, must be fp32", {"scores": SCORES.astype(bool)}),
        ("row_ends", "int64, must be int32", {"row_ends": np.zeros(2, np.int64)}),
        ("out", "fp32, must be int32 or int64", {"out": OUT.astype(np.float32)}),
        ("values", "fp16, must be fp32", {"values": np.zeros((2, 4), np.float16)}),
        ("certificate", "fp32, must be int32", {"certificate": np.zeros((2, 4), np.float32)}),
        ("workspace", "fp32, must be uint8", {"workspace": SCORES}),
    ],
)
def test_wrong_dtype(name, text, arguments):
    with pytest.raises(TypeError, match=f"^topk: {name} is {text}"):
        tamis.topk(**{"scores": SCORES, "k": 4, **arguments})


@pytest.mark.parametrize("dtype", [">f4", "O", "M8[s]", "V5"])
def test_dtypes_beyond_numbers(dtype):
    with pytest.raises(TypeError, match="topk: scores has dtype .*, which is none that tamis knows"):
        tamis.topk(np.zeros((2, 8), dtype), 4)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (r"scores has 1 dimensions, must have 2", {"scores": SCORES[0]}),
        (r"scores has 5 dimensions, must have 1 to 4", {"scores": SCORES.reshape(1, 1, 1, 2, 8)}),
        (r"row_ends is int32 \[3\], must be int32 \[2\]", {"row_ends": np.zeros(3, np.int32)}),
        (r"row_ends has 0 dimensions", {"row_ends": np.zeros((), np.int32)}),
        (r"out is int32 \[2, 3\], must be int32 \[2, 4\]", {"out": OUT[:, :3]}),
        (r"out has stride 2 in its last dimension", {"out": np.zeros((2, 8), np.int32)[:, ::2]}),
        (r"values is fp32 \[2, 8\], must be fp32 \[2, 4\]", {"values": SCORES.copy()}),
        (r"scores has stride 2 in its last dimension, must be contiguous", {"scores": SCORES[:, ::2]}),
        (r"scores has stride -1 in its last dimension", {"scores": SCORES[:, ::-1]}),
        (r"k is -1, must be at least 0", {"k": -1}),
        (r"k is 36893488147419103232, must fit 64 bits", {"k": 2**65}),
        (r"num_threads is -1", {"num_threads": -1}),
        (r"order is 'sorted', must be one of 'position', 'unsorted', 'by_value'", {"order": "sorted"}),
        (r"algorithm is 'magic', must be one of 'auto'", {"algorithm": "magic"}),
        (r"index_dtype is 'int8'", {"index_dtype": "int8"}),
        (r"page_size is 0, must be at least 1", {"page_table": np.zeros((2, 2), np.int32)}),
        (
            r"page_table and ragged_offsets are both given",
            {"page_table": np.zeros((2, 2), np.int32), "ragged_offsets": np.zeros(2, np.int32)},
        ),
        (r"scores has a stride of 33 bytes, must be a multiple of its 4-byte", {"scores": PACKED["row"]}),
    ],
)
def test_wrong_value(text, arguments):
    with pytest.raises(ValueError, match=f"^topk: {text}"):
        tamis.topk(**{"scores": SCORES, "k": 4, **arguments})


@pytest.mark.parametrize(("name", "value"), [("k", 1.5), ("k", "4"), ("num_threads", None), ("order", 3)])
def test_wrong_kind_of_value(name, value):
    with pytest.raises(TypeError, match=f"topk: {name} is {type(value).__name__}, must be"):
        tamis.topk(**{"scores": SCORES, "k": 4, name: value})


def test_forced_algorithm_lists_what_is_unmet():
    with pytest.raises(NotImplementedError, match=r"algorithm identity cannot serve this call: width 8 must be at most"):
        tamis.topk(SCORES, 4, algorithm="identity")


def test_read_only_output():
    out = OUT.copy()
    out.setflags(write=False)
    with pytest.raises(ValueError, match="topk: out is read-only, must be writable"):
        tamis.topk(SCORES, 4, out=out)


def test_read_only_input():
    scores = SCORES.copy()
    scores.setflags(write=False)
    assert tamis.topk(scores, 1).tolist() == [[0], [0]]


def test_overlapping_output():
    memory = np.zeros((2, 16), dtype=np.float32)
    scores = memory[:, :8]
    with pytest.raises(ValueError, match="topk: out shares memory with scores, must not overlap"):
        tamis.topk(scores, 4, out=memory[:, 4:8].view(np.int32))
    ends = np.array([8, 8], dtype=np.int32)
    with pytest.raises(ValueError, match="topk: out shares memory with row_ends"):
        tamis.topk(SCORES, 1, row_ends=ends, out=ends.reshape(2, 1))
    with pytest.raises(ValueError, match="topk: out shares memory with values"):
        out = np.zeros((2, 4), np.int32)
        tamis.topk(SCORES, 4, out=out, values=out.view(np.float32))
    # Interleaved, but apart.
    assert tamis.topk(scores, 4, out=memory[:, 8:12].view(np.int32)).tolist() == [[0, 1, 2, 3]] * 2
    # Rows of an output that lie on each other.
    rows = np.lib.stride_tricks.as_strided(np.zeros(8, np.int32), (2, 4), (8, 4))
    with pytest.raises(ValueError, match="topk: out has row stride 2, must be at least 4"):
        tamis.topk(SCORES, 4, out=rows)


def test_other_operations():
    with pytest.raises(TypeError, match="sparse_mla: cache is numpy.ndarray, must be a tamis.PagedCache"):
        tamis.sparse_mla(np.zeros((1, 8, 512), np.float32), SCORES, np.zeros((1, 1), np.int32))
    small = tamis.PagedCache(np.zeros((1, 64), np.uint8), "fp32", 512, 1)
    with pytest.raises(ValueError, match="cache has pages of 64 bytes, must have at least 2048"):
        tamis.sparse_mla(np.zeros((1, 8, 512), np.float32), small, np.zeros((1, 1), np.int32))
    with pytest.raises(ValueError, match="layout is 'fp7'"):
        tamis.PagedCache.empty(1, "fp7", 512, 64)
    with pytest.raises(ValueError, match="compress_ratio"):
        tamis.compress_plan([0], [1], 0)
    with pytest.raises(TypeError, match="index_topk: row_ends is int64, must be int32"):
        keys = tamis.PagedCache(np.zeros((1, 3, 128), np.float32), "fp32", 128, 3)
        tamis.index_topk(np.zeros((1, 1, 128), np.float32), np.ones((1, 1), np.float32), keys, np.array([3]), 2)
    with pytest.raises(ValueError, match="/nonexistent/tokenizer.json: no such file"):
        tamis.Engine("/nonexistent")
    with pytest.raises(ValueError, match="device is 'gpu'"):
        tamis.Engine("/nonexistent", device="gpu")
