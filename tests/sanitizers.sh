#!/bin/bash
# Runs every unit test under the address and undefined-behaviour sanitizers. (tests/run.sh leaves out those of planners,
# simulators, plans and texts, and trains a share of the plans.)
set -euo pipefail
# shellcheck source=ae_scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../ae_scripts/common.sh"

usage() {
  cat <<'TEXT'
tests/sanitizers.sh: every unit test under the address and undefined-behaviour sanitizers

Usage: tests/sanitizers.sh [REGEX]

Builds (preset asan-unity) and runs all unit tests and fuzz targets, or those that REGEX names (unit.Planner). Half an hour.

  -h, --help  this text

Exit status: 0 if all passed.
TEXT
}

tests=()
while (($#)); do
  case $1 in
    -h | --help) usage; exit 0 ;;
    -*) bad_usage "unknown option '$1' (see tests/sanitizers.sh --help)" ;;
    *) tests=(-R "$1") ;;
  esac
  shift
done

ensure_cudnn_frontend
build_preset asan-unity unit_tests -DSAILOR_TESTS_ONCE=OFF
exec ctest --preset asan-unity -j "$(($(nproc) + 1))" "${tests[@]}"
