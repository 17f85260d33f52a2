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

  --quick        only the default build's tests: no sanitizers, no check for aarch64
  --label LABEL  only tests with this CTest label: unit, golden, docs, mpi, slurm, fuzz, experiments
                 or issues (implies --quick)
  -h, --help     this text

Examples:
  tests/run.sh                everything, as CI does
  tests/run.sh --quick        while you work
  tests/run.sh --label slurm  only the tests on a private Slurm cluster
TEXT
}

labels='unit golden docs mpi slurm fuzz experiments issues'
quick=no label=()
while (($#)); do
  case $1 in
    --quick) quick=yes ;;
    --label)
      [[ $# -ge 2 ]] || bad_usage "--label needs a value"
      [[ " $labels " == *" $2 "* ]] || bad_usage "there is no label '$2' (there are: $labels)"
      label=(-L "^$2\$"); quick=yes; shift ;;
    -h | --help) usage; exit 0 ;;
    *) bad_usage "unknown option '$1' (see tests/run.sh --help)" ;;
  esac
  shift
done

passed=0 failed=0 skipped=0
# What failed, said again at the end, where it is found in a long log.
failures=$(mktemp)
# fail WHAT
fail() {
  echo "FAILED: $1" | tee -a "$failures"
  failed=$((failed + 1))
}
# One more at a time than there are cores: many tests wait for Slurm.
at_once=$(($(nproc) + 1))
# Tests of many processes on a live Slurm or MPI may fail of a busy machine alone: they have a second try, whose first
# output is shown all the same. Any other test that fails and then passes has failed.
second_tries='^(slurm|elastic|mpi)[.]'
# count_ctest PRESET LOG STATUS: adds what ctest printed to the counts, and removes it.
count_ctest() {
  local preset=$1 log=$2 status=$3 total bad off unsteady
  total=$(sed -n 's/.* out of \([0-9]*\)$/\1/p' "$log" | tail -1)
  bad=$(sed -n 's/^[0-9]*% tests passed, \([0-9]*\) tests failed out of.*/\1/p' "$log" | tail -1)
  off=$(grep -c '\*\*\*Skipped' "$log" || true)
  # Of every test that failed its line and, of its output (which ctest prints after that line), the parts that it calls
  # "not ok" and the end. The log is read twice: first for how each test ended. Printed last: how many passed at a second
  # try that they do not have.
  unsteady=$(awk -v preset="$preset" -v second_tries="$second_tries" -v failures="$failures" '
    function name_of(line) { sub(/.*Test +#[0-9]+: /, "", line); sub(/ .*/, "", line); return line }
    function show(   i, last, shown) {
      if (!count) return
      printf "\n%s (preset %s): %s\n", passes ? "PASSED AT THE SECOND TRY" : "FAILED", preset, heading >>failures
      last = count > 40 ? count - 40 : 1
      for (i = 1; i < last; ++i) {
        if (line[i] ~ /^not ok/) shown = 20
        else if (line[i] ~ /^ok/) shown = 0
        if (shown-- > 0) print line[i] >>failures
      }
      for (i = last; i < count; ++i) print line[i] >>failures
      count = 0
    }
    /^ *([0-9]+\/[0-9]+ )?Test +#[0-9]+: / || /^ +Start +[0-9]+: / || /^[0-9]+% tests passed/ {
      if (NR == FNR) {
        if (/Test +#[0-9]+: /) ended_well[name_of($0)] = / Passed /
        next
      }
      show()
      if (/\*\*\*/ && !/\*\*\*Skipped/) {
        heading = $0; count = 1; passes = ended_well[name_of($0)]
        if (passes && name_of($0) !~ second_tries) { ++unsteady; passes = 0 }
      }
      next
    }
    NR != FNR && count { line[count++] = $0 }
    END { print unsteady + 0 }' "$log" "$log")
  rm -f "$log"
  if [[ -z $total || $total == 0 ]]; then
    fail "ctest of preset $preset ran no test (status $status)"
    return
  fi
  bad=$((bad + unsteady))
  passed=$((passed + total - bad - off)) failed=$((failed + bad)) skipped=$((skipped + off))
}
# run_ctest PRESET BUILD_DIR CTEST_OPTION...: runs the tests, shows them and counts them.
run_ctest() {
  local preset=$1 folder=$2 log status=0
  shift 2
  log=$(mktemp)
  ctest --preset "$preset" -j "$at_once" --repeat until-pass:2 --output-junit "$folder/tests.xml" "$@" | tee "$log" || status=$?
  count_ctest "$preset" "$log" "$status"
}
# start_ctest PRESET BUILD_DIR, finish_ctest PRESET: the same beside other work. They run in process groups of their own,
# which are interrupted with this script.
declare -A beside_pid=() beside_log=()
start_ctest() {
  local at=$at_once
  # With the other tests beside them these have as many at a time as there are cores.
  ((${#beside_pid[@]} == 0)) || at=$(nproc)
  beside_log[$1]=$(mktemp)
  set -m
  ctest --preset "$1" -j "$at" --repeat until-pass:2 --output-junit "$2/tests.xml" >"${beside_log[$1]}" 2>&1 </dev/null &
  beside_pid[$1]=$!
  set +m
}
finish_ctest() {
  local status=0
  wait "${beside_pid[$1]}" || status=$?
  unset "beside_pid[$1]"
  cat "${beside_log[$1]}"
  count_ctest "$1" "${beside_log[$1]}" "$status"
}
interrupt_ctest() {
  local preset
  rm -f "$failures"
  for preset in "${!beside_pid[@]}"; do
    kill -INT -- "-${beside_pid[$preset]}" 2>/dev/null || true
    wait "${beside_pid[$preset]}" || true
    rm -f "${beside_log[$preset]}"
  done
}
trap interrupt_ctest EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
# build_beside PRESET TARGET [CMAKE_OPTION...]: builds with what the tests leave over: those on a Slurm cluster mostly wait.
build_beside() (
  renice -n 19 -p "$BASHPID" >/dev/null
  build_preset "$@"
)
# check NAME COMMAND...: one test of its own.
check() {
  local name=$1
  shift
  if "$@"; then echo "ok: $name"; passed=$((passed + 1)); else fail "$name"; fi
}

# Without sanitizers all unit tests are in the default build; else most are in theirs only.
options=(-DSAILOR_TESTS_ONCE=ON)
[[ $quick == yes ]] && options=(-DSAILOR_TESTS_ONCE=OFF)
# In CI one architecture is enough to see that kernels compile, vectors check indices, and a test leaves out the runtime's
# waits for streams; elsewhere the build may be used afterwards.
[[ ${CI:-} == true ]] && options+=(-DSAILOR_WERROR=ON -DSAILOR_CUDA_ARCHITECTURES=90-real -DSAILOR_CHECK_INDICES=ON
  -DSAILOR_TEST_WAITS=ON)

groups=(run)
[[ $quick == yes ]] || groups+=(test)
ensure_packages build beside "${groups[@]}"
# The python3 of a version manager is a script, which takes twenty times as long to start as Debian's program.
if [[ $(head -c 2 "$(command -v python3)" | tr -d '\0') == '#!' && -x /usr/bin/python3 ]]; then
  mkdir -p "$sailor_root/build/python"
  ln -sf /usr/bin/python3 "$sailor_root/build/python/python3"
  export PATH="$sailor_root/build/python:$PATH"
fi
ensure_cudnn_frontend

step "Building (preset default)"
build_preset default all "${options[@]}"
packages_ready
if [[ $quick == yes ]]; then
  step "Testing"
  run_ctest default "$sailor_root/build" "${label[@]}"
else
  step "Testing, beside all that follows (results come last)"
  start_ctest default "$sailor_root/build"
  step "Building with address and undefined-behaviour sanitizers (preset asan-unity)"
  if build_beside asan-unity unit_tests "${options[@]}"; then
    step "Testing under the sanitizers, beside the next steps (results follow them)"
    start_ctest asan-unity "$sailor_root/build-asan-unity"
  else
    fail "builds with the sanitizers (see above); their tests did not run"
  fi
  step "Checking that headers that changed, and all that include them, compile alone"
  check "headers compile alone" build_beside asan-unity changed_headers_compile_alone "${options[@]}"
  step "Checking with the compiler for aarch64 (preset aarch64)"
  check "compiles for aarch64" build_beside aarch64 all "${options[@]}"
  step "Checking the format of the code, and what changed with clang-tidy"
  check "clang-format would change nothing, clang-tidy has nothing to say of what changed" \
    "$sailor_root/tests/lint.sh" --changed --seconds 45
  step "Checking the scripts"
  mapfile -t scripts < <(find "$sailor_root" -name 'build*' -prune -o -name '*.sh' -print)
  check "shellcheck finds nothing" shellcheck -x -P "SCRIPTDIR:$sailor_root" "${scripts[@]}" \
    "$sailor_root"/{.ci/run,slurm/testcluster/testcluster}
  if [[ -n ${beside_pid[asan-unity]:-} ]]; then
    step "Results of the tests under the sanitizers"
    finish_ctest asan-unity
  fi
  step "Results of the tests"
  finish_ctest default
fi

[[ ! -s $failures ]] || { step "What failed"; cat "$failures"; }
printf '\n'
if ((skipped)); then echo "$passed passed, $failed failed, $skipped skipped"; else echo "$passed passed, $failed failed"; fi
((failed == 0))
