"""DeepSelect's interface: signature, defaults, fills and shapes of version 1.0.0."""

import doctest
import inspect

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: its tests are skipped")

from tamis.compat import deep_select  # noqa: E402


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5)).to(dtype)


def test_signature():
    defaults = {name: p.default for name, p in inspect.signature(deep_select.topk).parameters.items()}
    assert list(defaults.items()) == [
        ("input", inspect.Parameter.empty),
        ("topk", inspect.Parameter.empty),
        ("sorted", False),
        ("begin", None),
        ("end", None),
        ("indices_type", torch.int64),
        ("sorted_index", False),
        ("hint", None),
        ("output_idx", None),
        ("output_idx_offset", None),
        ("idx_oob_fill_value", 2147483647),
        ("value_oob_fill_value", float("-inf")),
        ("return_value", True),
        ("abort_when_nan_found", True),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [40, 1001])  # no multiple of 1,024 bytes
def test_agrees_with_torch(dtype, width):
    scores = normal(5, width, dtype=dtype)
    values, indices = deep_select.topk(scores, 13, sorted=True)
    assert values.shape == indices.shape == (5, 13) and values.dtype == dtype and indices.dtype == torch.int64
    assert torch.equal(values, scores.topk(13).values)
    assert torch.equal(scores.gather(1, indices), values)
    values, indices = deep_select.topk(scores, 13, sorted_index=True, indices_type=torch.int32)
    assert torch.equal(indices, indices.sort(dim=1).values) and indices.dtype == torch.int32
    assert torch.equal(values.sort(dim=1, descending=True).values, scores.topk(13).values)


def test_fills():
    scores = torch.tensor([[1.0, 5.0, 3.0], [4.0, 2.0, 9.0], [1.0, 2.0, 3.0]])
    end = torch.tensor([3, 2, 0], dtype=torch.int32)
    values, indices = deep_select.topk(scores, 4, end=end, sorted=True)
    big, low = 2147483647, float("-inf")
    assert indices.tolist() == [[1, 2, 0, big], [0, 1, big, big], [big] * 4]
    assert values.tolist() == [[5, 3, 1, low], [4, 2, low, low], [low] * 4]
    # Without `end`, rows that are too narrow are filled, too; the offset is not added to a fill.
    offset = torch.tensor([-5, 10, 20], dtype=torch.int32)
    values, indices = deep_select.topk(
        scores, 4, output_idx_offset=offset, idx_oob_fill_value=-7, value_oob_fill_value=0.5
    )
    assert indices.tolist() == [[-5, -4, -3, -7], [10, 11, 12, -7], [20, 21, 22, -7]]
    assert values[:, 3].tolist() == [0.5] * 3


def test_negative_mapped_indices():
    """An offset may make an index negative: it is no fill."""
    values, indices = deep_select.topk(
        torch.tensor([[3.0, 1.0]]), 1, output_idx_offset=torch.tensor([-9], dtype=torch.int32)
    )
    assert indices.tolist() == [[-9]]


def test_output_idx_and_no_values():
    scores = normal(3, 100)
    buffer = torch.full((3, 10), -3, dtype=torch.int32)
    values, indices = deep_select.topk(
        scores, 8, indices_type=torch.int32, output_idx=buffer[:, :8], return_value=False, idx_oob_fill_value=-1
    )
    assert values is None and indices.data_ptr() == buffer.data_ptr()
    assert torch.equal(buffer[:, :8].sort().values.long(), scores.topk(8).indices.sort().values)
    assert (buffer[:, 8:] == -3).all()


def test_nan_ranks_last():
    scores = torch.tensor([[float("nan"), 1.0, float("-inf"), 2.0]])
    values, indices = deep_select.topk(scores, 3, sorted=True)
    assert indices.tolist() == [[3, 1, 2]]


def test_what_is_refused():
    scores = normal(2, 10)
    with pytest.raises(ValueError, match="sorted and sorted_index are both True"):
        deep_select.topk(scores, 2, sorted=True, sorted_index=True)
    with pytest.raises(ValueError, match="sorted is True and return_value False"):
        deep_select.topk(scores, 2, sorted=True, return_value=False)
    for name in ("begin", "hint"):
        with pytest.raises(NotImplementedError, match=f"{name} is given"):
            deep_select.topk(scores, 2, **{name: torch.zeros(2, dtype=torch.int32)})
    with pytest.raises(ValueError, match="indices_type is torch.int8"):
        deep_select.topk(scores, 2, indices_type=torch.int8)
    with pytest.raises(ValueError, match="output_idx is torch.int32, must be indices_type = torch.int64"):
        deep_select.topk(scores, 2, output_idx=torch.zeros(2, 2, dtype=torch.int32))


def test_errors_name_the_callers_arguments():
    scores = normal(2, 9)
    for text, arguments in (
        ("topk: input is float64, must be", {"input": scores.double()}),
        ("topk: end is int64, must be", {"end": torch.ones(2, dtype=torch.int64)}),
        (r"topk: output_idx is int64 \[2, 4\]", {"output_idx": torch.zeros(2, 4, dtype=torch.int64)}),
        ("topk: topk is float, must be", {"topk": 3.0}),
        ("topk: output_idx_offset is fp32, must be", {"output_idx_offset": torch.zeros(2)}),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            deep_select.topk(**({"input": scores, "topk": 3} | arguments))


def test_arguments_are_checked_before_anything_is_written():
    scores, out = normal(2, 10), torch.full((2, 3), -5)
    for name, value in (("end", np.array([3, 2], np.int32)), ("output_idx_offset", [1, 2])):
        with pytest.raises(TypeError, match=f"topk: {name} is (ndarray|list), must be a torch.Tensor"):
            deep_select.topk(scores, 3, output_idx=out, **{name: value})
    assert (out == -5).all()
    with pytest.raises(TypeError, match="topk: input is ndarray"):
        deep_select.topk(scores.numpy(), 3)
    assert torch.equal(deep_select.topk(scores, 3, sorted=True, return_value=1)[0], scores.topk(3).values)
    assert deep_select.topk(scores, 3, return_value=0)[0] is None


def test_examples_of_the_documentation():
    failed, attempted = doctest.testmod(deep_select)
    assert failed == 0 and attempted > 0
