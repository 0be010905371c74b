"""Where the repository is, and which array libraries are there."""

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("TAMIS_SOURCE_DIR", Path(__file__).resolve().parents[2]))


@pytest.fixture
def root(monkeypatch):
    """The repository's root, and the current folder while the test runs: examples name models/tiny-v4."""
    monkeypatch.chdir(ROOT)
    return ROOT


@pytest.fixture
def tiny_v4(root):
    return root / "models" / "tiny-v4"
