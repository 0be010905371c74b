"""PyTorch tensors on the CPU: no copies, the operators and the compiler."""

import doctest

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: its tests are skipped")

import reference  # noqa: E402
import tamis  # noqa: E402
import tamis.torch  # noqa: E402, F401

INT32 = torch.int32


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_topk(dtype):
    scores = normal(3, 1000, dtype=dtype)
    indices, values = tamis.topk(scores, 9, order="by_value", values=True)
    assert type(indices) is torch.Tensor and indices.dtype == INT32 and values.dtype == dtype
    by_position, by_value = reference.topk(scores.float().numpy(), 9)
    assert np.array_equal(indices, by_value)
    assert torch.equal(values, scores.gather(1, indices.long()))
    out = torch.empty(3, 9, dtype=torch.int64)
    assert tamis.topk(scores, 9, out=out) is out
    assert np.array_equal(out, by_position)


def test_nothing_is_copied():
    memory = torch.full((4, 64), 7.0)
    scores = memory[1:3, 8:40]
    out = torch.full((2, 16), -9, dtype=INT32)
    tamis.topk(scores, 4, out=out[:, 3:7])
    assert out[:, 3:7].tolist() == [[0, 1, 2, 3]] * 2 and (out[:, :3] == -9).all() and (out[:, 7:] == -9).all()
    scores[0, 30] = 8.0
    assert tamis.topk(scores, 1).tolist() == [[30], [0]]


def test_wrong_tensors():
    scores = normal(2, 8)
    with pytest.raises(TypeError, match="topk: scores is float64, must be fp32"):
        tamis.topk(scores.double(), 1)
    with pytest.raises(ValueError, match="scores has stride 2 in its last dimension"):
        tamis.topk(scores[:, ::2], 1)
    with pytest.raises(ValueError, match="topk: out shares memory with scores"):
        tamis.topk(scores, 4, out=scores.view(INT32)[:, :4])


def without_memory():
    torch.manual_seed(0)
    yield "meta", torch.empty(2, 8, device="meta")
    yield "sparse", torch.eye(8).to_sparse()
    yield "csr", torch.eye(8).to_sparse_csr()
    yield "mkldnn", torch.eye(8).to_mkldnn()
    yield "zero", torch._efficientzerotensor(2, 8)
    yield "quantised", torch.quantize_per_tensor(torch.eye(8), 0.1, 0, torch.qint8)
    yield "nested", torch.nested.nested_tensor([torch.zeros(2, 8), torch.zeros(3, 8)])
    yield "jagged", torch.nested.nested_tensor([torch.zeros(2, 8), torch.zeros(3, 8)], layout=torch.jagged)


@pytest.mark.filterwarnings("ignore")
def test_tensors_without_dense_memory():
    for kind, tensor in without_memory():
        with pytest.raises((TypeError, ValueError), match="^topk: scores (is|has) ") as error:
            tamis.topk(tensor, 1)
        assert "\n" not in str(error.value), kind
        if tensor.dim() == 2 and kind not in ("quantised", "jagged"):
            assert error.type is TypeError and "must be a dense array on the CPU or CUDA" in str(error.value), kind
        with pytest.raises((TypeError, ValueError), match="^topk: out "):
            tamis.topk(normal(2, 8), 1, out=tensor)


def test_devices():
    assert tamis.topk_support(torch.device("cpu")) == tamis.topk_support("cpu")
    assert tamis.topk_support(torch.device("cuda", 0)) == tamis.topk_support("cuda:0")


def test_vmap():
    with pytest.raises(TypeError, match="^topk: scores is a torch.Tensor whose memory cannot be had"):
        torch.vmap(lambda row: tamis.topk(row[None], 1))(normal(2, 8))


def test_negated_views():
    flipped = torch.complex(normal(2, 8), normal(2, 8)).conj().imag
    assert flipped.is_neg()
    with pytest.raises(ValueError, match=r"topk: scores is a negated view \(is_neg\), must hold its own numbers"):
        tamis.topk(flipped, 1)
    with pytest.raises(TypeError, match="topk: scores is complex64, must be fp32"):
        tamis.topk(torch.zeros(2, 8, dtype=torch.complex64).conj(), 1)


def test_autograd_notices_writes():
    weights, out = torch.ones(2, 3, requires_grad=True), torch.zeros(2, 3)
    scores, indices = normal(2, 8), torch.zeros(2, 3, dtype=INT32)
    product = weights * out
    before = indices._version
    tamis.topk(scores, 3, values=out, out=indices)
    assert indices._version == before + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    torch.ops.tamis.topk_out(scores, 3, out=indices)
    assert indices._version > before + 1
    with torch.inference_mode():
        inference = torch.zeros(2, 3, dtype=INT32)
    assert torch.equal(tamis.topk(scores, 3, out=inference), indices)  # these have no version


