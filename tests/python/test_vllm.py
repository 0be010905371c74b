"""vLLM's call shapes. vLLM itself is not needed: install() is tried on modules that stand for it."""

import doctest
import re
import sys
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: its tests are skipped")

import reference  # noqa: E402
from tamis.compat import vllm  # noqa: E402

INT32 = torch.int32


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def expected(logits, k, starts=None, ends=None):
    return torch.from_numpy(reference.topk(logits.numpy(), k, starts, ends)[0]).int()


@pytest.mark.parametrize("next_n", [1, 2, 4])
@pytest.mark.parametrize("given_by", ["request", "column", "row"])
def test_decode(next_n, given_by):
    seq_lens = torch.tensor([2, 1, 0, 4, 50, -3], dtype=INT32)  # short prompts and padding
    rows = seq_lens.numel() * next_n
    ends = (seq_lens[:, None] - next_n + 1 + torch.arange(next_n)).flatten()
    logits = normal(rows + 2, 64)[:, :50]
    indices = torch.full((rows + 2, 8), 99, dtype=INT32)
    lens = {"request": seq_lens, "column": seq_lens[:, None], "row": ends.int().view(-1, next_n)}[given_by]
    vllm.top_k_per_row_decode(logits, next_n, lens, indices, rows, logits.stride(0), logits.stride(1), 8)
    want = expected(logits[:rows], 8, None, ends)
    assert torch.equal(indices[:rows], want) and (indices[rows:] == 99).all()
    for function in (vllm.persistent_topk, vllm.cooperative_topk):
        indices.fill_(99)
        function(logits[:rows], lens, indices[:rows], torch.empty(0, dtype=torch.uint8), 8, 50)
        assert torch.equal(indices[:rows], want)
    for backend in ("auto", "tamis", "persistent", "torch"):
        indices.fill_(99)
        vllm.SparseIndexerTopk(backend)(logits[:rows], lens, next_n, indices[:rows], 8, 50)
        assert torch.equal(indices[:rows].sort().values, want.sort().values), backend


def test_lengths_that_would_wrap():
    logits, indices = normal(4, 20), torch.empty(4, 3, dtype=INT32)
    lens = torch.tensor([-(2**31), 2**31 - 1], dtype=INT32)
    want = expected(logits, 3, None, [0, 0, 20, 20])
    vllm.top_k_per_row_decode(logits, 2, lens, indices, 4, 20, 1, 3)
    assert torch.equal(indices, want)
    vllm.persistent_topk(logits, lens, indices.zero_(), torch.empty(0), 3, 20)
    assert torch.equal(indices, want)


def test_nothing_is_kept_from_a_fake_call():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        assert vllm._row_ends(torch.empty(2, dtype=INT32), 5, 10).shape == (10,)
    ends = vllm._row_ends(torch.tensor([9, 2], dtype=INT32), 5, 10)
    assert ends.tolist() == [5, 6, 7, 8, 9, -2, -1, 0, 1, 2]


def test_decode_with_a_wrong_number_of_lengths():
    indices = torch.zeros(4, 2, dtype=INT32)
    for shape, text in (((1,), "seq_lens has shape [1], must have num_rows / next_n = 4 / 2 elements"),
                        ((1, 2), "seq_lens has shape [1, 2], must have num_rows / next_n = 4 / 2 elements")):
        with pytest.raises(ValueError, match=re.escape(text)):
            vllm.top_k_per_row_decode(normal(4, 9), 2, torch.zeros(shape, dtype=INT32), indices, 4, 9, 1, 2)
    with pytest.raises(ValueError, match=re.escape("lengths has shape [3], must have num_rows / next_n = 4 / 1")):
        vllm.persistent_topk(normal(4, 9), torch.zeros(3, dtype=INT32), indices, None, 2, 9)


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 2)])
def test_more_lengths_than_requests(shape):
    # The buffers of a captured batch are longer than what counts, even by just so much that they look like row ends.
    lens = torch.tensor([5, 9, 0, 0], dtype=INT32)
    ends = [4, 5, 8, 9]
    if shape == (4, 2):
        lens = torch.tensor([[4, 5], [8, 9], [0, 0], [0, 0]], dtype=INT32)
    logits, indices = normal(4, 20), torch.full((6, 5), 99, dtype=INT32)
    vllm.top_k_per_row_decode(logits, 2, lens.reshape(shape), indices, 4, 20, 1, 3)
    assert torch.equal(indices[:4, :3], expected(logits, 3, None, ends))
    assert (indices[4:] == 99).all() and (indices[:, 3:] == 99).all()
    for backend in ("tamis", "torch"):
        vllm.SparseIndexerTopk(backend)(logits, lens.reshape(shape), 2, indices.fill_(99), 3, 20)
        assert torch.equal(indices[:4, :3].sort().values, expected(logits, 3, None, ends).sort().values)


