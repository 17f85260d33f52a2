#!/bin/bash
# Does an unequal plan pay on a cluster of which one node is half as fast?
#
# Usage: experiments/heterogeneous_cpus.sh [rounds [iterations [seconds [micro_batches]]]]
# Starts a private Slurm cluster with two nodes of one core each. Node slow1 shares its core with a process that computes
# all the time, so that it has half of it. Profiles layers and links there (as types "cpu" and "cpu-half"), lets
# sailor-plan plan for the partition, and trains tiny-gpt by that plan and by every equal one: the fast node alone, two
# equal pipelines, two equal stages, each with micro-batches of 1, 2 and 4 (or those given: "1 2", divisors of 12). Prints
# predicted and measured throughput, medians over the rounds (3) of so many iterations (12, of which the first 2 do not
# count), and the best unequal plan over the best equal one in each round. All files stay in ./heterogeneous-cpus.
# Programs: $PATH, else build/bin. Needs Slurm, taskset, 2 cores, and the right to make namespaces; 10 minutes.
set -euo pipefail
# shellcheck source=experiments/usage.bash
source "$(dirname "${BASH_SOURCE[0]}")/usage.bash"
read_usage 3 "$@"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PATH="$PATH:$here/build/bin:$here/slurm/testcluster"
rounds=${1:-3} iterations=${2:-12} seconds=${3:-40} micro_batches=${4:-1 2 4}
batch=24
for micro_batch in $micro_batches; do
  [[ $micro_batch =~ ^[1-9][0-9]?$ ]] && ((batch / 2 % micro_batch == 0)) && continue
  echo "heterogeneous_cpus.sh: error: '$micro_batch' is no divisor of $((batch / 2)) (see heterogeneous_cpus.sh --help)" >&2
  exit 2
done
if [[ -z ${SAILOR_IN_CLUSTER-} ]]; then
  mkdir -p heterogeneous-cpus
  cd heterogeneous-cpus
  SAILOR_IN_CLUSTER=1 exec testcluster run --nodes fast:1:cpu:1:1:1:4000,slow:1:cpu_half:1:1:1:4000 \
    --partitions normal=ALL --hostnames namespaced -- "$here/experiments/heterogeneous_cpus.sh" "$rounds" "$iterations" "$seconds" "$micro_batches"
fi

cat >gpus.toml <<'TOML'
schema_version = 1

[[gpus]]
name = "cpu"
kind = "cpu"
peak_fp32_flop_per_s = 80e9
memory_bandwidth_bytes_per_s = 10e9
price_usd_per_hour = 0.04
slurm_gres = ["cpu"]
source = "a core, order of magnitude"

[[gpus]]
name = "cpu-half"
kind = "cpu"
peak_fp32_flop_per_s = 40e9
memory_bandwidth_bytes_per_s = 10e9
price_usd_per_hour = 0.02
slurm_gres = ["cpu_half"]
source = "half a core"
TOML
# Every rank on the core of its node; what it runs learns its type.
cat >on-node.sh <<'SH'
#!/bin/bash
case $SLURMD_NODENAME in
  fast*) core=0 SAILOR_GPU=cpu ;;
  *) core=1 SAILOR_GPU=cpu-half ;;
esac
[[ $1 == sailor-profile ]] && export SAILOR_GPU
exec taskset -c "$core" "$@"
SH
chmod +x on-node.sh

taskset -c 1 bash -c 'while :; do :; done' &
competitor=$!
trap 'kill $competitor' EXIT
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 SAILOR_GPUS=$PWD/gpus.toml

both=(srun --mpi=pmix -N 2 --ntasks-per-node=1 ./on-node.sh)
rm -rf store
"${both[@]}" sailor-profile layers --model tiny-gpt --micro-batches 1,2,4,8 --no-cold --time-budget "$seconds" --store store \
  >profile.txt
