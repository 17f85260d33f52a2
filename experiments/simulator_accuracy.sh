#!/bin/bash
# How far is the simulator from Sailor's own runtime on this machine?
#
# Usage: experiments/simulator_accuracy.sh [rounds [iterations [seconds [PLAN...]]]]
# Trains 33 plans of tiny-gpt and opt-mini (or those named) on one and two ranks, each for so many iterations (24, of
# which the first 2 do not count), in so many rounds (4): data and pipeline parallel, layers divided between the ranks,
# blocks computed again, ZeRO-1, GPipe, interleaved 1F1B, unequal pipelines, and mixtures. Every round first profiles
# layers of the plans' models and links (a measurement takes at most 30 seconds), so that measurement and runs see the machine in the same
# state; all profiles are merged. Seven minutes a round. Prints for every plan the median over the rounds, its spread, the prediction and its error, then the summary; a box plot and
# all files stay in ./simulator-accuracy.
# Programs: $PATH, else build/bin. Needs mpirun and 2 cores.
set -euo pipefail
# shellcheck source=experiments/usage.bash
source "$(dirname "${BASH_SOURCE[0]}")/usage.bash"
read_usage 3 "$@"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PATH="$PATH:$here/build/bin"
rounds=${1:-4} iterations=${2:-24} seconds=${3:-30}
shift $(($# < 3 ? $# : 3))
wanted=("$@")
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OPENBLAS_NUM_THREADS=1

mkdir -p simulator-accuracy/plans simulator-accuracy/runs
cd simulator-accuracy

cat >cluster.toml <<TOML
schema_version = 1
name = "this machine"
[[partitions]]
name = "local"
[[nodes]]
count = 1
gpu = "cpu"
gpus_per_node = 2
memory_per_node_bytes = $(awk '/^MemAvailable:/ { print $2 * 1024 }' /proc/meminfo)
partitions = ["local"]
TOML

# plan NAME MODEL SEQUENCE_LENGTH MICRO_BATCH PIPELINE...: a pipeline is "COUNT MICRO_BATCHES [KEY=VALUE...] STAGE ...",
# a stage its layers "FIRST:LAST", of several chunks "FIRST:LAST+FIRST:LAST". KEY is micro_batch (of the pipeline),
# tensor_parallel or recompute (of the stages after it); $schedule and $sharding are those of the plan.
plan() {
  local name=$1 model=$2 length=$3 micro_batch=$4 batch=0 ranks=0 pipeline count micro_batches words word text=
  shift 4
  ((${#wanted[@]} == 0)) || [[ " ${wanted[*]} " == *" $name "* ]] || return 0
  for pipeline; do
    read -r count micro_batches words <<<"$pipeline"
    local size=$micro_batch degree=1 stage_keys='' stages=''
    for word in $words; do
      case $word in
        micro_batch=*) size=${word#*=} ;;
        tensor_parallel=*) degree=${word#*=} ;;
        recompute=*) stage_keys="recompute = \"${word#*=}\""$'\n' ;;
        *)
          local layers="[${word//:/, }]"
          [[ $word == *+* ]] && layers="[${layers//+/], [}]"
          stages+=$'[[pipelines.stages]]\n'"layers = $layers"$'\ngpu = "cpu"\n'"tensor_parallel = $degree"$'\n'$stage_keys
          ranks=$((ranks + count * degree))
          ;;
      esac
    done
    batch=$((batch + count * micro_batches * size))
    text+=$'\n[[pipelines]]\n'"count = $count"$'\n'"micro_batches = $micro_batches"$'\n'"micro_batch = $size"$'\n'$stages
  done
  cat >"plans/$name.toml" <<TOML
schema_version = 1
micro_batch = $micro_batch
schedule = "${schedule:-1f1b}"
optimizer_sharding = "${sharding:-none}"
[job]
model = "$model"
global_batch = $batch
sequence_length = $length
precision = "fp32"
optimizer = "adamw"
$text
TOML
  plans+=("$name")
  ranks_of[$name]=$ranks
  models[$model]=yes
}

declare -A ranks_of models
plans=()
# tiny-gpt: 6 layers; opt-mini: 8 (embedding, blocks, head).
plan gpt-1-b1 tiny-gpt 128 1 "1 8 0:6"
plan gpt-1-b4 tiny-gpt 128 4 "1 4 0:6"
plan gpt-data-b2 tiny-gpt 128 2 "2 4 0:6"
plan gpt-data-b4 tiny-gpt 128 4 "2 2 0:6"
plan gpt-data-uneven tiny-gpt 128 2 "1 5 0:6" "1 3 0:6"
plan gpt-stages-b1 tiny-gpt 128 1 "1 16 0:3 3:6"
plan gpt-stages-b4 tiny-gpt 128 4 "1 4 0:3 3:6"
plan gpt-stages-uneven tiny-gpt 128 2 "1 8 0:2 2:6"
plan opt-1-b1 opt-mini 256 1 "1 4 0:8"
plan opt-data-b1 opt-mini 256 1 "2 4 0:8"
plan opt-data-b2 opt-mini 256 2 "2 2 0:8"
plan opt-stages-b1 opt-mini 256 1 "1 8 0:5 5:8"
plan opt-stages-b2 opt-mini 256 2 "1 4 0:4 4:8"
plan opt-stages-uneven opt-mini 256 1 "1 8 0:3 3:8"

# Layers divided between the ranks; blocks computed again; both.
plan gpt-tensor-b1 tiny-gpt 128 1 "1 8 tensor_parallel=2 0:6"
plan gpt-tensor-b4 tiny-gpt 128 4 "1 4 tensor_parallel=2 0:6"
plan opt-tensor-b1 opt-mini 256 1 "1 4 tensor_parallel=2 0:8"
plan opt-tensor-b2 opt-mini 256 2 "1 4 tensor_parallel=2 0:8"
plan gpt-1-selective tiny-gpt 128 4 "1 4 recompute=selective 0:6"
plan gpt-stages-full tiny-gpt 128 4 "1 4 recompute=full 0:3 3:6"
plan opt-1-full opt-mini 256 2 "1 4 recompute=full 0:8"
plan opt-stages-selective opt-mini 256 2 "1 4 recompute=selective 0:4 4:8"
plan gpt-tensor-full tiny-gpt 128 4 "1 4 tensor_parallel=2 recompute=full 0:6"
plan opt-tensor-selective opt-mini 256 2 "1 4 tensor_parallel=2 recompute=selective 0:8"
# Optimizer state divided between the replicas; the other schedules; the last stage alone computes again.
sharding=zero1 plan gpt-zero1 tiny-gpt 128 4 "2 2 0:6"
sharding=zero1 plan opt-zero1 opt-mini 256 2 "2 2 0:8"
schedule=gpipe plan gpt-gpipe tiny-gpt 128 2 "1 8 0:3 3:6"
schedule=gpipe plan opt-gpipe opt-mini 256 1 "1 8 0:4 4:8"
schedule=interleaved-1f1b plan gpt-interleaved tiny-gpt 128 2 "1 8 0:2+3:4 2:3+4:6"
schedule=interleaved-1f1b plan opt-interleaved opt-mini 256 1 "1 8 0:2+4:6 2:4+6:8"
plan gpt-stages-mixed tiny-gpt 128 4 "1 4 0:3 recompute=full 3:6"
# Pipelines that differ in micro-batch and in what they compute again.
plan gpt-unequal-batches tiny-gpt 128 2 "1 4 0:6" "1 2 micro_batch=4 0:6"
plan opt-unequal-batches opt-mini 256 1 "1 4 0:8" "1 2 micro_batch=2 recompute=full 0:8"

sailor-data bytes --output corpus "$here"/README.md "$here"/src/*/*.cpp >data.txt

for ((round = 1; round <= rounds; ++round)); do
  # layers MODEL OPTION...: nothing where no plan is of this model
  layers() {
    [[ -n ${models[$1]-} ]] || return 0
    mpirun -n 2 sailor-profile layers --busy-ranks 1,2 --tensor-parallel 1,2 --no-cold --store store --model "$@"
  }
  {
    layers tiny-gpt --micro-batches 1,2,4 --time-budget "$seconds"
    layers tiny-gpt --micro-batches 4 --recompute selective,full --time-budget "$seconds"
    layers opt-mini --micro-batches 1,2 --time-budget "$seconds"
    layers opt-mini --micro-batches 2 --recompute selective,full --time-budget "$seconds"
    mpirun -n 2 sailor-profile links --max-message 16777216 --time-budget $((seconds < 10 ? seconds : 10)) --store store
  } >"profile-$round.txt"
  for name in "${plans[@]}"; do
    mpirun -n "${ranks_of[$name]}" sailor-train "plans/$name.toml" --data corpus --iterations "$iterations" \
      --run-file "runs/$name-$round.h5" --log-every "$iterations" >"runs/$name-$round.txt"
  done
  echo "round $round of $rounds done" >&2
done

# The median over the rounds of a run's median iteration time, and the largest peak memory.
{
  printf 'schema_version = 1\ntitle = "%s, %s rounds"\n' "CPU plans of tiny-gpt and opt-mini" "$rounds"
  printf 'source = "experiments/simulator_accuracy.sh"\nframework = "sailor"\n'
  for name in "${plans[@]}"; do
    for ((round = 1; round <= rounds; ++round)); do
      sailor-simulate "plans/$name.toml" --profile store --cluster cluster.toml --against "runs/$name-$round.h5" \
        --format json
    done | tr -d ' ",' | awk -F: -v name="$name" '
      $1 == "measured_iteration_time_s" { time[++n] = $2 + 0 }
      $1 == "measured_peak_memory_bytes" && $2 > memory { memory = $2 }
      END {
        for (i = 2; i <= n; ++i)
          for (j = i; j > 1 && time[j - 1] > time[j]; --j) { t = time[j]; time[j] = time[j - 1]; time[j - 1] = t }
        median = n % 2 ? time[(n + 1) / 2] : (time[n / 2] + time[n / 2 + 1]) / 2
        printf "\n[[cases]]\nname = \"%s\"\nplan = \"plans/%s.toml\"\n", name, name
        printf "iteration_time_s = %.9g\niteration_time_low_s = %.9g\niteration_time_high_s = %.9g\n", median, time[1], time[n]
        printf "peak_memory_bytes = %.1f\n", memory
      }'
  done
} >cases.toml
sailor-simulate --against cases.toml --profile store --cluster cluster.toml --plot errors.png
