#!/usr/bin/env bash
# Runs the GPU tests of a folder of programs: everything, spread over the processor's cores, then the small cases under
# each tool of compute-sanitizer. Needs a GPU and nothing of this repository but the programs.
# Usage: scripts/gpu_test.sh FOLDER [LOG_FOLDER]
set -euo pipefail

programs=$1
logs=${2:-$(mktemp -d)}
mkdir -p "$logs"
[[ -d $programs/lib ]] && export LD_LIBRARY_PATH=$programs/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
shards=${TAMIS_JOBS:-$(nproc)}
if ((shards > 12)); then shards=12; fi
failed=0 skipped=0

# Tests that fill the chip or its memory run alone.
alone='*CudaHuge*:*Busy*'

check() {  # check NAME STATUS LOG
  if (($2 == 0)); then
    printf '%-34s passed  %s\n' "$1" "$(grep -hE 'tests? ran|ERROR SUMMARY|RACECHECK SUMMARY' "$3" | tail -1 | sed 's/^=* *//')"
  else
    printf '%-34s FAILED  see %s\n' "$1" "$3"
    grep -hE 'FAILED|Failure|=========' "$3" | head -20 || true
    failed=1
  fi
}

for program in "$programs"/*_cuda_test; do
  name=$(basename "$program")
  status=0
  "$program" --gtest_filter='*Small*' >"$logs/$name.first.log" 2>&1 || status=$?
  if ((status == 77)); then  # no GPU: it says how many tests it skips
    cat "$logs/$name.first.log"
    skipped=1
    continue
  fi

  pids=()
  for ((i = 0; i < shards; ++i)); do
    GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i "$program" --gtest_filter="-$alone" >"$logs/$name.$i.log" 2>&1 &
    pids+=($!)
  done
  for ((i = 0; i < shards; ++i)); do
    status=0
    wait "${pids[i]}" || status=$?
    check "$name, part $((i + 1)) of $shards" $status "$logs/$name.$i.log"
  done
  status=0
  "$program" --gtest_filter="$alone" >"$logs/$name.alone.log" 2>&1 || status=$?
  check "$name, huge and busy" $status "$logs/$name.alone.log"
  grep -h 'compared, by algorithm' "$logs/$name".*.log | sed 's/^.*: //' | tr ',' '\n' |
    awk 'NF == 2 { runs[$1] += $2 } END { for (name in runs) printf "  %s: %d calls compared\n", name, runs[name] }' | sort

  if ! command -v compute-sanitizer >/dev/null; then
    echo "compute-sanitizer is not installed: its tools did not run"
    failed=1
    continue
  fi
  for tool in memcheck racecheck initcheck synccheck; do
    status=0
    environment=()
    if [[ $tool == initcheck ]]; then environment=(TAMIS_TEST_FRESH_MEMORY=1); fi
    # synccheck (2025.3) breaks any kernel with a barrier that runs in 8 or more clusters of 16 blocks, so it sees
    # tall_window in clusters of 8 (docs/design/2026-12-compressor-cuda.md).
    if [[ $tool == synccheck ]]; then environment=(TAMIS_TEST_PORTABLE_CLUSTERS=1); fi
    env "${environment[@]}" compute-sanitizer --tool $tool --error-exitcode 9 "$program" \
      --gtest_filter='*Small*' >"$logs/$name.$tool.log" 2>&1 || status=$?
    check "$name, $tool" $status "$logs/$name.$tool.log"
  done
done

if ((skipped)); then exit 77; fi

# The engine with its top-k and its compressors on the GPU; it looks for models/ under the folder it is started in.
if [[ -x $programs/engine_test ]]; then
  status=0
  "$programs/engine_test" --gtest_filter='GpuTopk*:GpuCompressor*' >"$logs/engine_test.log" 2>&1 || status=$?
  check "engine_test, on the GPU" $status "$logs/engine_test.log"
fi
exit $failed
