#!/bin/bash
# What the SPANK plugin adds to a job that does not ask for a plan.
#
# Usage: experiments/spank_overhead.sh [pairs [warm-up]]
# In one allocation of a private Slurm cluster: `srun true` without the plugin and with it, in turn (200 pairs after 20),
# and the table of medians. Noise of srun is some tenths of a ms: build/tests/bench_spank has the parts by themselves.
# Programs: build/, or SAILOR_BUILD_DIR.
set -euo pipefail
# shellcheck source=experiments/usage.bash
source "$(dirname "${BASH_SOURCE[0]}")/usage.bash"
read_usage 2 "$@"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${SAILOR_BUILD_DIR:-$here/build}
pairs=${1:-200} warm_up=${2:-20}
plugin=$build/lib/sailor/sailor_spank.so
[[ -e $plugin ]] || { echo "spank_overhead.sh: there is no '$plugin'; build it, or set SAILOR_BUILD_DIR" >&2; exit 1; }
testcluster=$here/slurm/testcluster/testcluster

work=$(mktemp -d /tmp/spo.XXXXXX)
trap '"$testcluster" stop "$work/c" 2>/dev/null || true; rm -rf "$work"' EXIT
"$testcluster" start "$work/c" --owner $$ --nodes cpu:1:-:0:2:1:4000 --mpi none
eval "$("$testcluster" env "$work/c")"
unset "${!SAILOR_@}"

# Read by every srun and every slurmstepd when it starts.
: >"$work/without"
echo "optional $plugin" >"$work/with"

time_srun() { # without|with -> REPLY, in ns
  local begin end
  cp "$work/$1" "$work/new" && mv "$work/new" "$work/c/plugstack.conf"
  begin=$(date +%s%N)
  srun true
  end=$(date +%s%N)
  REPLY=$((end - begin))
}
measure() {
  for ((pair = -warm_up; pair < pairs; ++pair)); do
    # Who is first changes.
    order=(without with)
    ((pair % 2 == 0)) || order=(with without)
    for which in "${order[@]}"; do
      time_srun "$which"
      ((pair < 0)) || echo "$pair $which $REPLY"
    done
  done
}
# Steps of an allocation: a job by itself would wait for the end of the one before.
export -f measure time_srun
export work pairs warm_up
salloc --quiet -n1 bash -c measure >"$work/times"

awk '
  { time[$1, $2] = $3 / 1e6 }
  function sorted_values(which, values,   i, j, value) {
    for (i = 0; i < pairs; ++i) {
      value = which == "difference" ? time[i, "with"] - time[i, "without"] : time[i, which]
      for (j = i; j > 0 && values[j - 1] > value; --j) values[j] = values[j - 1]
      values[j] = value
    }
  }
  END {
    pairs = NR / 2
    printf "%-12s %10s %10s %10s\n", "srun true", "median", "p25", "p75"
    split("without with difference", rows, " ")
    for (row = 1; row <= 3; ++row) {
      sorted_values(rows[row], values)
      printf "%-12s %7.2f ms %7.2f ms %7.2f ms\n", rows[row], values[int(pairs / 2)], values[int(pairs / 4)], values[int(3 * pairs / 4)]
    }
    printf "%d pairs\n", pairs
  }' "$work/times"
