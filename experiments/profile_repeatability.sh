#!/bin/bash
# Does a repetition of sailor-profile layers have its medians inside the intervals that were stored before?
#
# Usage: experiments/profile_repeatability.sh [repetitions [ranks [seconds]]]
# Profiles tiny-gpt and one block of OPT-350M so many times (5), on so many ranks (2), each for so many seconds at most
# (30), in turn. Prints for every layer the medians in ms, their spread, the stored intervals as a share of the median,
# and how many of the ordered pairs of runs (first, repetition) have the repetition's median in the first one's
# interval. A store that holds all runs widens
# the newest intervals to what repetitions really did: the last column counts those.
# The stores stay in ./repeatability. Programs: $PATH, else build/bin.
set -euo pipefail
# shellcheck source=experiments/usage.bash
source "$(dirname "${BASH_SOURCE[0]}")/usage.bash"
read_usage 3 "$@"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PATH="$PATH:$here/build/bin"
repetitions=${1:-5} ranks=${2:-2} seconds=${3:-30}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

measure() { # STORE ARGUMENTS...
  local store=$1
  shift
  mpirun -n "$ranks" sailor-profile layers "$@" --time-budget "$seconds" --store "$store" >"$store.txt"
}

mkdir -p repeatability
for ((run = 1; run <= repetitions; ++run)); do
  measure "repeatability/tiny-$run" --model tiny-gpt --micro-batches 1,4
  measure "repeatability/opt-$run" --model opt-350m --micro-batches 1 --sequence-length 512 --layers block --blocks 1
done

# rows STORE: "model layer micro-batch pass median low high", times in s.
rows() {
  sailor-profile show "$1" --format json | tr -d ' ",' | awk -F: '
    $1 == "model" { model = $2 }
    $1 == "layer_kind" { kind = $2 }
    $1 == "micro_batch" { size = $2 }
    match($1, /^(forward|backward)_(median|low|high)_s$/) {
      pass = $1; sub(/_.*/, "", pass)
      what = $1; sub(/^[a-z]*_/, "", what); sub(/_s$/, "", what)
      value[pass, what] = $2
      if ((pass SUBSEP "median") in value && (pass SUBSEP "low") in value && (pass SUBSEP "high") in value) {
        print model, kind, size, pass, value[pass, "median"], value[pass, "low"], value[pass, "high"]
        delete value[pass, "median"]; delete value[pass, "low"]; delete value[pass, "high"]
      }
    }'
}

sailor-profile merge repeatability/tiny-? repeatability/opt-? --output repeatability/all >repeatability/merge.txt

{
  for ((run = 1; run <= repetitions; ++run)); do
    rows "repeatability/tiny-$run"
    rows "repeatability/opt-$run"
  done
  rows repeatability/all
} | awk -v repetitions="$repetitions" '
  { key = $1 " " $2 " " $3 " " $4
    if (!(key in runs)) order[++keys] = key
    if (runs[key] == repetitions) { all_low[key] = $6; all_high[key] = $7; next }
    n = ++runs[key]; median[key, n] = $5; low[key, n] = $6; high[key, n] = $7 }
  END {
    printf "%-10s %-10s %-5s %-8s  %-42s %7s  %-24s %-18s  %s\n", "model", "layer", "batch", "pass",
      "medians (ms)", "spread", "intervals (+-%)", "repetitions inside", "inside the merged interval"
    for (k = 1; k <= keys; ++k) {
      key = order[k]; split(key, name, " "); medians = ""; intervals = ""; inside = pairs = 0
      least = most = median[key, 1]
      for (i = 1; i <= runs[key]; ++i) {
        medians = medians sprintf("%.4g ", 1000 * median[key, i])
        below = median[key, i] - low[key, i]; above = high[key, i] - median[key, i]
        intervals = intervals sprintf("%.0f ", 100 * (above > below ? above : below) / median[key, i])
        if (median[key, i] < least) least = median[key, i]
        if (median[key, i] > most) most = median[key, i]
        for (j = 1; j <= runs[key]; ++j) {
          if (i == j) continue
          ++pairs
          inside += low[key, i] <= median[key, j] && median[key, j] <= high[key, i]
        }
      }
      merged = 0
      for (i = 1; i <= runs[key]; ++i) merged += all_low[key] <= median[key, i] && median[key, i] <= all_high[key]
      all_inside += inside; all_pairs += pairs; all_merged += merged; all_runs += runs[key]
      printf "%-10s %-10s %-5s %-8s  %-42s %6.0f%%  %-24s %-18s  %d of %d\n",
        name[1], name[2], name[3], name[4], medians, 100 * (most / least - 1), intervals, inside " of " pairs,
        merged, runs[key]
    }
    if (all_pairs)
      printf "all: %d of %d repetitions inside (%.0f%%; 95%% while the machine stays as it is), merged %d of %d\n",
        all_inside, all_pairs, 100 * all_inside / all_pairs, all_merged, all_runs
  }'
