"""The scripts of examples/ run and print what they promise."""

import importlib.util
import subprocess
import sys

import pytest

PROMISED = {
    "topk_from_torch.py": ["row 2 has 300 positions", "row 0 is torch.topk's set: True", "into out=: True"],
    "compressor_step.py": ["positions 0..99: plan NONE", "positions 100..127: plan SOME", "root mean square 1.0"],
    "generate.py": ["The code of amber is 482913.", "The code of cedar is 170624."],
    "replace_deep_select.py": ["ascending: True", "behind the 700 of row 1: 2147483647 -inf"],
}


def test_all_are_tried(root):
    assert sorted(path.name for path in (root / "examples").glob("*.py")) == sorted(PROMISED)


@pytest.mark.parametrize("name", PROMISED)
def test_example(name, root):
    path = root / "examples" / name
    if "import torch" in path.read_text() and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed: this example is skipped")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for line in PROMISED[name]:
        assert line in done.stdout, done.stdout
