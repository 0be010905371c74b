"""On a GPU: nothing is copied, nothing waits, graphs replay. The CPU is the exact twin."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: its tests are skipped")
if not torch.cuda.is_available():
    pytest.skip("torch sees no GPU: the GPU tests are skipped", allow_module_level=True)

import tamis  # noqa: E402
import tamis.torch  # noqa: E402, F401
from tamis.compat import deep_select, vllm  # noqa: E402

INT32 = torch.int32


def normal(*shape, dtype=torch.float32, seed=3, device="cuda"):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


def lengths(*numbers, device="cuda"):
    return torch.tensor(numbers, dtype=INT32, device=device)


# Shapes that take every algorithm: identity, registers, stream, grid, select; by value cub, too.
SHAPES = [(3, 40, 64), (5, 3000, 64), (300, 20000, 512), (2, 300000, 512), (2, 9000, 5000), (0, 10, 4), (3, 0, 4)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("rows", "width", "k"), SHAPES)
def test_agrees_with_the_cpu(rows, width, k, dtype):
    scores = normal(rows, width, dtype=dtype)
    ends = torch.randint(-2, width + 3, (rows,), generator=torch.Generator().manual_seed(1), dtype=INT32)
    for order in ("position", "by_value"):
        got = tamis.topk(scores, k, row_ends=ends.cuda(), order=order, values=True, certificate=True)
        expected = tamis.topk(scores.cpu(), k, row_ends=ends, order=order, values=True, certificate=True)
        for one, other in zip(got, expected, strict=True):
            assert one.is_cuda and one.device == scores.device
            same = one.cpu().view(torch.uint8) if one.numel() else one.cpu()
            assert torch.equal(same, other.view(torch.uint8) if other.numel() else other)


def test_nothing_is_copied_or_allocated():
    memory = torch.full((4, 4096), 7.0, device="cuda")
    scores, out = memory[1:3, 8:1032], torch.full((2, 96), -9, dtype=INT32, device="cuda")
    tamis.topk(scores, 64, out=out[:, 16:80])
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    tamis.topk(scores, 64, out=out[:, 16:80])
    assert torch.cuda.max_memory_allocated() == before == torch.cuda.memory_allocated()
    assert (out[:, :16] == -9).all() and (out[:, 80:] == -9).all()
    assert torch.equal(out[:, 16:80], torch.arange(64, dtype=INT32, device="cuda").expand(2, 64))
    # What a call does allocate, its scratch memory, is PyTorch's and goes back.
    wide = normal(1, 1 << 20)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    tamis.topk(wide, 64, out=out[:1, :64])
    assert torch.cuda.max_memory_allocated() > before == torch.cuda.memory_allocated()


@pytest.mark.parametrize("new_output", [False, True])
def test_current_stream(new_output):
    """The call is ordered behind what the current stream still has to do, and does not wait for it."""
    stream, scores = torch.cuda.Stream(), torch.zeros(2, 1000, device="cuda")
    wanted, out = normal(2, 1000), torch.empty(2, 32, dtype=INT32, device="cuda")
    expected = tamis.topk(wanted, 32)
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(), torch.cuda.Event()
    with torch.cuda.stream(stream):
        start.record()
        torch.cuda._sleep(400_000_000)  # cycles: about 0.2 s
        scores.copy_(wanted)
        got = tamis.topk(scores, 32) if new_output else tamis.topk(scores, 32, out=out)
        end.record()
        assert not end.query()  # we are back, the stream is not done
    stream.synchronize()
    assert torch.equal(got, expected)


@pytest.mark.parametrize("order", ["position", "by_value"])
@pytest.mark.parametrize(("rows", "width", "k"), [(5, 3000, 64), (300, 20000, 512), (2, 300000, 512), (2, 9000, 5000)])
def test_graph_replays_with_other_contents(rows, width, k, order):
    scores, ends = normal(rows, width), torch.full((rows,), width, dtype=INT32, device="cuda")
    out = torch.empty(rows, k, dtype=INT32, device="cuda")
    tamis.topk(scores, k, row_ends=ends, order=order, out=out)  # kernels are loaded
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert vllm.get_c128_boundary([127], [0, 1]) is None and tamis.compress_plan([0], [1], 128).name == "UNKNOWN"
        tamis.topk(scores, k, row_ends=ends, order=order, out=out)
        fresh, values = tamis.topk(scores, k, row_ends=ends, order=order, values=True)
    assert vllm.get_c128_boundary([127], [0, 1]) is True
    for seed in range(3):
        scores.copy_(normal(rows, width, seed=seed))
        ends.copy_(torch.randint(-3, width + 3, (rows,), generator=torch.Generator().manual_seed(seed), dtype=INT32))
        churn = [torch.full((1 << 20,), 255, dtype=torch.uint8, device="cuda") for _ in range(8)]
        graph.replay()
        del churn
        expected, best = tamis.topk(scores.cpu(), k, row_ends=ends.cpu(), order=order, values=True)
        assert torch.equal(out.cpu(), expected) and torch.equal(fresh.cpu(), expected)
        assert torch.equal(values.cpu().nan_to_num(7e30), best.nan_to_num(7e30))


def test_graph_of_the_call_shapes():
    """DeepSelect's and vLLM's functions in one graph, drafts and padding rows included."""
    logits, seq_lens = normal(8, 5000), lengths(3, 5000, 0, -1)
    indices = torch.empty(8, 64, dtype=INT32, device="cuda")
    layer = vllm.SparseIndexerTopk()

    def step():
        layer(logits, seq_lens.view(-1, 1), 2, indices, 64, 5000)
        return deep_select.topk(logits, 64, end=seq_lens.repeat_interleave(2).clamp(0), indices_type=INT32)

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        values, best = step()
    for numbers in ((3, 5000, 0, -1), (4000, 1, 2, 700)):
        seq_lens.copy_(lengths(*numbers))
        graph.replay()
        ends = (seq_lens.view(-1, 1) + lengths(-1, 0)).flatten()
        assert torch.equal(indices, tamis.topk(logits, 64, row_ends=ends))
        filled = tamis.topk(logits, 64, row_ends=seq_lens.repeat_interleave(2).contiguous())
        assert torch.equal(best, torch.where(filled < 0, 2147483647, filled))
        assert torch.isneginf(values[best == 2147483647]).all()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compile(mode):
    """One graph of PyTorch's compiler holds us; reduce-overhead captures it with CUDA graphs, too."""

    def best(scores, ends):
        indices = torch.ops.tamis.topk(scores * 2, 64, row_ends=ends)
        return torch.where(indices < 0, 0, indices) + 1

    compiled = torch.compile(best, fullgraph=True, mode=mode)
    for seed in range(4):
        scores, ends = normal(4, 5000, seed=seed), lengths(5000, 70, 3, -seed)
        assert torch.equal(compiled(scores, ends), best(scores, ends))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU here: the tests of two are skipped")
