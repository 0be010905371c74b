"""Whole models: requests in, text out."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal
from weakref import WeakKeyDictionary

from tamis import _core


@dataclass
class _Listener:
    """Who is told of a request's tokens."""

    on_token: Callable[[int], object] | None
    on_text: Callable[[str], object] | None
    decoder: Any
    owner: object


class _Receiver:
    """What the engine in C++ holds of a request and calls: nothing that may refer back to the engine, since Python's
    garbage collector does not see it there.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = weakref.ref(engine)

    def __call__(self, token: int) -> None:
        if (engine := self._engine()) is not None:
            engine._receive(self, token)


class Engine:
    """Runs requests of a DeepSeek-V4 checkpoint: chunked prefill and decode of many requests in one step.

    What a request produces does not depend on the requests that share its steps.

    Parameters
    ----------
    model : path
        A folder with config.json, tokenizer.json and safetensors.
    kv_cache : {"fp8", "bf16", "fp32"}
        How cached entries are stored.
    device : str or torch.device
        Where the indexer's top-k and the compressors run: "cpu", "cuda" or "cuda:N". Never changes a token.
    index_topk : int
        Compressed entries a token attends to; 0: what the model says.
    prefill_chunk, step_tokens : int
        Most prompt tokens of one request in a step; most tokens of a step over all requests.
    cache_tokens, max_requests : int
        Tokens that requests may hold in all; requests that may run at once.
    num_threads : int
        0 uses all cores.

    Raises
    ------
    TypeError
        A setting is of another type.
    ValueError
        A file is missing or not what it promises, or a setting is outside its range.
    NotImplementedError
        They cannot run on `device`.

    Examples
    --------
    >>> import tamis
    >>> engine = tamis.Engine("models/tiny-v4", kv_cache="fp32")
    >>> pieces = []
    >>> first = engine.add("The code of cedar is 170624.\\n\\nThe code of cedar is", 7, on_text=pieces.append)
    >>> second = engine.add("The options are", 3)
    >>> engine.run()
    >>> "".join(pieces)
    ' 170624'
    """

    def __init__(
        self,
        model: str | PathLike[str],
        *,
        kv_cache: Literal["fp8", "bf16", "fp32"] = "fp8",
        device: Any = "cpu",
        index_topk: int = 0,
        prefill_chunk: int = 512,
        step_tokens: int = 2048,
        cache_tokens: int = 65536,
        max_requests: int = 64,
        num_threads: int = 0,
    ) -> None:
        self._engine = _core.Engine(
            model,
            kv_cache,
            device,
            index_topk,
            prefill_chunk,
            step_tokens,
            cache_tokens,
            max_requests,
            num_threads,
        )
        # What callbacks raised and step() has not raised yet, with the request's owner, if there is one.
        self._errors: list[tuple[object, BaseException]] = []
        # What a request calls, for as long as the engine holds its receiver.
        self._listeners: WeakKeyDictionary[_Receiver, _Listener] = WeakKeyDictionary()

    def add(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int = 64,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        stop_tokens: Sequence[int] | None = None,
        on_token: Callable[[int], object] | None = None,
        on_text: Callable[[str], object] | None = None,
    ) -> int:
        """Queue a request.

        Parameters
        ----------
        prompt : str or sequence of int
            Text, or its tokens.
        max_new_tokens : int
            At least 0.
        temperature : float
            0 always takes the likeliest token.
        top_p : float
            In (0, 1]: draw among the likeliest tokens that have this share together.
        seed : int
            Of the drawing, 0 to 2**64 - 1.
        stop_tokens : sequence of int, optional
            Each ends the request and is not passed on. Default: the model's end tokens.
        on_token : callable, optional
            Called with every new token, in order, from within step().
        on_text : callable, optional
            Called with the text that a token adds, where it adds any; characters come whole.

        Returns
        -------
        int
            The request's id.

        Raises
        ------
        TypeError
            An argument is not what is said above; bytes are no tokens.
        ValueError
            A prompt of no tokens ("" has the model's first one), a token outside the vocabulary, more tokens than the
            model's limit, or a number outside its range.
        MemoryError
            It needs more pages than a pool has.
        """
        options = (max_new_tokens, temperature, top_p, seed, stop_tokens)
        return self._add(prompt, options, on_token, on_text, None)

    def _add(
        self,
        prompt: str | Sequence[int],
        options: tuple[int, float, float, int, Sequence[int] | None],
        on_token: Callable[[int], object] | None,
        on_text: Callable[[str], object] | None,
        owner: object,
    ) -> int:
        for name, called in (("on_token", on_token), ("on_text", on_text)):
            if called is not None and not callable(called):
                raise TypeError(f"Engine.add: {name} is {type(called).__name__}, must be callable")
        if on_token is None and on_text is None:
            return self._engine.add(prompt, *options, None)
        receiver = _Receiver(self)
        self._listeners[receiver] = _Listener(on_token, on_text, _core.StreamDecoder(self._engine), owner)
        return self._engine.add(prompt, *options, receiver)

    def _receive(self, receiver: _Receiver, token: int) -> None:
        listener = self._listeners[receiver]
        try:
            if listener.on_token is not None:
                listener.on_token(token)
            if listener.on_text is not None and (text := listener.decoder.push(token)):
                listener.on_text(text)
        except BaseException as error:
            self._errors.append((listener.owner, error))
            raise  # which ends the request

    def step(self) -> bool:
        """Run one step. False if there was nothing to do.

        An exception of a callback ends its request and is raised here, after the step; where there are several, one a
        call.
        """
        more = bool(self._errors) or self._step()
        if self._errors:
            raise self._errors.pop(0)[1]
        return more

    def _step(self) -> bool:
        """One step, behind which the exceptions of callbacks are in _errors."""
        try:
            return self._engine.step()
        except BaseException as error:
            if not any(error is other for _, other in self._errors):
                raise
            return True

    def run(self) -> None:
        """Run steps until no request is left."""
        while self.step():
            pass

    def cancel(self, id: int) -> bool:
        """End a request early. False if there is none of that id."""
        return self._engine.cancel(id)

    @property
    def num_unfinished(self) -> int:
        """Requests that wait or run."""
        return self._engine.num_unfinished()

    @property
    def stats(self) -> dict[str, float]:
        """Counters since the engine was made: steps, tokens, seconds, and steps whose compression was skipped."""
        return self._engine.stats()

    @property
    def eos_token_ids(self) -> list[int]:
        """The model's end tokens."""
        return self._engine.eos_token_ids

    @property
    def vocab_size(self) -> int:
        """Tokens that the model knows."""
        return self._engine.vocab_size

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, the model's first token included."""
        return self._engine.encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, without special tokens."""
        return self._engine.decode(tokens)

    def generate(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int = 64,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        stop_tokens: Sequence[int] | None = None,
        on_token: Callable[[int], object] | None = None,
        on_text: Callable[[str], object] | None = None,
    ) -> str:
        """The text that the model writes after a prompt. Arguments as for add(); runs all requests to their end.

        Raises what this request's callbacks raise; what those of others raise, the next step() or run() does.
        """
        if on_token is not None and not callable(on_token):
            raise TypeError(f"Engine.generate: on_token is {type(on_token).__name__}, must be callable")
        tokens: list[int] = []

        def collect(token: int) -> None:
            tokens.append(token)
            if on_token is not None:
                on_token(token)

        self._add(prompt, (max_new_tokens, temperature, top_p, seed, stop_tokens), collect, on_text, collect)
        while self._step():
            for entry in self._errors:
                if entry[0] is collect:
                    self._errors.remove(entry)
                    raise entry[1]
        return self.decode(tokens)


def generate(model: str | PathLike[str], prompt: str, max_new_tokens: int = 64, **options: Any) -> str:
    """The text that a checkpoint writes after a prompt.

    Parameters
    ----------
    model : path
        A folder with config.json, tokenizer.json and safetensors.
    prompt : str
    max_new_tokens : int
    **options
        Of Engine (kv_cache, device, index_topk, num_threads, ...) and of Engine.add (temperature, top_p, seed, ...).

    Returns
    -------
    str

    Raises
    ------
    ValueError
        As of Engine and Engine.add.

    Examples
    --------
    >>> import tamis
    >>> tamis.generate("models/tiny-v4", "The code of onyx is 905337.\\n\\nThe code of onyx is", 8)
    ' 905337.'
    """
    of_add = ("temperature", "top_p", "seed", "stop_tokens", "on_token", "on_text")
    of_engine = {name: value for name, value in options.items() if name not in of_add}
    of_request = {name: value for name, value in options.items() if name in of_add}
    return Engine(model, **of_engine).generate(prompt, max_new_tokens, **of_request)
