"""transformers runs tiny-v4 with our top-k and sparse attention: the same logits."""

import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: its tests are skipped")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: its tests are skipped")
pytest.importorskip("transformers.models.deepseek_v4", reason="this transformers has no DeepSeek-V4: skipped")

import tamis  # noqa: E402
import tamis.compat.transformers as compat  # noqa: E402

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.fixture(params=DEVICES)
def models(request, tiny_v4):
    def load(name):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            tiny_v4, dtype=torch.float32, attn_implementation=name
        )
        return model.eval().to(request.param)

    return load("eager"), load("tamis")


@pytest.fixture
def counted(monkeypatch):
    """Counts the calls that reach us."""
    counts = {"topk": 0, "sparse_mla": 0}

    def count(name):
        function = getattr(tamis, name)

        def counting(*args, **kwargs):
            counts[name] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(tamis, name, counting)

    count("topk")
    count("sparse_mla")
    return counts


@pytest.fixture
def prompt(tiny_v4):
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_v4)
    return tokenizer, tokenizer((tiny_v4 / "golden.txt").read_text(), return_tensors="pt").input_ids


def test_logits(models, counted, prompt):
    theirs, ours = models
    ids = prompt[1].to(theirs.device)
    batch = torch.cat([ids, ids.flip(1)])  # two sequences: slots of one never reach the other
    with torch.inference_mode():
        expected = theirs(batch).logits
        assert counted == {"topk": 0, "sparse_mla": 0}
        got = ours(batch).logits
    layers = ours.config.num_hidden_layers
    on_cpu = theirs.device.type == "cpu"
    # The indexer's top-k in two layers of five, and where the attention is ours, one of the mask in each.
    assert counted == {"topk": 2 + layers, "sparse_mla": layers} if on_cpu else counted == {"topk": 2, "sparse_mla": 0}
    assert (got - expected).abs().max() < 1e-3


def test_generates_the_same(models, counted, prompt):
    theirs, ours = models
    tokenizer, ids = prompt
    with torch.inference_mode():
        outputs = [m.generate(ids.to(m.device), max_new_tokens=7, do_sample=False) for m in models]
    assert torch.equal(*outputs) and counted["topk"] > 0
    assert tokenizer.decode(outputs[1][0, -7:]) == "482913."


def test_switching(tiny_v4, counted, prompt):
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_v4, dtype=torch.float32, attn_implementation="eager")
    model.eval().set_attn_implementation("tamis")
    with torch.inference_mode():
        model(prompt[1][:, :40])
        assert counted["sparse_mla"] == 5
        model.set_attn_implementation("eager")
        model(prompt[1][:, :40])
    assert counted["sparse_mla"] == 5


def test_dropout_is_refused():
    q = torch.zeros(1, 8, 1, 512)
    with pytest.raises(NotImplementedError, match="dropout is 0.1, must be 0"):
        compat.attention(None, q, q[:, :1], q[:, :1], None, 1.0, dropout=0.1)


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_short_prompts(models, tokens):
    """The first tokens have no compressed entry: the indexer selects among none."""
    theirs, ours = models
    ids = torch.tensor([[1, 7, 12], [3, 4, 5]], device=theirs.device)[:, :tokens]
    with torch.inference_mode():
        assert (ours(ids).logits - theirs(ids).logits).abs().max() < 1e-3


def test_token_by_token(models, prompt):
    ids = prompt[1][:, :12].to(models[0].device)
    logits = []
    with torch.inference_mode():
        for model in models:
            cache = transformers.DynamicCache(config=model.config)
            steps = [model(ids[:, i : i + 1], past_key_values=cache, use_cache=True).logits for i in range(12)]
            logits.append(torch.cat(steps, dim=1))
        generated = [m.generate(ids[:, :1], max_new_tokens=20, do_sample=False) for m in models]
    assert (logits[0] - logits[1]).abs().max() < 1e-3
    assert torch.equal(*generated)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_dtypes_are_eager(counted, dtype):
    eager = compat.model.eager_attention_forward
    layer = types.SimpleNamespace(sinks=torch.zeros(8), num_key_value_groups=8, training=False)
    q, keys = torch.randn(1, 8, 3, 512).to(dtype), torch.randn(1, 1, 5, 512).to(dtype)
    layer.sinks = layer.sinks.to(dtype)
    got, expected = (f(layer, q, keys, keys, None, 0.1, dropout=0.0)[0] for f in (compat.attention, eager))
    assert torch.equal(got, expected) and counted["sparse_mla"] == 0
    scores = torch.randn(1, 3, 5, dtype=torch.float64)
    assert torch.equal(scores.as_subclass(compat._IndexScores).topk(2).indices, scores.topk(2).indices)


def test_training_is_refused(tiny_v4):
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_v4, dtype=torch.float32, attn_implementation="tamis")
    with pytest.raises(NotImplementedError, match="attention: query wants a gradient, must not"):
        model(torch.arange(1, 9)[None])
    with torch.no_grad():
        model(torch.arange(1, 9)[None])
