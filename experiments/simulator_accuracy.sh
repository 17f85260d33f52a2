#!/bin/bash
# How far is the simulator from Sailor's own runtime on this machine?
#
# Usage: experiments/simulator_accuracy.sh [rounds [iterations]]
# Trains 14 plans of tiny-gpt and opt-mini on one and two ranks, each for so many iterations (24, of which the first
# 2 do not count), in so many rounds (4). Every round first profiles layers and links, so that measurement and runs see
# the machine in the same state; all profiles are merged. Two minutes a round. Prints for every plan the median over the rounds, its spread,
# the prediction and its error, then the summary; a box plot and all files stay in ./simulator-accuracy.
# Programs: $PATH, else build/bin. Needs mpirun and 2 cores.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PATH="$PATH:$here/build/bin"
rounds=${1:-4} iterations=${2:-24}
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

# plan NAME MODEL SEQUENCE_LENGTH MICRO_BATCH PIPELINE...: a pipeline is "COUNT MICRO_BATCHES FIRST:LAST ...".
plan() {
  local name=$1 model=$2 length=$3 micro_batch=$4 batch=0 pipeline count micro_batches stages stage text=
  shift 4
  for pipeline; do
    read -r count micro_batches stages <<<"$pipeline"
    batch=$((batch + count * micro_batches * micro_batch))
    text+=$'\n[[pipelines]]\n'"count = $count"$'\n'"micro_batches = $micro_batches"$'\n'
    for stage in $stages; do
      text+=$'[[pipelines.stages]]\n'"layers = [${stage/:/, }]"$'\ngpu = "cpu"\n'
    done
  done
  cat >"plans/$name.toml" <<TOML
schema_version = 1
micro_batch = $micro_batch
schedule = "1f1b"
[job]
model = "$model"
global_batch = $batch
sequence_length = $length
precision = "fp32"
optimizer = "adamw"
$text
TOML
  plans+=("$name")
}

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

sailor-data bytes --output corpus "$here"/README.md "$here"/src/*/*.cpp >data.txt

for ((round = 1; round <= rounds; ++round)); do
  mpirun -n 2 sailor-profile layers --model tiny-gpt --micro-batches 1,2,4 --busy-ranks 1,2 --no-cold --time-budget 20 \
    --store store >"profile-$round.txt"
  mpirun -n 2 sailor-profile layers --model opt-mini --micro-batches 1,2 --busy-ranks 1,2 --no-cold --time-budget 20 \
    --store store >>"profile-$round.txt"
  mpirun -n 2 sailor-profile links --max-message 16777216 --time-budget 10 --store store >>"profile-$round.txt"
  for name in "${plans[@]}"; do
    ranks=2
    [[ $name == *-1-* ]] && ranks=1
    mpirun -n $ranks sailor-train "plans/$name.toml" --data corpus --iterations "$iterations" \
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
