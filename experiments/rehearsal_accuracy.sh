#!/bin/bash
# Do rehearsals of plans for up to 64 GPUs take the time that the simulator says?
#
# Usage: experiments/rehearsal_accuracy.sh [iterations [PLAN...]]
# Plans opt-350m-sailor by the published figures for parts of the clusters in experiments/clusters, for the framework
# that those figures are of and for Sailor's own, and rehearses every plan (or those named: best-8-sailor) with `sailor-train --rehearse` on as many
# ranks as it has GPUs, for so many iterations (3, of which the first does not count). Prints, per plan: ranks, how much
# slower than on the GPUs time passed, the iteration time rehearsed, with exact waits and simulated, the errors, and the
# largest relative difference of a rank's memory between rehearsal and simulation. All files stay in ./rehearsal-accuracy.
# Programs: $PATH, else build/bin. Needs mpirun; takes 10 minutes on 2 cores, and 4 GB of memory.
set -euo pipefail
# shellcheck source=experiments/usage.bash
source "$(dirname "${BASH_SOURCE[0]}")/usage.bash"
read_usage 1 "$@"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PATH="$PATH:$here/build/bin"
iterations=${1:-3}
shift $(($# > 0))
wanted=("$@")
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OPENBLAS_NUM_THREADS=1

mkdir -p rehearsal-accuracy
cd rehearsal-accuracy

# plan NAME CLUSTER FRAMEWORK ARGUMENTS...
plan() {
  local name=$1 cluster=$here/experiments/clusters/$2.toml framework=$3
  shift 3
  ((${#wanted[@]} == 0)) || [[ " ${wanted[*]} " == *" $name "* ]] || return 0
  sailor-plan --cluster "$cluster" --model opt-350m-sailor --profile published --framework "$framework" \
    --global-batch 128 --sequence-length 2048 --format toml "$@" >"$name.toml" 2>"$name.plan.txt"
  local ranks
  ranks=$(awk -F'= *' '
    /^\[\[pipelines\]\]/ { count = 1 } /^count =/ { count = $2 + 0 }
    /^tensor_parallel =/ { ranks += count * $2 } END { print ranks }' "$name.toml")
  mpirun -n "$ranks" sailor-train --rehearse "$name.toml" --profile published --cluster "$cluster" \
    --iterations "$iterations" >"$name.txt" 2>"$name.err" || { cat "$name.err" >&2; return 1; }
  awk -v name="$name" -v ranks="$ranks" '
    /times slower than there$/ { slower = $0; sub(/ times slower than there$/, "", slower); sub(/.* /, "", slower) }
    /^# iteration time:/ {
      match($0, /rehearsed [^(]*/); rehearsed = substr($0, RSTART + 10, RLENGTH - 11)
      match($0, /\([^)]* with/); exact = substr($0, RSTART + 1, RLENGTH - 6)
      match($0, /simulated [^:]*/); simulated = substr($0, RSTART + 10, RLENGTH - 10)
      match($0, /: [-+][^:]*$/); errors = substr($0, RSTART + 2) }
    in_table { share = $7 / $8 - 1; if (share < 0) share = -share; if (share > worst) worst = share }
    /^----/ { in_table = 1 }
    END { printf "%-31s %5d %6s %10s %10s %10s  %-16s %5.1f%%\n", name, ranks, slower, rehearsed, exact, simulated,
      errors, 100 * worst }' "$name.txt"
}

printf '%-31s %5s %6s %10s %10s %10s  %-16s %6s\n' plan ranks slower rehearsed exact simulated "error (exact)" memory
for framework in megatron-deepspeed sailor; do
  plan "best-8-$framework" a100-128 "$framework" --max-gpus 8
  plan "4-stages-16-$framework" a100-128 "$framework" --max-gpus 16 --pin pipeline_parallel=4,tensor_parallel=1
  plan "4-stages-32-$framework" a100-128 "$framework" --max-gpus 32 --pin pipeline_parallel=4,tensor_parallel=1
  plan "three-types-$framework" three-types-32 "$framework" --max-gpus 64
  plan "8-stages-64-$framework" a100-128 "$framework" --max-gpus 64 --pin pipeline_parallel=8,tensor_parallel=1
  plan "best-64-$framework" a100-128 "$framework" --max-gpus 64
done
