#!/usr/bin/env bash
# Runs a script of experiments/ shortened: does it still find its programs and options, and print its table?
# Usage: run_test.sh NAME, of the functions below. What it measures counts for nothing.
#
# shellcheck disable=SC2317,SC2329  # functions are called by name
set -uo pipefail
source_dir=${SAILOR_SOURCE_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
build_dir=${SAILOR_BUILD_DIR:-$source_dir/build}
experiments=$source_dir/experiments
export PATH=$build_dir/bin:$build_dir/tests:$source_dir/slurm/testcluster:$PATH:/usr/sbin:/sbin
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
published=${SAILOR_PUBLISHED_DIR-}
unset "${!SLURM_@}" "${!SAILOR_@}"

# Short: UNIX sockets of private clusters are below it.
work=$(mktemp -d /tmp/sxt.XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

# needs PROGRAM...: or the test is skipped
needs() {
  local program
  for program; do
    command -v "$program" >/dev/null || { echo "skipped: $program is not there"; exit 77; }
  done
}
# prints PART... : in what the experiment has written to `out`
prints() {
  local part
  for part; do
    grep -qF -- "$part" out || { printf 'missing: %s\nin:\n' "$part"; cat out; exit 1; }
  done
}
run() { "$@" >out 2>err || { printf '%s: exit status %s\n' "$1" "$?"; cat out err; exit 1; }; }

heterogeneous_cpus() {
  needs slurmctld slurmd munged srun taskset mpirun
  unshare --user --map-current-user --mount --uts true 2>/dev/null || unshare --mount --uts true 2>/dev/null ||
    { echo "skipped: no right to make namespaces"; exit 77; }
  run "$experiments/heterogeneous_cpus.sh" 1 3 2 1
  prints 'fast-alone-b1 ' 'round 1: the plan of sailor-plan has '
}
profile_repeatability() {
  needs mpirun
  run env SAILOR_SAMPLES=2 SAILOR_WARM_UP=0 "$experiments/profile_repeatability.sh" 2 1 1
  prints 'tiny-gpt ' 'repetitions inside'
}
rehearsal_accuracy() {
  needs mpirun
  run "$experiments/rehearsal_accuracy.sh" 2 best-8-sailor
  prints 'best-8-sailor '
}
simulator_accuracy() {
  needs mpirun gnuplot
  run env SAILOR_SAMPLES=2 SAILOR_WARM_UP=0 "$experiments/simulator_accuracy.sh" 1 3 1 gpt-1-b4 gpt-stages-b4
  prints 'gpt-1-b4' 'gpt-stages-b4' 'mean'
  [[ -s simulator-accuracy/errors.png ]]
}
spank_overhead() {
  needs slurmctld slurmd munged srun
  [[ -e $build_dir/lib/sailor/sailor_spank.so ]] || { echo 'skipped: the plugin is not built'; exit 77; }
  SAILOR_BUILD_DIR=$build_dir run "$experiments/spank_overhead.sh" 2 1
  prints with
}
artifact_quality() {
  needs python3
  run python3 "$experiments/artifact_quality.py" --help
  prints '--published'
  [[ -n $published ]] || { echo 'skipped: SAILOR_PUBLISHED_DIR does not name the published files'; exit 77; }
  run python3 "$experiments/artifact_quality.py" --published "$published" --sailor-plan "$build_dir/bin/sailor-plan" \
    --case "A100+V100 16 each"
  prints "as good or better"
}
fit_framework() {
  needs python3
  run python3 "$experiments/fit_framework.py" --steps 1
  prints 'iteration_time: ' 'peak_memory: ' 'each by the others:' 'over 8 nodes by the rest:'
}
third_party() {
  needs python3
  # Runs as of a machine that takes 0.1 s for a block of a micro-batch on one of two ranks, and nothing for the rest.
  python3 - >runs.csv <<'PYTHON'
print("set,framework,model,layers,hidden,heads,ffn,vocab,sequence_length,precision,gpu,gpus,tensor_parallel,"
      "pipeline_parallel,data_parallel,sharding,micro_batch,global_batch,recompute,iteration_time_s,"
      "tokens_per_s_per_gpu,memory_gb,status,note")
for stages, replicas, batch in ((1, 1, 8), (1, 1, 16), (2, 1, 16), (2, 1, 32), (1, 2, 16), (1, 2, 32), (2, 2, 32)):
    alone = batch // replicas
    time = 0.1 * 8 / stages * (alone + stages - 1)
    print(f"vtrain-1-node,megatron-deepspeed,gpt,8,1024,16,,,1024,fp16,A100,{2 * stages * replicas},2,{stages},{replicas},,"
          f"1,{batch},full,{time},,,ok,")
print("mlperf,megatron-core,gpt3,,,,,,2048,,8,8,1,1,,,1,8,,1.0,,,ok,")
PYTHON
  # Interleaved stages and context parallelism: columns that older files do not have.
  {
    echo "set,model,sequence_length,precision,gpu,gpus,tensor_parallel,pipeline_parallel,data_parallel,virtual_stages,context_parallel,micro_batch,global_batch,recompute,iteration_time_s,tokens_per_s_per_gpu,memory_gb,status"
    echo "nvidia-dgxc,llama3.1-8b,8192,bf16,H100-80,8,1,1,4,NA,2,1,128,,12.5,,,ok"
    echo "nvidia-dgxc,llama3.1-8b,8192,bf16,H100-80,16,1,1,8,NA,2,1,256,,12.6,,,ok"
    echo "nvidia-dgxc,llama3.1-8b,8192,fp8,H100-80,8,1,1,4,NA,2,1,128,,9.5,,,ok"
    echo "nvidia-dgxc,llama3.1-8b,8192,fp8,H100-80,16,1,1,8,NA,2,1,256,,9.6,,,ok"
    echo "nvidia-dgxc,gpt3-175b,2048,bf16,H100-80,128,4,8,4,12,1,1,256,,8.5,,,ok"
  } >recipes.csv
  # nanotron's division: a block belongs to the stage whose share it passes; a head that passes it moves to the loss.
  (cd "$experiments" && python3 -c '
from types import SimpleNamespace
from third_party_runs.sources import by_cost
model = SimpleNamespace(hidden=2048, feed_forward=8192, blocks=16, vocabulary=131072)
assert by_cost(model, 2) == [[0, 12], [12, 19]], by_cost(model, 2)
assert by_cost(model, 8) == [[0, 4], [4, 7], [7, 9], [9, 12], [12, 14], [14, 17], [17, 18], [18, 19]], by_cost(model, 8)
assert by_cost(model, 16) is None, by_cost(model, 16)') || exit 1
  run python3 "$experiments/third_party.py" --runs runs.csv --csv log.csv
  prints 'Runs: 2 calibrate, 5 with a time and 0 that failed are judged.' '| time | 5 | ' '| time by the formula | 5 | ' \
    'Nothing to judge: 0 runs calibrate, 0 are judged, 1 left out.'
  [[ $(grep -c ',calibrates,' log.csv) == 2 && $(grep -c ',judged,' log.csv) == 5 ]] || { cat log.csv; exit 1; }
  # Nothing but the time of a block decides these runs: no prediction may be far off.
  awk -F, '$2 == "judged" && ($12 / $11 > 1.1 || $12 / $11 < 0.9) { print; bad = 1 } END { exit bad }' log.csv || exit 1
  python3 "$experiments/third_party.py" --runs runs.csv --set nowhere 2>err && { echo 'a set that is not there is accepted'; exit 1; }
  grep -qF 'no set nowhere in runs.csv (there: vtrain-1-node, mlperf)' err || { cat err; exit 1; }
  run python3 "$experiments/third_party.py" --runs recipes.csv --csv log.csv
  prints '## nvidia-dgxc, fp8' 'Runs: 1 calibrate, 2 with a time and 0 that failed are judged.' \
    'Runs: 1 calibrate, 1 with a time and 0 that failed are judged.'
  awk -F, '$2 == "judged" && ($12 / $11 > 1.1 || $12 / $11 < 0.9) { print; bad = 1 } END { exit bad }' log.csv || exit 1
}
handover() {
  needs python3
  python3 "$experiments/handover.py" --plans 1 >out 2>err
  local status=$?
  [[ $status == 77 ]] && { cat out; exit 77; }
  [[ $status == 0 ]] || { cat out err; exit 1; }
  prints 'megatron' 'taken as planned'
}
model_parameters() {
  needs python3
  python3 "$experiments/model_parameters.py" >out 2>err
  local status=$?
  [[ $status == 77 ]] && { cat out; exit 77; }
  [[ $status == 0 ]] || { cat out err; exit 1; }
  prints '| LLaMA-3-8B | llama | 8,030,261,248 | 8,030,261,248 |' '| DeepSeek-V3 | '
}
trace_import() {
  needs python3 sailor-profile
  python3 "$experiments/trace_import.py" --rounds 1 --steps 2 --no-large >out 2>err
  local status=$?
  [[ $status == 77 ]] && { cat out; exit 77; }
  [[ $status == 0 ]] || { cat out err; exit 1; }
  prints 'by record_function' 'by modules' 'by repeated operations'
}
elastic_trace() {
  needs python3 mpirun sailor-controller
  run python3 "$experiments/elastic_trace.py" --rounds 1 --until 7 --divide 4 --compress 240 --steady 3 --write written
  prints '2 changes between 2 and 4 processes' 'elastic, falls: ' 'restart: goodput at a failure every 300 s ' \
    "elastic: state came from {'memory'"
  cmp out written
}
elastic_overhead() {
  needs python3 mpirun sailor-controller
  run python3 "$experiments/elastic_overhead.py" --pairs 1 --turn 1 --hidden 32 --write written
  prints '--elastic against mpirun' '--copies auto against never' 'over 1 pair'
  cmp out written
}
planner_ablation() {
  needs python3
  run python3 "$experiments/planner_ablation.py" --shipped a100-128 --random 1 --only move-layers,alike+mixed
  prints 'without ' 'alike+mixed '
  [[ $(wc -l <planner-ablation.tsv) -ge 4 ]] || { echo 'planner-ablation.tsv is too short'; exit 1; }
}
planner_laws() {
  needs python3
  run python3 "$experiments/planner_laws.py" --small --random 1 --goal throughput --law type zone space
  prints 'space ' 'zone '
}
planner_gaps() {
  needs python3
  run python3 "$experiments/planner_gaps.py" --prove --only 'fig7, 32' "$build_dir/bin/sailor-plan"
  prints 'fig7, 32 A100' ' plans '
}
planning_time() {
  needs python3
  run python3 "$experiments/planning_time.py" --only 'LLaMA-3-70B, 16 GH200' "$build_dir/bin/sailor-plan"
  prints 'LLaMA-3-70B, 16 GH200' ' it/s, ' 'longest: '
}
planner_quality() {
  needs python3
  run python3 "$experiments/planner_quality.py" 'row 0'
  prints 'figure 8b, row 0'
}
planner_versions() {
  needs python3
  run python3 "$experiments/planner_versions.py" --random 1 --large 2 "$build_dir/bin/sailor-plan" "$build_dir/bin/sailor-plan"
  prints '3 inputs with a plan, 0 with different ones' 'mean loss 0.000%'
}
planner_speed() {
  needs python3
  run python3 "$experiments/planner_speed.py" --runs 1 --largest 64 a100-128
  prints 'a100-128 '
  [[ -s planner-speed/growth.tsv ]] || { echo 'growth.tsv is not there'; exit 1; }
}
training_speed() {
  needs python3 mpirun taskset
  (($(nproc) >= 2)) || { echo 'skipped: one core'; exit 77; }
  run python3 "$experiments/training_speed.py" --rounds 1 --iterations 3 --blocks 1 data-parallel
  prints 'data-parallel '
}

"$1"
