#!/bin/bash
# The main job, end to end, on this machine: builds Sailor, starts a private Slurm cluster, profiles its nodes, plans,
# submits, trains, and shows what was predicted beside what was measured. Leaves nothing running, also when it is killed.
set -euo pipefail
# shellcheck source=ae_scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

iterations=60
keep=3   # runs whose files are kept

usage() {
  cat <<TEXT
ae_scripts/quickstart.sh: Sailor's main job on a private Slurm cluster of this machine

Usage: ae_scripts/quickstart.sh [--iterations N]

  --iterations N  iterations to train, at least 21 [$iterations]
  -h, --help      this text

Its files are left in build/quickstart/latest (plan.toml, the sbatch script, the log, run.h5).

Examples:
  ae_scripts/quickstart.sh                    the main job
  ae_scripts/quickstart.sh --iterations 200   a longer training, the loss falls further
  ls build/quickstart/latest/                 what it left
TEXT
}

# ---- Inside the private cluster: SLURM_CONF and Open MPI's settings come from slurm/testcluster.
inside() {
  local folder=$1 ranks=$2
  cd "$folder"
  # Short message sizes and a bounded time: minutes of profiling are for real nodes.
  local model=tiny-gpt sequence_length=128 global_batch=16

  step "Profiling the nodes, $ranks ranks busy at once, as the plan will run"
  srun -N2 -n"$ranks" --mpi=pmix sailor-profile layers --model "$model" --sequence-length "$sequence_length" \
    --micro-batches 1,2,4,8 --time-budget 10 --store store
  srun -N2 -n"$ranks" --mpi=pmix sailor-profile links --store store --max-message 16777216

  step "The corpus: texts that every Debian system has, as bytes"
  sailor-data bytes --output corpus /usr/share/common-licenses/*

  step "Planning for what partition 'normal' has"
  sailor-plan --partition normal --model "$model" --global-batch "$global_batch" --sequence-length "$sequence_length" \
    --profile store --save-cluster cluster.toml --top 5 --output plan.toml | tee plans.txt

  step "Submitting the plan"
  sailor-submit plan.toml --data "$PWD/corpus" --iterations "$iterations" --time 10 --job-name sailor-quickstart \
    --run-directory run --wait | tee job_id.txt

  local job losses log
  job=$(tail -1 job_id.txt)
  log=run/slurm-$job.out
  printf '\n================ Sailor: planned, submitted, trained, compared ================\n\n'
  printf 'plan       %s\n' "$(sailor-simulate plan.toml --profile store --cluster cluster.toml | head -1)"
  printf 'job        %s on a private Slurm cluster of this machine\n' "$job"
  losses=$(awk '$1 ~ /^[0-9]+$/ { print $2 }' "$log" |
    awk '{ l[NR] = $1 } END { for (i = 0; i < 6; ++i) printf "%s%s", i ? " -> " : "", l[1 + int(i * (NR - 1) / 5)] }')
  printf 'loss       %s  (nat per token)\n\n' "$losses"
  sailor-simulate plan.toml --profile store --cluster cluster.toml --against "run/run-$job.h5" | sed -n '/predicted/,$p'
  printf '\nfiles      %s\n' "$folder"
  printf 'look at    cd %s; less plan.toml run/job.sbatch %s\n' "$folder" "$log"

  # sailor-report, sailor-check, ..., which none of the above needs.
  printf 'programs   %s (building the others: ' "$sailor_root/build/bin"
  build_preset default programs >build.log 2>&1 || { tail -n 40 "$folder/build.log" >&2; exit 1; }
  printf 'done)\n'
}

if [[ ${1:-} == --inside ]]; then
  iterations=$4
  inside "$2" "$3"
  exit
fi
while (($#)); do
  case $1 in
    --iterations)
      if ! [[ ${2:-} =~ ^[0-9]{2,6}$ ]] || ((10#$2 < 21)); then bad_usage "--iterations needs a number of at least 21"; fi
      iterations=$2
      shift
      ;;
    -h | --help) usage; exit 0 ;;
    *) bad_usage "unknown option '$1' (see ae_scripts/quickstart.sh --help)" ;;
  esac
  shift
done

ensure_packages build beside run
step "Building Sailor"
build_preset default quickstart_programs
# The module for GPUs takes a minute more, and nobody needs it where there is none.
if [[ -e /dev/nvidiactl ]] && cmake --build --preset default --target help | grep -q '^sailor_cuda:'; then
  build_preset default sailor_cuda
fi
packages_ready

# A folder of its own for each run: a killed one is in nobody's way, and old ones are cleared away here.
runs="$sailor_root/build/quickstart"
mkdir -p "$runs"
find "$runs" -mindepth 1 -maxdepth 1 -name 'run-*' -printf '%T@ %p\n' | sort -rn | tail -n +"$keep" | cut -d' ' -f2- |
  while read -r old; do rm -rf "$old"; done
folder="$runs/run-$(date +%Y%m%d-%H%M%S)-$$"
mkdir "$folder"
ln -sfn "$(basename "$folder")" "$runs/latest"

# Two nodes that share this machine's cores (one each on two cores) and half of its memory.
cores=$(nproc)
per_node=$((cores >= 2 ? cores / 2 : 1))
((per_node <= 2)) || per_node=2
memory_mib=$(awk '/^MemAvailable:/ { print int($2 / 1024 / 4) }' /proc/meminfo)
step "Starting a private Slurm cluster: 2 nodes of $per_node $([[ $per_node == 1 ]] && echo core || echo cores)"
export PATH="$sailor_root/build/bin:$PATH"
# exec: whoever kills this process kills the cluster's owner, and the cluster's watchdog cleans up.
exec "$sailor_root/slurm/testcluster/testcluster" run \
  --nodes "node:2:-:0:$per_node:1:$memory_mib" --partitions "normal=ALL" \
  -- "${BASH_SOURCE[0]}" --inside "$folder" $((2 * per_node)) "$iterations"