@pytest.mark.parametrize("values", [torch.zeros(2, 3, requires_grad=True), torch.zeros(2, 3, requires_grad=True) * 1])
def test_what_is_written_requires_no_grad(values):
    with pytest.raises(ValueError, match="topk: values requires grad, must not"):
        tamis.topk(normal(2, 8), 3, values=values)
    with torch.no_grad():
        assert torch.equal(tamis.topk(normal(2, 8), 3, values=values)[1], tamis.topk(normal(2, 8), 3, values=True)[1])


def test_sizes_that_no_memory_has():
    for k in (2**45, 2**62):  # as many bytes as no process can address, and as no integer counts
        with pytest.raises((ValueError, MemoryError)) as error:
            tamis.topk(normal(2, 8), k)
        assert "\n" not in str(error.value)


def test_gradients_stay_out():
    scores = normal(2, 8).requires_grad_()
    assert not tamis.topk(scores, 2, values=True)[1].requires_grad


def test_mixed_libraries():
    scores = np.ones((2, 4), np.float32)
    assert isinstance(tamis.topk(scores, 1, row_ends=torch.tensor([4, 0], dtype=INT32)), np.ndarray)
    assert isinstance(tamis.topk(torch.from_numpy(scores), 1, row_ends=np.array([4, 0], np.int32)), torch.Tensor)


def cache_of(rows, layout="fp32"):
    return tamis.PagedCache(rows, layout, rows.shape[-1], rows.shape[-2])


def test_operators_agree_with_the_functions():
    ops = torch.ops.tamis
    scores, ends = normal(4, 200), torch.tensor([200, 3, 0, -1], dtype=INT32)
    assert torch.equal(ops.topk(scores, 5, None, ends), tamis.topk(scores, 5, row_ends=ends))
    for got, expected in zip(ops.topk_values(scores, 5), tamis.topk(scores, 5, values=True), strict=True):
        assert torch.equal(got, expected)
    out = torch.empty(4, 5, dtype=INT32)
    ops.topk_out(scores, 5, row_ends=ends, order="by_value", out=out)
    assert torch.equal(out, tamis.topk(scores, 5, row_ends=ends, order="by_value"))

    q, weights, keys = normal(4, 8, 128), normal(4, 8), normal(1, 50, 128)
    k_cache, columns = cache_of(keys), torch.tensor([50, 7, 0, 20], dtype=INT32)
    parts = (k_cache.data, "fp32", 128, 50, 1.0)
    logits = ops.index_logits(q, weights, *parts, columns, 50, format="fp32")
    assert torch.equal(logits, tamis.index_logits(q, weights, k_cache, columns, format="fp32"))
    assert torch.equal(
        ops.index_topk(q, weights, *parts, columns, 6, format="fp32"), tamis.topk(logits, 6, row_ends=columns)
    )

    mla_q, mla_keys = normal(4, 8, 512), normal(1, 30, 512)
    lists = torch.randint(-1, 30, (4, 11), dtype=INT32)
    got = ops.sparse_mla(mla_q, mla_keys, "fp32", 512, 30, 1.0, lists)
    for one, other in zip(got, tamis.sparse_mla(mla_q, cache_of(mla_keys), lists, lse=True), strict=True):
        assert torch.equal(one, other)


def compress_arguments(tokens=9, ratio=4, d=512):
    width = 2 * d
    return {
        "kv": normal(tokens, width),
        "gate": normal(tokens, width),
        "ape": normal(ratio, width),
        "norm_weight": torch.ones(d),
        "cos_sin": torch.from_numpy(reference.cos_sin(tokens)),
        "positions": torch.arange(tokens),
        "token_to_request": torch.zeros(tokens, dtype=INT32),
        "query_start_loc": torch.tensor([0, tokens], dtype=INT32),
        "state_ring": torch.zeros(1, dtype=INT32),
        "kv_slots": torch.arange(tokens) // ratio,
        "compress_ratio": ratio,
    }


STEP = ("positions", "token_to_request", "query_start_loc")


def test_build_compress_step_operator():
    arguments = compress_arguments()
    step = [arguments[name] for name in STEP]
    lists = torch.ops.tamis.build_compress_step(*step, [4, 128])
    assert [one.tolist() for one in lists] == [[3, 7, -1], [-1]]
    for got, expected in zip(lists, tamis.build_compress_step(*step, [4, 128]), strict=True):
        assert type(expected) is torch.Tensor and torch.equal(got, expected)
    out = torch.full((5,), -9, dtype=INT32)
    assert tamis.build_compress_step(*step, 4, out=out) is out and out.tolist() == [3, 7, -1, -1, -1]


