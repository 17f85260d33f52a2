#!/bin/bash
# Passes the tests: installs what is missing, builds, runs everything that needs no GPU (a real Slurm cluster included),
# and ends with "N passed, N failed". Second and later runs reuse the builds.
set -euo pipefail
# shellcheck source=ae_scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../ae_scripts/common.sh"

usage() {
  cat <<'TEXT'
tests/run.sh: builds Sailor and passes its tests

Usage: tests/run.sh [--quick] [--label LABEL]

  --quick        only the default build's tests: no sanitizers, no cross-compiling
  --label LABEL  only tests with this CTest label: unit, golden, mpi, slurm, fuzz (implies --quick)
  -h, --help     this text

Examples:
  tests/run.sh                everything, as CI does
  tests/run.sh --quick        while you work
  tests/run.sh --label slurm  only the tests on a private Slurm cluster
TEXT
}

quick=no label=()
while (($#)); do
  case $1 in
    --quick) quick=yes ;;
    --label) [[ $# -ge 2 ]] || die "--label needs a value"; label=(-L "^$2\$"); quick=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    *) die "unknown option '$1' (see tests/run.sh --help)" ;;
  esac
  shift
done

passed=0 failed=0 skipped=0
# run_ctest PRESET BUILD_DIR CTEST_OPTION...: adds to the counts.
run_ctest() {
  local preset=$1 folder=$2 log status=0
  shift 2
  log=$(mktemp)
  ctest --preset "$preset" -j "$(nproc)" --output-junit "$folder/tests.xml" "$@" | tee "$log" || status=$?
  local total bad off
  total=$(sed -n 's/.* out of \([0-9]*\)$/\1/p' "$log" | tail -1)
  bad=$(sed -n 's/^[0-9]*% tests passed, \([0-9]*\) tests failed out of.*/\1/p' "$log" | tail -1)
  off=$(grep -c '\*\*\*Skipped' "$log" || true)
  rm -f "$log"
  if [[ -z $total || $total == 0 ]]; then
    echo "ctest ran no test (status $status)" >&2
    failed=$((failed + 1))
    return
  fi
  passed=$((passed + total - bad - off)) failed=$((failed + bad)) skipped=$((skipped + off))
}
# check NAME COMMAND...: one test of its own.
check() {
  local name=$1
  shift
  if "$@"; then echo "ok: $name"; passed=$((passed + 1)); else echo "FAILED: $name"; failed=$((failed + 1)); fi
}

warnings=()
[[ ${CI:-} == true ]] && warnings=(-DSAILOR_WERROR=ON)

groups=(build run)
[[ $quick == yes ]] || groups+=(test)
ensure_packages "${groups[@]}"

step "Building (preset default)"
build_preset default all "${warnings[@]}"
step "Testing"
run_ctest default "$sailor_root/build" "${label[@]}"

if [[ $quick == no ]]; then
  step "Building with address and undefined-behaviour sanitizers (preset asan)"
  build_preset asan unit_tests "${warnings[@]}"
  step "Unit tests under the sanitizers"
  run_ctest asan "$sailor_root/build-asan"
  step "Cross-compiling for aarch64 (preset aarch64)"
  check "cross-compiles for aarch64" build_preset aarch64 all "${warnings[@]}"
  step "Checking the scripts"
  mapfile -t scripts < <(find "$sailor_root" -name 'build*' -prune -o -name '*.sh' -print)
  check "shellcheck finds nothing" shellcheck -x -P "SCRIPTDIR:$sailor_root" "${scripts[@]}" \
    "$sailor_root"/{.ci/run,slurm/testcluster/testcluster}
fi

printf '\n'
if ((skipped)); then echo "$passed passed, $failed failed, $skipped skipped"; else echo "$passed passed, $failed failed"; fi
((failed == 0))
