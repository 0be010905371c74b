#!/usr/bin/env bash
# Runs the Python tests on a machine with a GPU, PyTorch and pytest, from an unpacked stage of `scripts/dev.sh
# python-stage`, then measures what a call costs the host. Needs no network and installs nothing outside the stage.
# Usage: scripts/gpu_python_test.sh [LOG_FOLDER]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

logs=${1:-logs}
mkdir -p "$logs"
python=${PYTHON:-python3}
"$python" -m pip install --quiet --no-index --no-deps --no-compile --target site ./*.whl
export PYTHONPATH=$PWD/site TAMIS_SOURCE_DIR=$PWD PYTHONDONTWRITEBYTECODE=1

status=0
"$python" -m pytest tests/python -p no:cacheprovider --durations=10 2>&1 | tee "$logs/pytest.log" || status=$?
"$python" bench/python/overhead.py --json "$logs/overhead.json" 2>&1 | tee "$logs/overhead.log" || status=$?
exit $status