def test_fewer_rows_than_asked_for():
    logits, indices, lens = normal(4, 9), torch.zeros(4, 2, dtype=INT32), torch.ones(4, dtype=INT32)
    few, few_indices = lens[:3], indices[:3]
    for error, call in (
        ("logits has 4 rows, must have at least num_rows = 6",
         lambda: vllm.top_k_per_row_prefill(logits, lens, lens, indices, 6, 9, 1, 2)),
        ("row_starts has 3 rows, must have at least num_rows = 4",
         lambda: vllm.top_k_per_row_prefill(logits, few, lens, indices, 4, 9, 1, 2)),
        ("row_ends has 3 rows, must have at least num_rows = 4",
         lambda: vllm.top_k_per_row_prefill(logits, lens, few, indices, 4, 9, 1, 2)),
        ("indices has 3 rows, must have at least num_rows = 4",
         lambda: vllm.top_k_per_row_decode(logits, 1, lens, few_indices, 4, 9, 1, 2)),
        ("indices has 2 columns, must have at least topk = 3",
         lambda: vllm.top_k_per_row_decode(logits, 1, lens, indices, 4, 9, 1, 3)),
        ("output has 3 rows, must have at least num_rows = 4",
         lambda: vllm.persistent_topk(logits, lens, few_indices, None, 2, 9)),
    ):
        with pytest.raises(ValueError, match=f"topk: {error}"):
            call()


def test_errors_name_the_callers_arguments():
    logits, indices, lens = normal(2, 9), torch.zeros(2, 2, dtype=INT32), torch.ones(2, dtype=torch.int64)
    with pytest.raises(TypeError, match="topk: seq_lens is int64, must be int32"):
        vllm.top_k_per_row_decode(logits, 1, lens, indices, 2, 9, 1, 2)
    with pytest.raises(TypeError, match="topk: seq_lens is int64, must be int32"):
        vllm.SparseIndexerTopk()(logits, lens, 1, indices, 2, 9)
    with pytest.raises(TypeError, match="topk: lengths is int64, must be int32"):
        vllm.persistent_topk(logits, lens, indices, None, 2, 9)
    with pytest.raises(TypeError, match="topk: logits is float64, must be"):
        vllm.top_k_per_row_prefill(logits.double(), lens.int(), lens.int(), indices, 2, 9, 1, 2)
    with pytest.raises(TypeError, match="topk: output is float64"):
        vllm.persistent_topk(logits, lens.int(), indices.double(), None, 2, 9)


