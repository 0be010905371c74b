"""What the package promises as a package: light imports, documentation with examples, types."""

import ast
import doctest
import importlib.util
import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tamis

PACKAGE = Path(tamis.__file__).parent


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_is_light():
    heavy = "{'torch', 'jax', 'cupy', 'transformers', 'vllm', 'ml_dtypes'}"
    assert run(f"import sys, tamis, tamis.compat; print(sorted({heavy} & set(sys.modules)))") == "[]\n"
    # A call on numpy arrays loads none of them either.
    call = "import sys, numpy, tamis; tamis.topk(numpy.zeros((1, 4), 'f'), 2)"
    assert run(f"{call}; print(sorted({heavy} & set(sys.modules)))") == "[]\n"


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
def test_import_leaves_the_driver_alone():
    code = "import tamis; print('libcuda.so' in open('/proc/self/maps').read())"
    assert run(code) == "False\n"


def test_version():
    assert tamis.__version__.count(".") == 2


@pytest.mark.parametrize("name", sorted(set(tamis.__all__) - {"__version__", "CompressPlan"}))
def test_documented_with_an_example(name, root):
    item = getattr(tamis, name)
    tests = doctest.DocTestFinder(recurse=False).find(item, name, globs={})
    assert len(tests) == 1 and tests[0].examples, f"{name} has no example"
    failures = []
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(tests[0], out=failures.append)
    assert not failures, "".join(failures)
    doc = inspect.getdoc(item)
    sections = ["Examples"] if inspect.isclass(item) else ["Parameters", "Returns", "Raises", "Examples"]
    if name == "compress":
        sections.remove("Returns")
    for section in sections:
        assert f"{section}\n{'-' * len(section)}\n" in doc, f"{name}: no section {section}"
    for parameter in inspect.signature(item).parameters:
        assert parameter in doc, f"{name}: {parameter} is not documented"


def test_stub_names_what_is_there():
    from tamis import _core

    stub = ast.parse((PACKAGE / "_core.pyi").read_text())

    def members(body):
        return {
            node.name if isinstance(node, ast.FunctionDef | ast.ClassDef) else node.target.id
            for node in body
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AnnAssign)
        }

    assert members(stub.body) == {name for name in dir(_core) if not name.startswith("_") or name == "__version__"}
    for node in stub.body:
        if isinstance(node, ast.ClassDef) and node.name in ("Engine", "StreamDecoder"):
            there = {name for name in vars(getattr(_core, node.name)) if not name.startswith("_")}
            assert members(node.body) - {"__init__"} == there
    assert (PACKAGE / "py.typed").exists()


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_types(tmp_path):
    # A copy, since mypy takes no folder of installed packages for its own.
    shutil.copytree(PACKAGE, tmp_path / "tamis", ignore=shutil.ignore_patterns("*.so*", "__pycache__"))
    options = ["--strict", "--ignore-missing-imports", "--follow-imports=silent", f"--cache-dir={tmp_path / 'cache'}"]
    files = ["tamis/__init__.py", *sorted(f"tamis/{path.name}" for path in PACKAGE.glob("_[a-z]*.py"))]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *files], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout
