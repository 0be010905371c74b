"""jax arrays on the CPU: inputs where they lie, new arrays of its own type."""

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed: its tests are skipped")

import reference  # noqa: E402
import tamis  # noqa: E402


def test_topk():
    scores = np.random.default_rng(5).standard_normal((3, 200), dtype=np.float32)
    with jax.default_device(jax.devices("cpu")[0]):
        array = jax.numpy.asarray(scores)
        indices, values = tamis.topk(array, 7, order="by_value", values=True)
        assert isinstance(indices, jax.Array) and isinstance(values, jax.Array)
        assert np.array_equal(indices, reference.topk(scores, 7)[1])
        half = tamis.topk(array.astype(jax.numpy.bfloat16), 7, values=True)[1]
        assert half.dtype == jax.numpy.bfloat16
        with pytest.raises(ValueError, match="topk: index_dtype is 'int64', must be 'int32' in jax without"):
            tamis.topk(array, 7, index_dtype="int64")
        with jax.enable_x64(True):
            assert tamis.topk(array, 7, index_dtype="int64").dtype == np.int64
        with pytest.raises(ValueError, match="topk: out is read-only, must be writable"):
            tamis.topk(array, 7, out=indices)
