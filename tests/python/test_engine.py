"""Whole models from Python."""

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


def test_errors(tiny_v4):
    engine = tamis.Engine(tiny_v4, cache_tokens=1024)
    with pytest.raises(ValueError, match="temperature is -1"):
        engine.add("a", 1, temperature=-1.0)
    with pytest.raises(ValueError, match="prompt"):
        engine.add([], 1)
    with pytest.raises(MemoryError, match="pages"):
        engine.add([5] * 20000, 1)
    with pytest.raises(ValueError, match="kv_cache is 'fp7'"):
        tamis.Engine(tiny_v4, kv_cache="fp7")
