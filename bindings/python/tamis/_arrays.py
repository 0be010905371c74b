"""Array libraries that the extension module does not know by their C interface.

numpy, cupy, jax and PyTorch before 2.10 come by here: how they export an array, allocate one, and which stream they
work on. Newer PyTorch hands the module a table of C functions instead and never does.
"""

from __future__ import annotations

import sys
from typing import Any

_CUDA = 2  # DLPack's number of the device kind


def _library(array: Any) -> str:
    """The top-level package of an array's type, e.g. "cupy"."""
    return type(array).__module__.partition(".")[0]


def _is_cuda(array: Any) -> bool:
    return hasattr(array, "__dlpack_device__") and int(array.__dlpack_device__()[0]) == _CUDA


def stream(op: str, like: Any, index: int) -> int:
    """The handle of the stream on which the library of ``like`` works now on a CUDA device."""
    library = _library(like)
    if library == "torch":
        return int(sys.modules["torch"].cuda.current_stream(index).cuda_stream)
    if library == "cupy":
        with sys.modules["cupy"].cuda.Device(index):
            return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    raise NotImplementedError(
        f"{op}: arrays of {library} on cuda:{index}: it does not say on which stream it works, must be torch or cupy"
    )


def export(array: Any) -> Any:
    """A DLPack capsule of the array, its data ready for the library's current stream."""
    library = _library(array)
    if library == "torch" and array.requires_grad:
        array = array.detach()
    kwargs: dict[str, Any] = {"max_version": (1, 1)}
    if _is_cuda(array) and library in ("torch", "cupy"):
        handle = stream("export", array, int(array.__dlpack_device__()[1]))
        kwargs["stream"] = handle or 1  # DLPack calls the default stream 1
    try:
        return array.__dlpack__(**kwargs)
    except TypeError:  # from before DLPack 1.0, which knows no max_version
        del kwargs["max_version"]
        return array.__dlpack__(**kwargs)


def _numpy_dtype(name: str, like: Any) -> Any:
    import numpy

    dtype = getattr(like, "dtype", None)
    if getattr(dtype, "name", None) == name:
        return dtype  # also dtypes that numpy itself has no name for
    if name in ("bfloat16", "float8_e4m3fn"):
        import ml_dtypes  # numpy has these dtypes from there alone, so an array of one implies it

        return numpy.dtype(getattr(ml_dtypes, name))
    return numpy.dtype(name)


def empty(op: str, like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """An array without contents, of the library and on the device of ``like``. For jax a numpy array: see finish."""
    library = _library(like)
    if library == "torch":
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)
    if library == "cupy":
        cupy = sys.modules["cupy"]
        with like.device:
            return cupy.empty(shape, dtype=_numpy_dtype(dtype, like))
    if library in ("jax", "jaxlib") and dtype == "int64" and not sys.modules["jax"].config.jax_enable_x64:
        raise ValueError(f"{op}: index_dtype is 'int64', must be 'int32' in jax without jax_enable_x64")
    if _is_cuda(like):
        raise NotImplementedError(f"{op}: cannot make new arrays of {library} on a GPU, must be given out=")
    import numpy

    return numpy.empty(shape, dtype=_numpy_dtype(dtype, like))


def finish(like: Any, array: Any) -> Any:
    """A new output as its library's own type."""
    if _library(like) in ("jax", "jaxlib"):
        import jax.numpy

        return jax.numpy.asarray(array)
    return array