@pytest.mark.parametrize("listed", [False, True])
def test_compress_operator(listed):
    outputs = []
    for operator in (False, True):
        state, entries = torch.zeros(1, 8, 2048), torch.zeros(1, 3, 512)
        arguments = compress_arguments()
        if listed:
            arguments["listed_tokens"] = tamis.build_compress_step(*(arguments[name] for name in STEP), 4)
        if operator:
            torch.ops.tamis.compress(state=state, cache=entries, layout="fp32", head_dim=512, page_size=3, scale=1.0,
                                     **arguments)
        else:
            tamis.compress(state=state, cache=cache_of(entries), **arguments)
        assert entries[0, :2].any() and not entries[0, 2].any()
        outputs.append((state, entries))
    assert torch.equal(outputs[0][0], outputs[1][0]) and torch.equal(outputs[0][1], outputs[1][1])


OPERATORS = ["topk", "topk_values", "topk_out", "index_logits", "index_topk", "sparse_mla", "compress",
             "build_compress_step"]


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_what_they_say(name):
    """PyTorch's own check: schema, fake implementation and real one agree."""
    columns = torch.tensor([50, 7], dtype=INT32)
    score = (normal(2, 8, 128), normal(2, 8), normal(1, 50, 128), "fp32", 128, 50, 1.0, columns)
    arguments = {
        "topk": ((normal(2, 30), 3, None, torch.tensor([30, 2], dtype=INT32)), {}),
        "topk_values": ((normal(2, 30, dtype=torch.bfloat16), 3), {}),
        "topk_out": ((normal(2, 30), 3), {"out": torch.empty(2, 3, dtype=INT32)}),
        "index_logits": ((*score, 50), {"format": "fp32"}),
        "index_topk": ((*score, 4), {"format": "fp32"}),
        "sparse_mla": ((normal(2, 8, 512), normal(1, 9, 512), "fp32", 512, 9, 1.0, columns.view(2, 1)), {}),
        "compress": (
            (),
            {"state": torch.zeros(1, 8, 2048), "cache": torch.zeros(1, 3, 512), "layout": "fp32", "head_dim": 512,
             "page_size": 3, "scale": 1.0, "listed_tokens": torch.tensor([3, 7, -1], dtype=INT32),
             **compress_arguments()},
        ),
        "build_compress_step": ((*(compress_arguments()[name] for name in STEP), [4, 128]), {}),
    }
    args, kwargs = arguments[name]
    torch.library.opcheck(
        getattr(torch.ops.tamis, name).default, args, kwargs,
        test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
    )


@pytest.mark.filterwarnings("ignore:Error detected in:UserWarning")  # the compiler's own words, beside the error
@pytest.mark.parametrize("compiled", [False, True])
def test_no_silent_gradients(compiled):
    columns = torch.tensor([50, 7], dtype=INT32)
    keys, weights, entries, lists = normal(1, 50, 128), normal(2, 8), normal(1, 9, 512), columns.view(2, 1)
    ops = torch.ops.tamis
    calls = {
        "topk_values": (lambda x: ops.topk_values(x, 3)[1], normal(2, 30)),
        "index_logits": (
            lambda x: ops.index_logits(x, weights, keys, "fp32", 128, 50, 1.0, columns, 50, format="fp32"),
            normal(2, 8, 128),
        ),
        "sparse_mla": (lambda x: ops.sparse_mla(x, entries, "fp32", 512, 9, 1.0, lists)[0], normal(2, 8, 512)),
    }
    for name, (call, x) in calls.items():
        function = torch.compile(call, backend="aot_eager") if compiled else call
        expected = call(x)
        with torch.no_grad():
            assert torch.equal(function(x.clone().requires_grad_()), expected)
        # The compiler asks for the backward pass when it compiles, and wraps what it hears.
        with pytest.raises(Exception if compiled else NotImplementedError, match=f"tamis.{name}: it has no gradient"):
            function(x.clone().requires_grad_()).sum().backward()
    assert not ops.topk(normal(2, 30).requires_grad_(), 3).requires_grad


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic):
    """A whole function in one graph, for several batch sizes."""

    def best(scores, ends):
        indices = torch.ops.tamis.topk(scores * 2, 4, row_ends=ends)
        return torch.where(indices < 0, 0, indices) + 1

    compiled = torch.compile(best, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for rows in (2, 3, 5):
        scores, ends = normal(rows, 50), torch.full((rows,), 3, dtype=INT32)
        assert torch.equal(compiled(scores, ends), best(scores, ends))


def test_compile_of_the_plain_function():
    """tamis.topk in a compiled function: the graph breaks there, and the result is the same."""

    def best(scores):
        return tamis.topk(scores * 2, 4) + 1

    scores = normal(2, 50)
    assert torch.equal(torch.compile(best, backend="eager")(scores), best(scores))


def test_examples_of_the_documentation():
    failed, attempted = doctest.testmod(tamis.torch)
    assert failed == 0 and attempted > 0
