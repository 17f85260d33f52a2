#!/usr/bin/env bash
# From a partition to ranks in their places, on a live Slurm: sailor-plan, preflight, sailor-submit, sailor-launch or the
# SPANK plugin, and training on the nodes that the plan wants, in one partition and as a heterogeneous job over two. The
# nodes' GPUs are pretended; the ranks train on CPUs.
#
# shellcheck disable=SC2317,SC2329  # tests are called by name
# shellcheck source-path=SCRIPTDIR source=common.bash
source "$(dirname "${BASH_SOURCE[0]}")/common.bash"
launch=$bin_dir/sailor-launch

plugin=$bin_dir/../lib/sailor/sailor_spank.so
echo "required $plugin gpus=$source_dir/profiles/gpus.toml" >"$work/plugstack.conf"
[[ -e $plugin ]] || : >"$work/plugstack.conf"

start_cluster --nodes gh:3:gh200:4:16:4:8000,a:1:a100:4:16:4:8000,v:1:v100:4:16:4:8000 \
  --partitions 'normal=gh;a100=a;v100=v;mixed=ALL' --hostnames auto --plugstack "$work/plugstack.conf"

# plan PIPELINE...: each MICRO_BATCHES:GPU@ZONE/TENSOR_PARALLEL/FIRST-LAST[,...], stages separated by commas; tiny-gpt
plan() {
  local pipeline stage gpu degree layers zone batch=0
  for pipeline in "$@"; do batch=$((batch + ${pipeline%%:*})); done
  cat <<PLAN
schema_version = 1
micro_batch = 1
schedule = "1f1b"
[job]
model = "tiny-gpt"
global_batch = $batch
sequence_length = 64
precision = "fp32"
optimizer = "adamw"
PLAN
  for pipeline in "$@"; do
    printf '[[pipelines]]\nmicro_batches = %s\n' "${pipeline%%:*}"
    for stage in $(tr , ' ' <<<"${pipeline#*:}"); do
      IFS=/ read -r gpu degree layers <<<"$stage"
      zone=
      [[ $gpu == *@* ]] && zone=${gpu#*@}
      printf '[[pipelines.stages]]\nlayers = [%s, %s]\ngpu = "%s"\ntensor_parallel = %s\n' "${layers%-*}" "${layers#*-}" \
        "${gpu%@*}" "$degree"
      [[ -z $zone ]] || printf 'zone = "%s"\n' "$zone"
    done
  done
}
# Groups of 2, 4 and 2: the two of 2 share a node though the group of 4 stands between them in the plan.
plan 2:GH200-96/2/0-3,GH200-96/4/3-6 1:GH200-96/2/0-6 >"$work/gaps.toml"
# Two pipelines that differ in depth, tensor parallelism and share of the batch, in a partition each.
plan 4:GH200-96@normal/2/0-2,GH200-96@normal/2/2-6 2:A100-40@a100/4/0-6 >"$work/mixed.toml"
seq 20000 >"$work/text"
"$bin_dir/sailor-data" bytes --output "$work/numbers" "$work/text" || exit 1

# submit PLAN RUN OPTION...: the GPUs are pretended, and nodes checked for a second
submit() {
  local plan=$1 run=$2 status=0
  shift 2
  SAILOR_TIME_BUDGET=0.2 timeout 240 "$bin_dir/sailor-submit" "$plan" --run-directory "$run" --data numbers --iterations 8 \
    --memory-per-cpu 300 --train-option=--device=cpu "$@" || status=$?
  if ((status == 124)); then
    squeue
    squeue --steps
    ps -e -o pid,ppid,etimes,stat,wchan:20,args --forest | awk '/slurmstepd|sailor|srun/'
  fi >&2
  return "$status"
}
# Once more, up to twice, when it does not end well: Slurm 22.05 now and then hangs when a step over several components
# ends (see slurm/testcluster).
submit_again() {
  local attempt id
  for attempt in 1 2 3; do
    if id=$(submit "$@"); then echo "$id"; return 0; fi
    echo "attempt $attempt did not end well" >&2
    scancel --quiet --user="$(id -un)"
  done
  return 1
}
losses() { cat "$@" | sed -n 's/^ *\([0-9][0-9]*\)  *\([0-9.]*\) .*/\2/p'; }
falls() { # LOG: 8 losses, the last below the first
  local values
  mapfile -t values < <(losses "$1")
  if ((${#values[@]} != 8)) || ! awk -v a="${values[0]}" -v b="${values[7]}" 'BEGIN { exit !(b < a) }'; then
    cat "$1"
    return 1
  fi
}

tells_each_task_its_place() {
  local places
  places=$(srun -p normal -w gh1,gh2 -N2 --ntasks-per-node=4 "$launch" --plan gaps.toml | sort -V) || return 1
  diff <(echo "$places") - <<'PLACES'
rank 0 of 8: pipeline 0, stage 0, tensor-parallel index 0, GH200-96 0 of gh1
rank 1 of 8: pipeline 0, stage 0, tensor-parallel index 1, GH200-96 1 of gh1
rank 2 of 8: pipeline 0, stage 1, tensor-parallel index 0, GH200-96 0 of gh2
rank 3 of 8: pipeline 0, stage 1, tensor-parallel index 1, GH200-96 1 of gh2
rank 4 of 8: pipeline 0, stage 1, tensor-parallel index 2, GH200-96 2 of gh2
rank 5 of 8: pipeline 0, stage 1, tensor-parallel index 3, GH200-96 3 of gh2
rank 6 of 8: pipeline 1, stage 0, tensor-parallel index 0, GH200-96 2 of gh1
rank 7 of 8: pipeline 1, stage 0, tensor-parallel index 1, GH200-96 3 of gh1
PLACES
}
gives_each_task_its_gpu() {
  local seen
  # shellcheck disable=SC2016  # of the task
  seen=$(srun -p normal -w gh1,gh2 -N2 --ntasks-per-node=4 --gpus-per-node=4 "$launch" --plan gaps.toml -- \
    bash -c 'echo "$SAILOR_RANK $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"' | sort -n) || return 1
  [[ $seen == $'0 gh1 0\n1 gh1 1\n2 gh2 0\n3 gh2 1\n4 gh2 2\n5 gh2 3\n6 gh1 2\n7 gh1 3' ]] || { echo "$seen"; return 1; }
}
says_once_what_is_wrong() {
  # Else the first node to fail ends the tasks of the other by a signal, and that is srun's exit status.
  export SLURM_KILL_BAD_EXIT=0
  expect_failure 1 srun -p normal -N1 -n4 "$launch" --plan gaps.toml -- true
  expect_in "$output" "gaps.toml: the plan has 8 ranks but the job step has 4 tasks; start it with srun --nodes=2 --ntasks-per-node=4, or make another plan"
  (($(grep -c 'the plan has' <<<"$output") == 1)) || { echo "$output"; return 1; }
  expect_failure 1 srun -p mixed -w a1,v1 -N2 --ntasks-per-node=4 "$launch" --plan gaps.toml -- true
  expect_in "$output" 'the plan needs GH200-96 on node a1, which has A100-40, and GH200-96 on node v1, which has V100-16; ask for'
  expect_failure 1 srun -p normal -w gh1,gh2 -N2 -n8 --ntasks-per-node=4 "$launch" --plan missing.toml -- true
  expect_in "$output" 'node gh1: ' 'node gh2: ' 'missing.toml'
  (($(grep -c 'missing.toml' <<<"$output") == 2)) || { echo "$output"; return 1; }
  expect_failure 1 srun -p normal -w gh1,gh2 -n2 -N2 "$launch" --plan gaps.toml -- true
  expect_failure 1 srun -p normal -w gh1,gh2 -N2 --ntasks-per-node=4 "$launch" --plan gaps.toml -- ./not-there
  expect_in "$output" "cannot start './not-there'"
}
knows_in_a_container_what_slurm_says_of_the_nodes() {
  export SLURM_KILL_BAD_EXIT=0  # as above
  # The tasks see no slurm.conf, as in a container.
  # shellcheck disable=SC2016  # of the task
  local step='unset SLURM_CONF; exec "$0" --plan gaps.toml "$@" -- true'
  SLURM_JOB_NODELIST=a1,v1 "$launch" --write-node-facts facts.toml || return 1
  expect_failure 1 srun -p mixed -w a1,v1 -N2 --ntasks-per-node=4 bash -c "$step" "$launch" --node-facts facts.toml
  expect_in "$output" 'the plan needs GH200-96 on node a1, which has A100-40, and GH200-96 on node v1, which has V100-16; ask for' || return 1
  srun -p mixed -w a1,v1 -N2 --ntasks-per-node=4 bash -c "$step" "$launch" || { echo 'without that, they know of no types'; return 1; }
  expect_failure 1 srun -p mixed -w a1,v1 -N2 --ntasks-per-node=4 bash -c "$step" "$launch" --node-facts missing.toml
  expect_in "$output" 'missing.toml' || return 1
  SLURM_JOB_NODELIST='' expect_failure 1 "$launch" --write-node-facts none.toml
  [[ ! -e none.toml ]]
}
binds_memory_without_numactl() {
  [[ -r /proc/self/numa_maps ]] || { echo 'this kernel has no NUMA policies'; return 0; }
  local policies
  policies=$("$launch" --memory-nodes 0 -- cat /proc/self/numa_maps 2>said) || { cat said; return 1; }
  if [[ -s said ]]; then expect_in "$(cat said)" 'memory cannot be bound to NUMA nodes 0'; return; fi # not permitted here
  [[ $policies == *' bind:0 '* ]] || { echo "$policies"; return 1; }
}
trains_in_an_image() {
  # srun's --comment stands in for the option that takes an image: what the job does besides is the same.
  local id check=()
  [[ ! -x $bin_dir/sailor-check ]] || check=(--check)
  cat >image.toml <<'SITE'
schema_version = 1
name = "image"
[launch]
environment = "box"
[[environments]]
name = "box"
image_option = "--comment"
[[nodes]]
gpu = "GH200-96"
cores = [[0, 0], [1, 1]]
memory_nodes = [0]
SITE
  id=$(submit_again gaps.toml image --wait -p normal --placer launcher --site image.toml --image box "${check[@]}") || { cat image/slurm-*; return 1; }
  id=$(tail -1 <<<"$id")
  falls "image/slurm-$id.out" || return 1
  expect_in "$(cat "image/nodes-$id.toml")" 'name = "gh1"' 'gres_type = "gh200"'
}
sets_what_the_site_wants() {
  export SLURM_KILL_BAD_EXIT=0  # as above
  cat >mine.toml <<'SITE'
schema_version = 1
name = "mine"
[launch.variables]
SAILOR_TEST_NETWORK = "fast"
SAILOR_TEST_OWN = "the site's"
[[environments]]
name = "box"
[environments.variables]
SAILOR_TEST_BOX = "1"
SITE
  local seen
  # shellcheck disable=SC2016  # of the task
  local tell='echo "$SAILOR_TEST_NETWORK, $SAILOR_TEST_OWN, ${SAILOR_TEST_BOX-no box}"'
  seen=$(SAILOR_TEST_OWN=mine srun -p normal -w gh1,gh2 -N2 --ntasks-per-node=4 "$launch" --plan gaps.toml --site-variables ./mine.toml -- \
    bash -c "$tell" | sort -u) || return 1
  [[ $seen == 'fast, mine, no box' ]] || { echo "$seen"; return 1; }
  seen=$(srun -p normal -w gh1,gh2 -N2 --ntasks-per-node=4 "$launch" --plan gaps.toml --site-variables ./mine.toml --software box -- \
    bash -c "$tell" | sort -u) || return 1
  [[ $seen == "fast, the site's, 1" ]] || { echo "$seen"; return 1; }
  expect_failure 1 srun -p normal -w gh1,gh2 -N2 --ntasks-per-node=4 "$launch" --plan gaps.toml --site-variables ./mine.toml --software bux -- true
  expect_in "$output" "site mine has no environment 'bux' (known: box)" 'node gh1: ' 'node gh2: '
  expect_failure 2 srun -p normal -N1 -n1 "$launch" --plan gaps.toml --software box -- true
  # What is meant for sailor-submit.
  seen=$(SAILOR_SOFTWARE=bux srun -p normal -w gh1,gh2 -N2 --ntasks-per-node=4 "$launch" --plan gaps.toml --site-variables ./mine.toml -- \
    bash -c "$tell" | sort -u) || return 1
  [[ $seen == "fast, the site's, no box" ]] || { echo "$seen"; return 1; }
  expect_failure 1 srun -p normal -w gh1 -N1 -n1 "$launch" --plan gaps.toml --site-variables nope -- true
  expect_in "$output" "site 'nope' not found" 'use --site-variables NAME, or the path of a site file'
}
asks_the_driver_which_gpus_there_are() {
  export SLURM_KILL_BAD_EXIT=0  # as above
  # gh2 has been given other GPUs than gres.conf says.
  mkdir -p driver/gh1/1 driver/gh2/1
  printf 'Model: \t\t NVIDIA GH200 120GB\n' >driver/gh1/1/information
  printf 'Model: \t\t NVIDIA A100-SXM4-40GB\n' >driver/gh2/1/information
  local folder
  # shellcheck disable=SC2016  # of the task
  local step='exec "$0" --plan gaps.toml --devices "driver/$SLURMD_NODENAME" -- true'
  expect_failure 1 srun -p normal -w gh1,gh2 -N2 --ntasks-per-node=4 bash -c "$step" "$launch"
  expect_in "$output" 'node gh2: its driver reports NVIDIA A100-SXM4-40GB (A100-40), but the plan has GH200-96 here'
  (($(grep -c 'its driver reports' <<<"$output") == 1)) || { echo "$output"; return 1; }
  for folder in driver/none driver/gh1/1/information; do
    expect_failure 1 srun -p normal -w gh1,gh2 -N2 --ntasks-per-node=4 "$launch" --plan gaps.toml --devices "$folder" -- true
    expect_in "$output" "node gh1: --devices '$folder' is no folder" "node gh2: "
  done
  cp driver/gh1/1/information driver/gh2/1/information
  srun -p normal -w gh1,gh2 -N2 --ntasks-per-node=4 bash -c "$step" "$launch"
}
trains_where_the_plan_wants_it() {
  local id
  id=$(submit_again gaps.toml gaps --wait -p normal --placer launcher) || { cat gaps/slurm-*; return 1; }
  falls "gaps/slurm-$id.out" || return 1
  expect_in "$(cat "gaps/versions-$id.txt")" 'sailor-train' 'slurm' gh1 gh2
}
waits_in_mpi_init_for_ranks_that_are_late() {
  # Without the job script's SLURM_PMIX_FENCE=ring, Open MPI 4.1's rank 0 crashes of a message that comes too early.
  local id
  unset SLURM_PMIX_FENCE
  id=$(LD_PRELOAD=$tests_dir/mpi_start_faults.so SAILOR_TEST_LATE_IN_MPI_INIT=1 \
    submit gaps.toml late --wait -p normal --placer launcher) || { cat late/slurm-*; return 1; }
  falls "late/slurm-$id.out" || return 1
  [[ $(cat "late/slurm-$id.out") != *'MPI did not start'* ]]
}
starts_once_more_when_mpi_crashes() {
  local id
  id=$(LD_PRELOAD=$tests_dir/mpi_start_faults.so SAILOR_TEST_CRASH_IN_MPI_INIT=$work/crashed \
    submit gaps.toml crashes --wait -p normal --placer launcher) || { cat crashes/slurm-*; return 1; }
  [[ -e crashed ]] && falls "crashes/slurm-$id.out" || return 1
  expect_in "$(cat "crashes/slurm-$id.out")" 'crashed in MPI_Init (SIGSEGV): MPI failed, not Sailor' \
    'MPI did not start: the job starts its ranks once more'
}
trains_a_heterogeneous_job() {
  submit_again mixed.toml mixed --wait --placer launcher >id || { cat mixed/slurm-*; return 1; }
  falls "mixed/slurm-$(tail -1 id).out" || return 1
  expect_in "$(cat mixed/job.sbatch)" '#SBATCH hetjob' '--partition=normal' '--partition=a100' '--het-group=0,1'
}
trains_a_heterogeneous_job_in_one_partition() {
  grep -v '^zone' mixed.toml >types.toml
  submit_again types.toml types --wait --placer launcher -p mixed >id-types || { cat types/slurm-*; return 1; }
  falls "types/slurm-$(tail -1 id-types).out" || return 1
  expect_in "$(cat types/job.sbatch)" '#SBATCH hetjob' '--partition=mixed' '--gres=gpu:gh200:' '--gres=gpu:a100:'
}
learns_what_one_rank_learns() {
  # The plan changes where ranks are, never what is learned.
  plan 6:cpu/1/0-6 >one.toml
  local id values others
  id=$(submit_again one.toml one --wait -p normal --devices-per-node 4) || return 1
  mapfile -t values < <(losses "one/slurm-$id.out")
  mapfile -t others < <(losses "mixed/slurm-$(tail -n 1 id).out")
  for i in "${!values[@]}"; do
    awk -v a="${values[i]}" -v b="${others[i]}" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(d <= 2e-4 * a) }' ||
      { echo "iteration $i: ${values[i]} ${others[i]}"; return 1; }
  done
}
# expect_preflight PARTITIONS PLAN: warnings at most (nobody has measured these GPUs)
expect_preflight() {
  local status=0 text
  text=$("$bin_dir/sailor-plan" -p "$1" --preflight "$2" --profile published --iterations 8 -t 10 --data numbers \
    --train-option=--device=cpu) || status=$?
  ((status == 4)) || { printf 'exit status %s\n%s\n' "$status" "$text"; return 1; }
  expect_in "$text" '0 failed' "ok           partition" 'warn         profile'
}
goes_the_whole_way() {
  local id
  "$bin_dir/sailor-plan" -p normal --model tiny-gpt --global-batch 12 --sequence-length 64 --precision fp32 \
    --profile published --framework sailor --pin tensor_parallel=2,pipeline_parallel=2 -o live.toml --placement >said || return 1
  expect_in "$(cat said)" '3 x [GH200-96 tp2: 2x3]' 'pipeline 2: stages 0 (tp2), 1 (tp2)'
  expect_preflight normal live.toml || return 1
  id=$(submit_again live.toml live --wait -t 10) || { cat live/slurm-*; return 1; }
  expect_in "$(cat live/job.sbatch)" '#SBATCH --sailor-plan='
  [[ $(cat live/job.sbatch) != *sailor-launch* ]] && falls "live/slurm-$id.out"
}
goes_the_whole_way_over_two_partitions() {
  expect_preflight normal,a100 mixed.toml || return 1
  submit_again mixed.toml by-plugin --wait -p normal,a100 -t 10 >id || { cat by-plugin/slurm-*; return 1; }
  expect_in "$(cat by-plugin/job.sbatch)" '#SBATCH --sailor-plan=' '#SBATCH hetjob'
  falls "by-plugin/slurm-$(tail -1 id).out"
}
trains_an_array_of_plans() {
  local id
  plan 2:GH200-96/1/0-3,GH200-96/1/3-6 >deep.toml
  plan 1:GH200-96/1/0-6 1:GH200-96/1/0-6 >wide.toml
  id=$("$bin_dir/sailor-submit" deep.toml wide.toml --run-directory sweep --data numbers --iterations 8 --wait -p normal \
    --memory-per-cpu 300 --train-option=--device=cpu --checkpoints kept) || { cat sweep/slurm-*; return 1; }
  diff deep.toml sweep/deep/plan.toml && diff wide.toml sweep/wide/plan.toml || return 1
  expect_in "$(cat "sweep/slurm-${id}_1.out")" "# task 1: $work/sweep/wide/plan.toml"
  falls "sweep/slurm-${id}_0.out" && falls "sweep/slurm-${id}_1.out" || return 1
  [[ -s sweep/deep/kept/iteration-00000008/manifest.json && -s sweep/wide/kept/iteration-00000008/manifest.json ]]
  expect_failure 1 "$bin_dir/sailor-submit" deep.toml mixed.toml --data numbers --iterations 8
  expect_in "$output" 'mixed.toml needs several kinds of nodes: Slurm has no arrays of heterogeneous jobs; submit it by itself'
}
goes_on_after_it_was_stopped() {
  # The first job is told to stop after its first iterations; the next one is there already, and goes on.
  local first second
  plan 6:GH200-96/1/0-6 >long.toml
  first=$("$bin_dir/sailor-submit" long.toml --run-directory long --data numbers --iterations 4000 --memory-per-cpu 300 \
    --train-option=--device=cpu -p normal --checkpoints kept --when-stopped resubmit) || return 1
  eventually grep -q '^ *3 ' "long/slurm-$first.out"
  second=$((first + 1))
  expect_in "$(squeue -h -j "$second" -o '%T %r')" 'PENDING Dependency' || return 1
  scancel --signal=USR2 "$first"
  eventually grep -qs 'goes on at iteration' "long/slurm-$second.out"
  scancel --me --name="$(squeue -h -j "$second" -o %j)"
  grep -q '"write_time_s"' kept/iteration-*/manifest.json # for the time to stop the next job
}
trains_on_nodes_that_were_checked() {
  [[ -x $bin_dir/sailor-check ]] || { echo 'sailor-check is not built'; return 0; }
  local placers=(launcher) placer
  [[ ! -e $plugin ]] || placers+=(plugin)
  for placer in "${placers[@]}"; do
    submit_again gaps.toml "checked-$placer" --wait -p normal --check --spare-nodes 1 --placer "$placer" >id-checked ||
      { cat "checked-$placer"/slurm-*; return 1; }
    falls "checked-$placer/slurm-$(tail -1 id-checked).out" || return 1
    expect_in "$(cat "checked-$placer"/check-*.txt)" '3 nodes: ' ' 0 to exclude' || return 1
  done
  submit_again mixed.toml checked-mixed --wait --check --placer launcher >id-checked || { cat checked-mixed/slurm-*; return 1; }
  falls "checked-mixed/slurm-$(tail -1 id-checked).out" || return 1
  expect_in "$(cat checked-mixed/check-*.txt)" '2 nodes: ' ' 0 to exclude'
}

check 'tells each task its place' tells_each_task_its_place
check 'gives each task its GPU' gives_each_task_its_gpu
check 'says once what is wrong' says_once_what_is_wrong
check 'knows in a container what Slurm says of the nodes' knows_in_a_container_what_slurm_says_of_the_nodes
check 'binds memory without numactl' binds_memory_without_numactl
check 'sets what the site wants' sets_what_the_site_wants
check 'asks the driver which GPUs there are' asks_the_driver_which_gpus_there_are
if [[ -n $mpi ]]; then
  check 'trains where the plan wants it' trains_where_the_plan_wants_it
  if [[ -e $tests_dir/mpi_start_faults.so ]]; then
    check 'waits in MPI_Init for ranks that are late' waits_in_mpi_init_for_ranks_that_are_late
    check 'starts once more when MPI crashes' starts_once_more_when_mpi_crashes
  fi
  check 'trains a heterogeneous job over two partitions' trains_a_heterogeneous_job
  check 'trains a heterogeneous job over the GPU types of a partition' trains_a_heterogeneous_job_in_one_partition
  check 'learns what one rank learns' learns_what_one_rank_learns
  if [[ -e $plugin ]]; then
    check 'goes the whole way: partition, plan, preflight, placed training' goes_the_whole_way
    check 'goes the whole way over two partitions' goes_the_whole_way_over_two_partitions
  fi
  check 'trains in an image' trains_in_an_image
  check 'trains an array of plans' trains_an_array_of_plans
  check 'goes on after it was stopped' goes_on_after_it_was_stopped
  check 'trains on nodes that were checked' trains_on_nodes_that_were_checked
fi
finish