"${both[@]}" sailor-profile links --max-message 16777216 --time-budget $((seconds / 2)) --store store >>profile.txt
sailor-data bytes --output corpus "$here"/README.md "$here"/src/*/*.cpp >data.txt

# equal NAME MICRO_BATCH COUNT TYPES LAYERS: pipelines with a stage per pair of LAYERS; for COUNT 2 one of each type.
equal() {
  local name=$1 micro_batch=$2 count=$3 type stage i
  read -ra types <<<"$4"
  read -ra stages <<<"$5"
  {
    printf 'schema_version = 1\nmicro_batch = %d\nschedule = "1f1b"\n[job]\nmodel = "tiny-gpt"\nglobal_batch = %d\n' \
      "$micro_batch" "$batch"
    printf 'sequence_length = 128\nprecision = "fp32"\noptimizer = "adamw"\n'
    for ((i = 0; i < count; ++i)); do
      printf '[[pipelines]]\ncount = 1\nmicro_batches = %d\n' $((batch / micro_batch / count))
      for stage in "${!stages[@]}"; do
        type=${types[i + stage]}
        printf '[[pipelines.stages]]\nlayers = [%s]\ngpu = "%s"\n' "${stages[stage]/:/, }" "$type"
      done
    done
  } >"$name.toml"
  plans+=("$name")
}
plans=()
for micro_batch in $micro_batches; do
  equal "fast-alone-b$micro_batch" "$micro_batch" 1 "cpu" "0:6"
  equal "equal-pipelines-b$micro_batch" "$micro_batch" 2 "cpu cpu-half" "0:6"
  equal "equal-stages-b$micro_batch" "$micro_batch" 1 "cpu cpu-half" "0:3 3:6"
done
sailor-plan --partition normal --model tiny-gpt --global-batch $batch --sequence-length 128 --profile store --top 3 \
  -o sailor.toml >sailor.txt
plans+=(sailor)

# train PLAN ROUND: seconds of an iteration.
train() {
  local plan=$1 hosts
  # The node of every rank: stages in the order of the plan, each on one device.
  hosts=$(awk '/^gpu = "cpu"/ { print "fast1" } /^gpu = "cpu-half"/ { print "slow1" }' "$plan.toml" | paste -sd,)
  local ranks
  ranks=$(tr ',' '\n' <<<"$hosts" | wc -l)
  tr ',' '\n' <<<"$hosts" >"$plan.hosts"
  rm -f "$plan.jsonl"
  SLURM_HOSTFILE=$plan.hosts srun --mpi=pmix -n "$ranks" --distribution=arbitrary ./on-node.sh sailor-train "$plan.toml" \
    --data corpus --iterations "$iterations" --metrics "$plan.jsonl" --log-every "$iterations" >"$plan-$2.txt"
  sed -n 's/.*"time_s": *\([0-9.e+-]*\).*/\1/p' "$plan.jsonl" | tail -n +3 | sort -g |
    awk '{ t[NR] = $1 } END { print NR % 2 ? t[(NR + 1) / 2] : (t[NR / 2] + t[NR / 2 + 1]) / 2 }'
}
: >times.tsv
for ((round = 1; round <= rounds; ++round)); do
  for plan in "${plans[@]}"; do
    printf '%s\t%d\t%s\n' "$plan" "$round" "$(train "$plan" "$round")" >>times.tsv
  done
  echo "round $round of $rounds done" >&2
done
for plan in "${plans[@]}"; do
  predicted=$(sailor-simulate "$plan.toml" --profile store --partition normal --format json |
    sed -n 's/.*"iteration_time_s": *\([0-9.e+-]*\).*/\1/p' | head -n 1)
  printf '%s\t0\t%s\n' "$plan" "$predicted"
done >predicted.tsv

grep -m 1 'x \[\|pipeline' sailor.txt || true
awk -F'\t' '
  function median(plan,   i, j, n, t, x) {
    n = 0
    for (i = 1; i <= rounds; ++i) t[++n] = time[plan, i]
    for (i = 2; i <= n; ++i) for (j = i; j > 1 && t[j - 1] > t[j]; --j) { x = t[j]; t[j] = t[j - 1]; t[j - 1] = x }
    return n % 2 ? t[(n + 1) / 2] : (t[n / 2] + t[n / 2 + 1]) / 2
  }
  !($1 in seen) { seen[$1] = 1; order[++plans] = $1 }
  { time[$1, $2] = $3; if ($2 > rounds) rounds = $2 }
  END {
    printf "%-20s  %12s  %12s  %9s\n", "plan", "predicted/s", "measured/s", "error"
    for (i = 1; i <= plans; ++i) {
      measured = median(order[i])
      printf "%-20s  %12.3f  %12.3f  %+8.1f%%\n", order[i], 1 / time[order[i], 0], 1 / measured, \
        100 * (time[order[i], 0] / measured - 1)
    }
    for (r = 1; r <= rounds; ++r) {
      best = 0
      for (i = 1; i <= plans; ++i)
        if (order[i] != "sailor" && (best == 0 || time[order[i], r] < best)) { best = time[order[i], r]; name = order[i] }
      printf "round %d: the plan of sailor-plan has %.2f times the throughput of %s, the best equal one\n", r, \
        best / time["sailor", r], name
    }
  }' predicted.tsv times.tsv