@pytest.mark.parametrize("name", ["deep_select", "flashinfer"])
def test_a_broken_library_is_an_unmet_constraint(name, tmp_path, monkeypatch):
    (tmp_path / f"{name}.py").write_text("raise OSError('libfoo.so.1 is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(RuntimeError, match=rf"{name} cannot be imported \(OSError: libfoo.so.1 is missing\); "):
        vllm.SparseIndexerTopk(name).resolve_backend(normal(2, 100), 4, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_by_torch_fills_a_row_from_its_own_scores(dtype):
    # -inf and NaN are scores like others: a position past the row's end never takes their place.
    logits = torch.full((3, 8), float("-inf"))
    logits[1, 0], logits[2, 3] = 1.0, float("nan")
    logits[0, 6] = -float("nan")
    for lens in ([2, 3, 0], [8, 1, 5], [7, 4, 4]):
        indices = torch.full((3, 4), 99, dtype=INT32)
        vllm.SparseIndexerTopk("torch")(logits.to(dtype), torch.tensor(lens, dtype=INT32), 1, indices, 4, 8)
        for row, end in zip(indices.tolist(), lens, strict=True):
            count = min(4, end)
            assert len(set(row[:count])) == count and all(0 <= at < end for at in row[:count]), (row, end)
            assert row[count:] == [-1] * (4 - count)
        if lens[2] == 5:
            assert 3 not in indices[2].tolist()  # NaN comes last


def test_prefill():
    logits, indices = normal(3, 1003), torch.full((4, 6), 99, dtype=INT32)
    starts, ends = torch.tensor([0, 7, 1000, 5], dtype=INT32), torch.tensor([7, 1000, 1003, 9], dtype=INT32)
    vllm.top_k_per_row_prefill(logits, starts, ends, indices, 3, 1003, 1, 6)
    assert torch.equal(indices[:3], expected(logits, 6, starts, ends)) and (indices[3] == 99).all()
    # Other strides than the tensor's own.
    flat = normal(1, 60)
    vllm.top_k_per_row_prefill(flat[:, :10], starts[:1], ends[1:2], indices[:1], 1, 20, 1, 6)
    assert torch.equal(indices[:1], expected(flat[:, :10], 6))


def test_backends():
    logits = normal(2, 100)
    for name in ("auto", "tamis", "cooperative", "persistent", "per_row", "flashinfer_gvr2"):
        assert vllm.SparseIndexerTopk(name).resolve_backend(logits, 512, 2) == "tamis"
    assert vllm.SparseIndexerTopk("torch").resolve_backend(logits, 10, 2) == "torch"
    with pytest.raises(ValueError, match="backend is 'magic', must be one of 'auto', 'tamis'"):
        vllm.SparseIndexerTopk("magic")


@pytest.mark.parametrize(
    ("backend", "unmet"),
    [
        ("flashinfer", ["flashinfer cannot be imported", "on CUDA, is on cpu", "be float32, is torch.float16"]),
        ("deep_select", ["deep_select cannot be imported", "on CUDA", "float32 or bfloat16", "at most 4096, is 9000"]),
        ("tamis", ["the last contiguous"]),
        ("torch", ["at most the width 100, is 9000"]),
    ],
)
def test_every_unmet_constraint_is_said(backend, unmet, monkeypatch):
    for name in ("flashinfer", "deep_select"):
        monkeypatch.setitem(sys.modules, name, None)
    logits = normal(2, 100).half()
    if backend == "tamis":
        logits = logits[:, ::2]
    with pytest.raises(RuntimeError, match=f"backend '{backend}' was asked for, but: ") as error:
        vllm.SparseIndexerTopk(backend).resolve_backend(logits, 9000, 2)
    for text in unmet:
        assert text in str(error.value)


def test_c128_boundary():
    boundary = vllm.get_c128_boundary
    assert boundary([80], [0, 80]) is True and boundary([80], [0, 47]) is False
    for start, crosses in ((126, False), (127, True), (128, False)):
        assert boundary(torch.tensor([start]), torch.tensor([0, 1])) is crosses
    assert boundary([0, 0, 127], [0, 1, 2, 3]) is True
    pair = (np.int64(126), np.int64(5))  # two requests, not a range
    assert boundary(pair, np.array([0, 1, 2])) is False and boundary(pair, [np.int32(0), 2, 3]) is True
    assert boundary(None, [0, 1]) is None
    assert boundary(([125], [128]), [0, 1]) is None
    assert boundary(([0], None), [0, 1]) is None and boundary((None, None), [0, 1]) is None  # no bound at all
    assert boundary(([1], [4]), [0, 1]) is False and boundary(([124], [127]), [0, 4]) is True
    with pytest.raises(ValueError, match="compress_plan"):
        boundary([1, 2], [0, 1])


@pytest.fixture
def fake_vllm(monkeypatch):
    """What install() looks for, without vLLM."""
    calls = []
    layer = types.ModuleType("vllm.model_executor.layers.indexer_topk")

    class SparseIndexerTopk:
        def __init__(self, backend):
            self._backend = backend

        def forward(self, *args):
            calls.append(("theirs", self._backend))

    layer.SparseIndexerTopk = SparseIndexerTopk
    custom_ops = types.ModuleType("vllm._custom_ops")
    custom_ops.top_k_per_row_decode = custom_ops.top_k_per_row_prefill = lambda *args: calls.append("theirs")
    package = types.ModuleType("vllm")
    for name, module in (
        ("vllm", package),
        ("vllm._custom_ops", custom_ops),
        ("vllm.model_executor", types.ModuleType("vllm.model_executor")),
        ("vllm.model_executor.layers", types.ModuleType("vllm.model_executor.layers")),
        ("vllm.model_executor.layers.indexer_topk", layer),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch.ops._C, "persistent_topk", lambda *args: calls.append("theirs"), raising=False)
    return types.SimpleNamespace(calls=calls, custom_ops=custom_ops, layer=layer)


def test_install(fake_vllm):
    for _ in range(2):  # a second time changes nothing
        replaced = vllm.install()
        assert "vllm._custom_ops.top_k_per_row_decode" in replaced and "torch.ops._C.persistent_topk" in replaced
        assert "torch.ops._C.cooperative_topk" not in replaced  # this vLLM has none
    logits, indices = normal(2, 30), torch.empty(2, 4, dtype=INT32)
    ends = torch.tensor([30, 3], dtype=INT32)
    want = expected(logits, 4, None, ends)
    fake_vllm.custom_ops.top_k_per_row_decode(logits, 1, ends, indices, 2, 30, 1, 4)
    assert torch.equal(indices, want)
    indices.zero_()
    torch.ops._C.persistent_topk(logits, ends, indices, None, 4, 30)
    assert torch.equal(indices, want)
    indices.zero_()
    fake_vllm.layer.SparseIndexerTopk("auto").forward(logits, ends[:, None], 1, indices, 4, 30)
    assert torch.equal(indices, want) and fake_vllm.calls == []
    fake_vllm.layer.SparseIndexerTopk("flashinfer").forward(logits, ends, 1, indices, 4, 30)
    assert fake_vllm.calls == [("theirs", "flashinfer")]
    fake_vllm.layer.SparseIndexerTopk("of tomorrow").forward(logits, ends, 1, indices, 4, 30)
    fake_vllm.layer.SparseIndexerTopk("auto").forward(logits.to("meta"), ends, 1, indices, 4, 30)
    assert fake_vllm.calls[1:] == [("theirs", "of tomorrow"), ("theirs", "auto")]
    indices.zero_()
    torch.ops._C.persistent_topk.default(logits, ends, indices, None, 4, 30)
    assert torch.equal(indices, want)


def test_plugin(fake_vllm, monkeypatch):
    theirs = fake_vllm.custom_ops.top_k_per_row_decode
    monkeypatch.delenv("TAMIS_VLLM", raising=False)
    vllm.plugin()
    assert fake_vllm.custom_ops.top_k_per_row_decode is theirs
    monkeypatch.setenv("TAMIS_VLLM", "1")
    vllm.plugin()
    assert fake_vllm.custom_ops.top_k_per_row_decode is vllm.top_k_per_row_decode


def test_install_without_vllm(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(ImportError):
        vllm.install()


def test_entry_point():
    from importlib.metadata import entry_points

    found = [e for e in entry_points(group="vllm.general_plugins") if e.name == "tamis"]
    if not found:
        pytest.skip("tamis is not installed as a distribution here")
    assert found[0].load() is vllm.plugin


def test_examples_of_the_documentation():
    failed, attempted = doctest.testmod(vllm)
    assert failed == 0 and attempted > 0
