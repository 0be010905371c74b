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


def test_more_rows_than_numbers():
    with pytest.raises(ValueError, match="topk_row_ends: next_n is .*, must be at most .* with 4 seq_lens"):
        tamis.topk_row_ends(np.ones(4, np.int32), 2**62)
    with pytest.raises(ValueError, match=r"topk: out would have shape \[2, 4611686018427387904\], must have at most 2"):
        tamis.topk(SCORES, 2**62)


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


RING = {"compress_ratio": 4, "overlap": True}
Q = np.zeros((1, 8, 512), np.float32)
KEYS = tamis.PagedCache(np.zeros((1, 3, 512), np.float32), "fp32", 512, 3)
LIST = np.zeros((1, 1), np.int32)


def index_arguments():
    keys = tamis.PagedCache(np.zeros((1, 3, 128), np.float32), "fp32", 128, 3)
    return (np.zeros((1, 1, 128), np.float32), np.ones((1, 1), np.float32), keys, np.array([3], np.int32))


def compress(**changes):
    d, n = 512, 4
    arguments = {
        "kv": np.ones((n, d), np.float32), "gate": np.zeros((n, d), np.float32), "ape": np.zeros((n, d), np.float32),
        "norm_weight": np.ones(d, np.float32), "cos_sin": np.ones((n, 64), np.float32), "positions": np.arange(n),
        "token_to_request": np.zeros(n, np.int32), "query_start_loc": np.array([0, n], np.int32),
        "state": np.zeros((1, n, 2 * d), np.float32), "state_ring": np.zeros(1, np.int32),
        "cache": tamis.PagedCache(np.zeros((1, 4, d), np.float32), "fp32", d, 4), "kv_slots": np.zeros(n, int),
        "compress_ratio": n, "overlap": False,
    }
    tamis.compress(**{**arguments, **changes})


def sparse_mla(**changes):
    return tamis.sparse_mla(**{"q": Q, "cache": KEYS, "topk_indices": LIST, **changes})


@pytest.mark.parametrize(
    ("error", "text", "call"),
    [
        (TypeError, "index_logits: clean is int, must be a bool",
         lambda: tamis.index_logits(*index_arguments(), format="fp32", clean=1)),
        (TypeError, "index_query: hadamard is int, must be a bool",
         lambda: tamis.index_query(Q[..., :128], Q[:, :, 0], np.array([0]), np.ones((1, 64), np.float32), hadamard=1)),
        (ValueError, "index_logits: max_columns is -1, must be at least 0",
         lambda: tamis.index_logits(*index_arguments(), format="fp32", max_columns=-1)),
        (ValueError, "Engine: model has a null character or a lone surrogate", lambda: tamis.Engine("a\0b")),
        (TypeError, "compress: hadamard is str, must be a bool", lambda: compress(hadamard="no")),
        (TypeError, "compress: overlap is int, must be a bool", lambda: compress(overlap=0)),
        (TypeError, "compress: rms_norm_eps is str, must be a number", lambda: compress(rms_norm_eps="x")),
        (TypeError, "compress: plan is str, must be a tamis.CompressPlan", lambda: compress(plan="NONE")),
        (TypeError, "compress: plan is NoneType, must be a tamis.CompressPlan", lambda: compress(plan=None)),
        (ValueError, "compress: num_threads is 4294967296, must be at most 2147483647",
         lambda: compress(num_threads=2**32)),
        (ValueError, "topk: num_threads is 4294967296, must be at most", lambda: tamis.topk(SCORES, 1, num_threads=2**32)),
        (TypeError, "sparse_mla: softmax_scale is str, must be a number", lambda: sparse_mla(softmax_scale="x")),
        (ValueError, "sparse_mla: softmax_scale is 0, must not be 0", lambda: sparse_mla(softmax_scale=0.0)),
        (ValueError, "sparse_mla: softmax_scale is 1e-60, must not be 0", lambda: sparse_mla(softmax_scale=1e-60)),
        (ValueError, "sparse_mla: softmax_scale is inf, must be finite", lambda: sparse_mla(softmax_scale=1e60)),
        (TypeError, "sparse_mla: cache is NoneType, must be a tamis.PagedCache", lambda: sparse_mla(cache=None)),
        (TypeError, "sparse_mla: scale is str, must be a number", lambda: sparse_mla(cache=KEYS._replace(scale="x"))),
        (ValueError, r"sparse_mla: topk_indices is int32 \[2, 1\]",
         lambda: sparse_mla(topk_indices=np.zeros((2, 1), np.int32))),
        (ValueError, "sparse_mla: extra_cache has layout indexer_fp8",
         lambda: sparse_mla(extra_topk_indices=LIST,
                            extra_cache=tamis.PagedCache.empty(1, "indexer_fp8", 128, 4))),
        (ValueError, "sparse_mla: extra_topk_lens is given without extra_cache, must be None",
         lambda: sparse_mla(extra_topk_lens=LIST[0])),
        (TypeError, "sparse_mla: out is bool, must be an array", lambda: sparse_mla(out=False)),
        (TypeError, "topk: out is bool, must be an array", lambda: tamis.topk(SCORES, 1, out=True)),
        (ValueError, "topk: page_starts is given without page_table", lambda: tamis.topk(SCORES, 1, page_starts="x")),
        (TypeError, "topk: page_size is str, must be an integer", lambda: tamis.topk(SCORES, 1, page_size="x")),
        (ValueError, "index_topk: page_starts is given without mapping_page_table",
         lambda: tamis.index_topk(*index_arguments(), 1, format="fp32", page_starts=LIST[0])),
        (TypeError, r"compress_plan: starts\[0\] is float, must be an integer",
         lambda: tamis.compress_plan([1.5], [1], 4)),
        (TypeError, "compress_plan: query_lens is str, must be a sequence", lambda: tamis.compress_plan([1], "1", 4)),
        (TypeError, "compress_plan: starts is int, must be a sequence", lambda: tamis.compress_plan(1, [1], 4)),
        (TypeError, r"compress_plan: start_hi\[1\] is list", lambda: tamis.compress_plan([1], [1], 4, start_hi=[1, []])),
        (TypeError, "compress_plan: capturing is int", lambda: tamis.compress_plan([1], [1], 4, capturing=1)),
        (TypeError, "compress_ring_rows: overlap is int, must be a bool", lambda: tamis.compress_ring_rows(4, 1)),
        (TypeError, "compress_ring_rows: max_drafts is float",
         lambda: tamis.compress_ring_rows(**RING, max_drafts=1.0)),
        (TypeError, "compress_state_begin: start is NoneType", lambda: tamis.compress_state_begin(None, **RING)),
        (ValueError, "topk_support: device is 'cuda:', must be 'cpu', 'cuda' or", lambda: tamis.topk_support("cuda:")),
        (ValueError, "topk_support: device is 'cpu:'", lambda: tamis.topk_support("cpu:")),
        (ValueError, "topk_support: device is 'cuda:-1'", lambda: tamis.topk_support("cuda:-1")),
        (TypeError, "topk_support: device is NoneType, must be a str", lambda: tamis.topk_support(None)),
    ],
)
def test_errors_name_the_argument(error, text, call):
    with pytest.raises(error, match=f"^{text}"):
        call()


def test_none_asks_for_no_more():
    assert isinstance(tamis.topk(SCORES, 1, values=None, certificate=None), np.ndarray)
    assert tamis.compress_ring_rows(4, np.bool_(True)) == 8
