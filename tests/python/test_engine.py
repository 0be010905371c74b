"""Whole models from Python."""

import gc
import weakref

import pytest

import tamis


def test_generate(tiny_v4):
    prompt = (tiny_v4 / "golden.txt").read_text()
    assert tamis.generate(tiny_v4, prompt, 7) == "482913."
    # The same tokens alone, among others, and in other chunks.
    engine = tamis.Engine(tiny_v4, prefill_chunk=33)
    pieces, others = [], []
    engine.add("The options", 5, on_token=others.append)
    engine.add(prompt, 7, on_text=pieces.append)
    assert engine.num_unfinished == 2
    engine.run()
    assert "".join(pieces) == "482913." and len(others) == 5 and engine.num_unfinished == 0
    assert engine.stats["new_tokens"] == 12
    assert engine.generate(engine.encode(prompt), 7) == "482913."


def test_sampling_is_repeatable(tiny_v4):
    engine = tamis.Engine(tiny_v4)
    draws = [engine.generate("The ", 20, temperature=1.0, seed=seed) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def test_callbacks(tiny_v4):
    engine = tamis.Engine(tiny_v4)

    def fail(token):
        raise LookupError("no more")

    engine.add("The", 5, on_token=fail)
    with pytest.raises(LookupError, match="no more"):
        engine.run()
    assert engine.num_unfinished == 0

    tokens = []
    request = engine.add("The", 50, on_token=lambda token: tokens.append(token) or engine.cancel(request))
    engine.run()
    assert len(tokens) == 1 and not engine.cancel(request)


def test_a_waiting_request_keeps_no_engine_alive(tiny_v4):
    class Chat:
        def __init__(self):
            self.engine = tamis.Engine(tiny_v4)
            self.engine.add("The", 5, on_text=self.hear, on_token=lambda token: self.hear(str(token)))

        def hear(self, text):
            pass

    chat = weakref.ref(Chat())
    gc.collect()
    assert chat() is None


def test_errors_of_others(tiny_v4):
    engine = tamis.Engine(tiny_v4)

    def fail(value):
        raise LookupError(value)

    alone = engine.generate("The ", 5)
    engine.add("The", 5, on_token=fail)
    engine.add("A", 5, on_text=fail)
    assert engine.generate("The ", 5) == alone  # not its business
    for _ in range(2):
        with pytest.raises(LookupError):
            engine.step()
    assert not engine.step() and engine.num_unfinished == 0

    engine.add("The", 5, on_token=lambda token: 1 / 0)
    for name in ("on_token", "on_text"):
        with pytest.raises(LookupError):
            engine.generate("The ", 5, **{name: fail})
    with pytest.raises(ZeroDivisionError):
        engine.run()
    engine.run()
    assert engine.num_unfinished == 0


def test_errors(tiny_v4):
    engine = tamis.Engine(tiny_v4, cache_tokens=1024)
    for token in (-5, 10**9):
        with pytest.raises(ValueError, match=f"Engine.add: stop_tokens has {token}, must be tokens in"):
            engine.add("a", 1, stop_tokens=[token])
    with pytest.raises(ValueError):
        engine.add([], 1)
    with pytest.raises(ValueError, match="temperature is -1"):
        engine.add("a", 1, temperature=-1.0)
    with pytest.raises(ValueError, match="prompt"):
        engine.add([], 1)
    with pytest.raises(MemoryError, match="pages"):
        engine.add([5] * 20000, 1)
    with pytest.raises(ValueError, match="kv_cache is 'fp7'"):
        tamis.Engine(tiny_v4, kv_cache="fp7")
    for options, error, text in (
        ({"kv_cache": None}, TypeError, "kv_cache is NoneType, must be a str"),
        ({"num_threads": -1}, ValueError, "num_threads is -1, must be at least 0"),
        ({"index_topk": 1.5}, TypeError, "index_topk is float, must be an integer"),
        ({"model": 3}, TypeError, "model is int, must be a path"),
        ({"device": None}, TypeError, "device is NoneType, must be a str"),
    ):
        with pytest.raises(error, match=f"^Engine: {text}"):
            tamis.Engine(**{"model": tiny_v4, **options})


@pytest.mark.parametrize(
    ("error", "text", "options"),
    [
        (TypeError, "prompt is bytes, must be a sequence of integers", {"prompt": b"abc"}),
        (TypeError, "prompt is NoneType, must be", {"prompt": None}),
        (TypeError, r"prompt\[1\] is str, must be an integer", {"prompt": [1, "a"]}),
        (ValueError, r"prompt\[0\] is 4294967296, must be at most", {"prompt": [2**32]}),
        (ValueError, "prompt has a lone surrogate", {"prompt": "a\ud800"}),
        (ValueError, "seed is -1, must be at least 0", {"seed": -1}),
        (TypeError, "seed is float, must be an integer", {"seed": 0.5}),
        (TypeError, "temperature is str, must be a number", {"temperature": "hot"}),
        (TypeError, "max_new_tokens is NoneType, must be an integer", {"max_new_tokens": None}),
        (TypeError, "stop_tokens is int, must be a sequence", {"stop_tokens": 1}),
        (TypeError, "on_token is int, must be callable", {"on_token": 1}),
        (TypeError, "on_text is str, must be callable", {"on_text": "x"}),
    ],
)
def test_errors_of_a_request(tiny_v4, error, text, options):
    engine = tamis.Engine(tiny_v4)
    with pytest.raises(error, match=f"^Engine.add: {text}"):
        engine.add(**{"prompt": "a", **options})
    assert engine.num_unfinished == 0
    engine.add("The", 1, seed=2**64 - 1, stop_tokens=(t for t in [1]))
    with pytest.raises(TypeError, match="^Engine.cancel: id is str"):
        engine.cancel("1")
    with pytest.raises(TypeError, match=r"^Engine.decode: tokens\[0\] is str"):
        engine.decode("a".split())