def test_two_devices():
    torch.cuda.set_device(0)
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        scores = normal(3, 2000, device=device)
        got = tamis.topk(scores, 32)
        assert got.device == scores.device and torch.equal(got.cpu(), tamis.topk(scores.cpu(), 32))
        assert torch.cuda.current_device() == 0
    with pytest.raises(ValueError, match="row_ends is on cuda:0, must be on cuda:1 like scores"):
        tamis.topk(normal(1, 10, device="cuda:1"), 2, row_ends=lengths(3, device="cuda:0"))


def test_wrong_devices():
    scores = normal(2, 100)
    with pytest.raises(ValueError, match="topk: row_ends is on cpu, must be on cuda:0 like scores"):
        tamis.topk(scores, 2, row_ends=lengths(1, 2, device="cpu"))
    with pytest.raises(ValueError, match="topk: out is on cuda:0, must be on cpu like scores"):
        tamis.topk(scores.cpu(), 2, out=torch.empty(2, 2, dtype=INT32, device="cuda"))
    with pytest.raises(ValueError, match="topk: out shares memory with scores"):
        tamis.topk(scores, 2, out=scores.view(INT32)[:, 1:3])
    with pytest.raises(NotImplementedError, match="algorithm registers cannot serve this call: "):
        tamis.topk(normal(1, 1 << 20), 2, algorithm="registers")
    keys = tamis.PagedCache(normal(1, 4, 512), "fp32", 512, 4)
    with pytest.raises(NotImplementedError, match="sparse_mla: .* is on cuda:0, this build works on the CPU only"):
        tamis.sparse_mla(normal(1, 8, 512), keys, torch.zeros(1, 1, dtype=INT32, device="cuda"))


class CompressStep:
    """300 tokens of one request, the same on every device."""

    tokens, d = 300, 512

    def __init__(self, ratio, device):
        width = self.d * (2 if ratio == 4 else 1)
        rows = tamis.compress_ring_rows(ratio, ratio == 4)
        self.state = torch.zeros(1, rows, 2 * width, device=device)
        self.pages = torch.zeros(2, 64 * 584, dtype=torch.uint8, device=device)
        self.where = {
            "positions": torch.arange(self.tokens, device=device),
            "token_to_request": torch.zeros(self.tokens, dtype=INT32, device=device),
            "query_start_loc": lengths(0, self.tokens, device=device),
        }
        self.arguments = {
            "kv": normal(self.tokens, width, seed=1, device=device),
            "gate": normal(self.tokens, width, seed=2, device=device),
            "ape": normal(ratio, width, seed=3, device=device),
            "norm_weight": normal(self.d, seed=4, device=device),
            "cos_sin": normal(self.tokens, 64, seed=5, device=device),
            "state": self.state,
            "state_ring": lengths(0, device=device),
            "cache": tamis.PagedCache(self.pages, "fp8_mla584", self.d, 64),
            "kv_slots": torch.arange(self.tokens, device=device) // ratio,
            "compress_ratio": ratio,
            **self.where,
        }

    def run(self, **arguments):
        tamis.compress(**self.arguments, **arguments)
        return self

    def clear(self):
        self.state.zero_()
        self.pages.zero_()

    def equals(self, other):
        return torch.equal(self.state.cpu(), other.state.cpu()) and torch.equal(self.pages.cpu(), other.pages.cpu())


