#!/bin/bash
# Runs the tests of what has threads under the thread sanitizer.
set -euo pipefail
# shellcheck source=ae_scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../ae_scripts/common.sh"

usage() {
  cat <<'TEXT'
tests/threads.sh: data races in what has threads

Usage: tests/threads.sh [TEST...]

Builds (preset tsan) and runs the unit tests of the socket transport and control plane, recovery, checkpoints, streams of a
device that is late, the CPU backend's threads and the planners' searches, or those named (unit_elastic). A quarter of an hour.

  -h, --help  this text

Exit status: 0 if all passed and no race was seen.
TEXT
}

tests=()
while (($#)); do
  case $1 in
    -h | --help) usage; exit 0 ;;
    unit_*) tests+=("$1") ;;
    *) bad_usage "'$1' is no test, such as unit_elastic (see tests/threads.sh --help)" ;;
  esac
  shift
done
((${#tests[@]})) || tests=(unit_elastic unit_recovery unit_checkpoint unit_streams unit_runtime unit_core unit_artifact unit_simulator unit_large_search)

build_preset tsan help >/dev/null
NINJA_STATUS='[%f/%t, %es] ' cmake --build "$sailor_root/build-tsan" --target "${tests[@]}"
# OpenBLAS is not compiled for it: one thread of it has no races to report.
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 OPENBLAS_NUM_THREADS=1
failed=0
for test in "${tests[@]}"; do
  step "$test"
  "$sailor_root/build-tsan/tests/$test" --gtest_brief=1 || failed=1
done
((failed == 0))