@pytest.mark.parametrize("ratio", [4, 128])
def test_compress(ratio):
    """The same bits as on the CPU, on the current stream, with and without a list of what completes."""
    expected = CompressStep(ratio, "cpu").run()
    assert expected.pages.any()
    step = CompressStep(ratio, "cuda")
    for algorithm in ("auto", "tall_window", "any_window"):
        assert step.run(algorithm=algorithm).equals(expected)
        step.clear()
    listed = tamis.build_compress_step(**step.where, compress_ratios=ratio)
    assert listed.is_cuda and listed.dtype == INT32
    on_cpu = {name: array.cpu() for name, array in step.where.items()}
    assert torch.equal(listed.cpu(), tamis.build_compress_step(**on_cpu, compress_ratios=ratio))
    assert step.run(listed_tokens=listed).equals(expected)
    step.clear()
    if ratio == 4:
        assert step.run(algorithm="short_window").equals(expected)
        return
    with pytest.raises(NotImplementedError, match="short_window cannot serve this call: the window of 128 rows must"):
        step.run(algorithm="short_window")


@pytest.mark.parametrize("ratio", [4, 128])
def test_compress_in_a_graph(ratio):
    """A replay lists anew what its positions complete, and a plan of NONE is not kept."""
    step, counts = CompressStep(ratio, "cuda"), tamis.CompressCounts()
    lists = torch.full((tamis.compress_list_capacity(step.tokens, 1, ratio),), -9, dtype=INT32, device="cuda")
    tamis.build_compress_step(**step.where, compress_ratios=ratio, out=lists)
    step.run(listed_tokens=lists)  # kernels are loaded
    step.run(plan=tamis.CompressPlan.NONE, counts=counts)
    positions, graph = step.where["positions"], torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        assert tamis.stream_is_capturing(torch.cuda.current_stream().cuda_stream)
        tamis.build_compress_step(**step.where, compress_ratios=ratio, out=lists)
        step.run(listed_tokens=lists, plan=tamis.CompressPlan.NONE, counts=counts)
    assert not tamis.stream_is_capturing(torch.cuda.current_stream().cuda_stream)
    assert counts == tamis.CompressCounts(pooled=1, skipped=1)
    for used in (step.tokens, ratio, ratio - 1):  # the tokens behind are padding
        where = torch.arange(step.tokens).masked_fill(torch.arange(step.tokens) >= used, -1)
        positions.copy_(where)
        step.clear()
        graph.replay()
        expected = CompressStep(ratio, "cpu")
        expected.where["positions"].copy_(where)
        assert step.equals(expected.run())
        assert (lists.cpu() >= 0).sum() == used // ratio


def test_pinned_memory_is_the_cpus():
    scores = normal(2, 50, device="cpu").pin_memory()
    assert torch.equal(tamis.topk(scores, 5), tamis.topk(scores.clone(), 5))


def test_cupy():
    cupy = pytest.importorskip("cupy", reason="cupy is not installed: its test is skipped")
    scores = cupy.asarray(normal(3, 300000).cpu().numpy())
    expected = tamis.topk(cupy.asnumpy(scores), 40)
    out = cupy.empty((3, 40), dtype=cupy.int32)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        got = tamis.topk(scores, 40)
        assert tamis.topk(scores, 40, out=out) is out
        stream.synchronize()
    assert isinstance(got, cupy.ndarray) and (cupy.asnumpy(got) == expected).all()
    assert (cupy.asnumpy(out) == expected).all()


def test_jax_is_told_what_it_lacks():
    jax = pytest.importorskip("jax", reason="jax is not installed: its test is skipped")
    if jax.default_backend() != "gpu":
        pytest.skip("jax sees no GPU: its test is skipped")
    with pytest.raises(NotImplementedError, match="jax.* on .*must be"):
        tamis.topk(jax.numpy.zeros((2, 10)), 3)


def test_engine(tiny_v4):
    prompt = (tiny_v4 / "golden.txt").read_text()
    assert tamis.generate(tiny_v4, prompt, 7, device="cuda") == "482913."


def test_call_costs_the_host_little():
    """Host time of a call on small tensors. The goal, 6 us over a bare launch, is bench/python/overhead.py's to show:
    here is a bound that an accidental copy or wait breaks."""
    import time

    scores, out = normal(4, 512), torch.empty(4, 64, dtype=INT32, device="cuda")
    best = float("inf")
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(100):
            tamis.topk(scores, 64, out=out)
        best = min(best, (time.perf_counter() - start) / 100)
    assert best < 30e-6
