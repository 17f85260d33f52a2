#!/usr/bin/env bash
# sailor-submit against a live Slurm. A script stands in for sailor-train: it records what it was given.
#
# shellcheck disable=SC2317,SC2329  # tests are called by name
# shellcheck disable=SC2015,SC2016  # expect_in ends a test that fails; expressions are of the scripts that are looked at
# shellcheck source-path=SCRIPTDIR source=common.bash
source "$(dirname "${BASH_SOURCE[0]}")/common.bash"
submit=$bin_dir/sailor-submit

# The nodes in the cloud are powered down, and slurmctld hides them.
printf '%s\n' Licenses=matlab:2 'NodeName=far[1-2] CPUs=4 RealMemory=4000 State=CLOUD' 'PartitionName=far Nodes=far[1-2]' \
  SuspendProgram=/bin/true ResumeProgram=/bin/true SuspendTime=60 \
  'SuspendExcNodes=cpu[1-2],gh[1-2],u[1-2]' >"$work/extra.conf"
start_cluster --conf-extra "$work/extra.conf" --nodes cpu:2:-:0:4:1:4000,gh:2:gh200:4:288:4:854000,u:2:untyped:4:8:1:4000 \
  --partitions 'cpu=cpu MaxTime=60;gpu=gh;one=gh MaxNodes=1;all=cpu[1-2],gh[1-2];odd=u' --mpi none

# plan DEVICE PIPELINES [STAGE...]: each STAGE is FIRST:LAST, of tiny-gpt's 6 layers; in zone $zone, if that is set
plan() {
  local device=$1 pipelines=$2 stage
  shift 2
  cat <<PLAN
schema_version = 1
micro_batch = 1
schedule = "1f1b"
[job]
model = "tiny-gpt"
global_batch = $((2 * pipelines))
sequence_length = 64
precision = "fp32"
optimizer = "adamw"
[[pipelines]]
count = $pipelines
micro_batches = 2
PLAN
  for stage in "$@"; do
    printf '[[pipelines.stages]]\nlayers = [%s, %s]\ngpu = "%s"\n' "${stage%:*}" "${stage#*:}" "$device"
    [[ -z ${zone-} ]] || printf 'zone = "%s"\n' "$zone"
  done
}
plan cpu 4 0:3 3:6 >"$work/cpu.toml"     # 8 ranks: 2 nodes of 4 cores
plan GH200-96 3 0:3 3:6 >"$work/gpu.toml" # 6 ranks: 4 GPUs, then 2
plan cpu 1 0:3 3:6 >"$work/small.toml"   # 2 ranks
{ plan cpu 1 0:6 | sed 's/global_batch = 2/global_batch = 4/'; plan GH200-96 1 0:6 | sed '0,/adamw/d'; } >"$work/mixed.toml"
zone=gpu plan GH200-96 3 0:3 3:6 >"$work/in-gpu.toml"
zone=east plan GH200-96 3 0:3 3:6 >"$work/in-east.toml"
touch "$work"/corpus.{bin,idx}

cat >"$work/train" <<'STAND_IN'
#!/bin/bash
printf '%s\n' "$@" >arguments
echo "rank $SLURM_PROCID on $SLURMD_NODENAME gpus ${CUDA_VISIBLE_DEVICES:-none} threads ${OMP_NUM_THREADS:-unset}"
STAND_IN
cat >"$work/fails" <<'STAND_IN'
#!/bin/bash
((SLURM_PROCID == 1)) || exec sleep 60
echo "rank 1: layer 3 is missing" >&2
exit 7
STAND_IN
printf '#!/bin/bash\nexec sleep 60\n' >"$work/sleeps"
printf '#!/bin/bash\necho "sailor-train: info: nothing to do: 5 of 5 iterations are done"\n' >"$work/done"
# As sailor-train would: writes a checkpoint, and ends as the file of the iteration says; 0 where there is none. The rank
# that ends first has Slurm terminate the others, which end as they were about to.
cat >"$work/stepwise" <<'STAND_IN'
#!/bin/bash
[[ $1 != --version ]] || exit 0
trap '' TERM
shopt -s nullglob
done=(kept/iteration-*)
((SLURM_PROCID == 0)) && echo "start ${#done[@]} on $SLURM_STEP_NODELIST as $SLURM_JOB_NAME"
sleep 0.5 # until all have seen what there is
case $(cat "end-${#done[@]}" 2>/dev/null) in
sleep) trap - TERM; exec sleep 60 ;;
on:*) bad=$(cat "end-${#done[@]}"); [[ $SLURMD_NODENAME != "${bad#on:}" ]] || exit 7 ;;
7) exit 7 ;;
75) ((SLURM_PROCID == 0)) && mkdir -p "kept/iteration-0000000${#done[@]}" && touch "kept/iteration-0000000${#done[@]}/manifest.json"; exit 75 ;;
esac
STAND_IN
chmod +x "$work"/{train,fails,sleeps,done,stepwise}

# job PLAN RUN_DIRECTORY OPTION...: sailor-submit with what all tests share
job() {
  local plan=$1 run=$2
  shift 2
  "$submit" "$plan" --run-directory "$run" --data corpus --iterations 5 --mpi none "$@"
}
nothing_submitted() { [[ -z $(squeue -h) ]] || { squeue; return 1; }; }

trains_a_cpu_plan() {
  local id log
  id=$(job cpu.toml "it's a run" --program ./train -p cpu -t 10 --wait --memory-per-cpu 50) || return 1
  [[ $id =~ ^[0-9]+$ ]] || { echo "stdout was '$id'"; return 1; }
  log=$(sort "$work/it's a run/slurm-$id.out") || return 1
  expect_in "$log" $'rank 0 on cpu1 gpus none threads 1\nrank 1 on cpu1' 'rank 3 on cpu1' 'rank 4 on cpu2' 'rank 7 on cpu2'
  diff "$work/cpu.toml" "$work/it's a run/plan.toml" || return 1
  diff <(cat "$work/it's a run/arguments") - <<ARGUMENTS
$work/it's a run/plan.toml
--data
$work/corpus
--iterations
5
--run-file
run-$id.h5
--models
$source_dir/profiles/models
ARGUMENTS
}
fills_gpu_nodes_in_the_plans_order() {
  local id log
  id=$(job gpu.toml gpu --program ./train -p gpu --cpus-per-rank 2 --wait) || return 1
  log=$(sort "gpu/slurm-$id.out") || return 1
  expect_in "$log" 'rank 0 on gh1 gpus 0 ' 'rank 3 on gh1 gpus 3 ' 'rank 4 on gh2 gpus 0 ' 'rank 5 on gh2 gpus 1 '
  [[ $log != *Warning* ]]
}
asks_slurm_about_the_nodes() {
  local script
  script=$(job gpu.toml asks --dry-run) && { echo "found GPUs in the default partition"; return 1; }
  script=$(job gpu.toml asks --dry-run -p gpu) || return 1
  expect_in "$script" '--nodes=2' '--gpus-per-node=4' '--cpus-per-task=72'
  script=$(job small.toml asks --dry-run) || return 1
  expect_in "$script" '--partition=cpu' '--nodes=1' '--ntasks=2'
  [[ ! -e asks ]] && nothing_submitted
}
tells_when_it_would_start() {
  local text
  text=$(job cpu.toml later -p cpu --test-only) || return 1
  expect_in "$text" 'to start at' 'cpu[1-2]'
  expect_failure 1 "$submit" cpu.toml -p cpu --test-only --data nope --iterations 1
  expect_in "$output" "there is no file '$work/nope.bin'" '--remote-data'
  "$submit" cpu.toml -p cpu --test-only --data nope --remote-data --iterations 1 || return 1
  [[ ! -e later ]] && nothing_submitted
}
says_how_slurm_judges_components() {
  job mixed.toml later -p cpu,gpu --test-only >starts 2>said || { cat said; return 1; }
  expect_in "$(cat starts)" 'to start at ' cpu1 gh1
  expect_in "$(cat said)" 'Slurm says it of each component alone: together they may have to wait for each other'
}
fails_when_the_job_fails() {
  expect_failure 1 job small.toml failing --program ./fails --wait
  expect_in "$output" ': FAILED, exit code ' '(NonZeroExitCode); its log ' '/failing/slurm-' 'rank 1: layer 3 is missing' 'task 1: Exited with exit code 7'
}
says_that_there_was_nothing_to_do() {
  job small.toml nothing --program ./done --wait >id 2>said || { cat said; return 1; }
  expect_in "$(cat said)" 'COMPLETED' 'nothing to do: 5 of 5 iterations are done'
}
fails_when_the_job_is_cancelled() {
  rm -f said id # of the tests before
  job small.toml cancelled --program ./sleeps --wait >id 2>said &
  local waiting=$!
  eventually grep -q RUNNING said
  scancel "$(cat id)"
  wait "$waiting" && return 1
  expect_in "$(cat said)" 'error: job ' 'CANCELLED'
}
stops_waiting_on_ctrl_c() {
  rm -f said id # of the tests before
  # A shell's background jobs ignore Ctrl-C.
  env --default-signal=INT "$submit" small.toml --run-directory waiting --data corpus --iterations 5 \
    --mpi none --program ./sleeps --wait >id 2>said &
  local waiting=$!
  eventually grep -q RUNNING said
  kill -INT "$waiting"
  wait "$waiting" && return 1
  expect_in "$(cat said)" "no longer waiting for job $(cat id), which goes on" "squeue --jobs=$(cat id)" "scancel $(cat id)"
  [[ -n $(squeue -h --jobs="$(cat id)") ]] || return 1
  scancel "$(cat id)"
}
runs_the_script_again() {
  local id
  id=$(job small.toml again --program ./train --wait) || return 1
  sbatch --parsable --wait again/job.sbatch >second || return 1
  [[ -s again/slurm-$(cat second).out && $(cat second) != "$id" ]]
}
passes_options_of_sbatch_on() {
  local id
  id=$(job small.toml options --program ./train --wait --sbatch-option=--nodelist=cpu2,cpu2 --sbatch-option='--comment=two words' -J named) || return 1
  expect_in "$(scontrol -o show job "$id")" 'JobName=named' 'Comment=two words' ' NodeList=cpu2'
}
refuses() { # MESSAGE PLAN OPTION...: without submitting anything or making the run directory
  local message=$1 plan=$2
  shift 2
  expect_failure 1 job "$plan" refused "$@"
  expect_in "$output" "$message"
  [[ ! -e refused ]] && nothing_submitted
}
is_idle() { [[ $(scontrol -o show node "$1") == *' State=IDLE '* ]]; }
takes_gpus_without_a_type_for_the_plans() {
  local script id log
  script=$(job gpu.toml untyped --dry-run -p odd 2>said) || { cat said; return 1; }
  expect_in "$script" '--partition=odd' '--gpus-per-node=4' || return 1
  [[ $script != *--gres=* ]] || { echo "$script"; return 1; }
  id=$(job gpu.toml untyped --program ./train -p odd --wait) || return 1
  log=$(sort "untyped/slurm-$id.out") || return 1
  expect_in "$log" 'rank 0 on u1 gpus 0 ' 'rank 5 on u2 gpus 1 ' || return 1
  script=$(job gpu.toml untyped --dry-run -p odd --gpu-type GH200-96 2>said) || { cat said; return 1; }
  expect_in "$script" '--gpus-per-node=4' || return 1
  refuses "partition 'odd' has no usable node with GH200-96 (it has: A100-40)" gpu.toml -p odd --gpu-type a100
}
refuses_what_cannot_run() {
  echo 'a file' >kept-file
  refuses '--checkpoints kept-file: that is no folder' gpu.toml -p gpu --checkpoints kept-file || return 1
  refuses "partition 'gqu' not found (known: all, cpu, far, gpu, odd, one); did you mean 'gpu'? use --partition NAME" gpu.toml -p gqu || return 1
  refuses "partition 'gpu' has no usable node with cpu (it has: GH200-96)" cpu.toml -p gpu || return 1
  refuses "the plan needs 2 nodes of 4 GH200-96 but partition 'one' allows 1 per job" gpu.toml -p one || return 1
  refuses "time 1-00:00:00 is over the limit of partition 'cpu': 01:00:00" cpu.toml -p cpu -t 1-0 || return 1
  scontrol update nodename=gh2 state=drain reason=test
  refuses "the plan needs 2 nodes of 4 GH200-96 but partition 'gpu' has 1 usable" gpu.toml -p gpu || return 1
  scontrol update nodename=gh2 state=resume
  eventually is_idle gh2 # at first it does not respond
}
asks_for_the_gpu_type_where_there_are_several() {
  local script
  script=$(job gpu.toml types --dry-run -p all) || return 1
  expect_in "$script" '--gres=gpu:gh200:4' '--partition=all'
  expect_in "$(job gpu.toml types --dry-run -p gpu)" '--gpus-per-node=4'
  local id log
  id=$(job gpu.toml types --program ./train -p all --cpus-per-rank 2 --wait) || return 1
  log=$(sort "types/slurm-$id.out") || return 1
  expect_in "$log" 'rank 0 on gh1 gpus 0 ' 'rank 3 on gh1 gpus 3 ' 'rank 4 on gh2 gpus 0 ' 'rank 5 on gh2 gpus 1 '
}
passes_on_what_sbatch_says() {
  expect_failure 1 job gpu.toml nope -p nope --devices-per-node 4 --program ./train
  expect_in "$output" 'sbatch refused the job: invalid partition specified: nope' 'nothing was submitted' || return 1
  [[ ! -e nope ]] || { echo 'the run directory is still there'; return 1; }
  mkdir nope && touch nope/mine && cp gpu.toml nope/plan.toml
  expect_failure 1 job gpu.toml nope -p nope --devices-per-node 4 --program ./train
  [[ $(cd nope && echo *) == 'mine plan.toml' ]] || { ls nope; return 1; }
}
takes_the_zone_for_the_partition() {
  expect_in "$(job in-gpu.toml zones --dry-run)" '--partition=gpu' '--nodes=2'
  expect_in "$(job in-gpu.toml zones --dry-run --devices-per-node 4)" '--partition=gpu'
  refuses "the plan has GH200-96 in partition 'gpu', which is not among cpu" in-gpu.toml -p cpu
}
refuses_a_zone_that_is_no_partition() {
  local message="the plan has GH200-96 in 'east', which is neither a partition nor a zone of cluster testcluster (partitions: all, cpu, far, gpu, odd, one); say which partition has these nodes with --partition NAME"
  refuses "$message" in-east.toml || return 1
  refuses "$message" in-east.toml --devices-per-node 4 || return 1
  expect_in "$(job in-east.toml zones --dry-run -p gpu 2>said)" '--partition=gpu' || return 1
  expect_in "$(cat said)" "zone 'east' of the plan is not known here: its GH200-96 are taken from partition gpu, as --partition says"
}
finds_zones_of_the_cluster() {
  cat >zones.toml <<'CLUSTER'
schema_version = 1
name = "far"
[[partitions]]
name = "gpu"
default = true
[[zones]]
name = "east"
[[zones]]
name = "west"
[[nodes]]
count = 2
gpu = "GH200-96"
gpus_per_node = 4
memory_per_node_bytes = 8e11
zone = "east"
partitions = ["gpu"]
[[nodes]]
count = 1
gpu = "GH200-96"
gpus_per_node = 4
memory_per_node_bytes = 8e11
zone = "west"
partitions = ["gpu"]
CLUSTER
  expect_in "$(job in-east.toml zones --dry-run --cluster zones.toml 2>said)" '--partition=gpu' '--nodes=2' || return 1
  expect_in "$(cat said)" "partition 'gpu' has 1 node with GH200-96 outside of zone 'east' too, which Slurm does not know" || return 1
  zone=west plan GH200-96 3 0:3 3:6 >in-west.toml
  refuses "the plan needs 2 nodes of 4 GH200-96 but partition 'gpu' has 1 usable" in-west.toml --cluster zones.toml || return 1
  zone=west plan A100-40 1 0:6 >a100.toml
  refuses "partition 'gpu' has no usable node with A100-40 in 'west' (it has: GH200-96 in 'east', GH200-96 in 'west')" a100.toml --cluster zones.toml
}
describes_every_plan_of_an_array() {
  local script
  plan cpu 2 0:6 >flat.toml # 2 ranks, as small.toml
  cat >>flat.toml <<'PREDICTION'
[prediction]
plan_fingerprint = "of another plan"
iteration_time_s = 1.0
pipeline_time_s = 1.0
synchronization_time_s = 0.0
update_time_s = 0.0
peak_memory_bytes = 1e8
cost_usd_per_iteration = 0.0
PREDICTION
  script=$(job small.toml sweep flat.toml --dry-run 2>said) || { cat said; return 1; }
  expect_in "$script" $'# The plans, one for each task of the array:\n#   0 small: 1 pipeline of 2 stages on cpu, micro-batch 1\n#   1 flat: 2 pipelines of 1 stage on cpu, micro-batch 1\n'
  expect_in "$(cat said)" 'flat.toml: edited after its prediction was made'
  [[ $(cat said) != *small.toml* ]] || { cat said; return 1; }
  refuses "gpu.toml: partition 'cpu' has no usable node with GH200-96 (it has: cpu)" small.toml gpu.toml
}
asks_for_memory_and_says_why() {
  local script
  script=$(job small.toml memory --dry-run --memory-per-cpu 50) || return 1
  expect_in "$script" $'# As given on the command line of sailor-submit (--memory-per-cpu)\n#SBATCH --mem-per-cpu=50M\n'
  cat >cpus.toml <<'CLUSTER'
schema_version = 1
name = "far"
[[partitions]]
name = "cpu"
default = true
[[nodes]]
count = 2
gpu = "cpu"
gpus_per_node = 4
cpus_per_node = 4
memory_per_node_bytes = 16e9
partitions = ["cpu"]
CLUSTER
  "$bin_dir/sailor-plan" --cluster cpus.toml --model tiny-gpt --global-batch 2 --sequence-length 64 --profile published \
    --framework sailor -o predicted.toml >/dev/null 2>&1 || return 1
  local asked # MiB: 1.2 times the peak, and 256 more
  asked=$(awk '/^peak_memory_bytes/ { m = 1.2 * $3 / 1048576 + 256; print int(m) + (m > int(m)) }' predicted.toml)
  script=$(job predicted.toml memory --dry-run --cluster cpus.toml) || return 1
  expect_in "$script" $'# Enough for the predicted peak of a rank; the partition\'s default may be less\n#SBATCH --mem-per-cpu='"${asked}M" || return 1
  ((asked > 1000)) || { echo "$asked is not more than the nodes have"; return 1; }
  script=$(job predicted.toml memory --dry-run) || return 1 # these have 4000 MiB for 4 cores
  expect_in "$script" $'# All that the nodes have: for the predicted peak of a rank and some to spare they have too little\n#SBATCH --mem-per-cpu=1000M\n'
}
refuses_what_sailor_train_cannot_run() {
  [[ -x $bin_dir/sailor-train ]] || { echo 'sailor-train is not built'; return 0; }
  refuses 'computes on CPUs only, and the plan is for GH200-96' gpu.toml -p gpu || return 1
  expect_in "$output" "--train-option=--device=cpu"
}
asks_for_host_memory_beside_gpus() {
  local script id
  script=$(job gpu.toml host --dry-run -p gpu) || return 1
  [[ $script != *--mem* ]] || { echo "memory of shared nodes, of which nothing is known: $script"; return 1; }
  script=$(job gpu.toml host --dry-run -p gpu --sbatch-option=--exclusive) || return 1
  expect_in "$script" $'# All that a node may give: the job has it to itself, and what the plan needs is not known\n#SBATCH --mem=0\n' || return 1
  script=$(job gpu.toml host --dry-run -p gpu --sbatch-option=--exclusive --sbatch-option=--mem=5G) || return 1
  expect_in "$script" '#SBATCH --mem=5G' && [[ $script != *--mem=0* ]] || { echo "$script"; return 1; }
  cat >clariden.toml <<'SITE'
schema_version = 1
name = "clariden"
cluster_names = []
[launch]
exclusive_nodes = true
memory_per_node_gib = 450
SITE
  script=$(job gpu.toml host --dry-run -p gpu --site clariden.toml) || return 1
  expect_in "$script" $'# As the cluster\'s site file says (memory_per_node_gib)\n#SBATCH --mem=460800M\n' || return 1
  # Where a partition allows less than the nodes have, Slurm refuses --mem=0.
  scontrol update partitionname=gpu MaxMemPerNode=400000
  expect_failure 1 sbatch -p gpu --exclusive --mem=0 --wrap true
  # The last of these whole nodes has fewer ranks than the other.
  id=$(job gpu.toml host --program ./train -p gpu --cpus-per-rank 2 --sbatch-option=--exclusive --wait) || return 1
  expect_in "$(sort "host/slurm-$id.out")" 'rank 3 on gh1 gpus 3 ' 'rank 4 on gh2 gpus 0 ' || return 1
  expect_in "$(scontrol -o show job "$id")" ' MinMemoryNode=400000M ' || return 1
  scontrol update partitionname=gpu MaxMemPerNode=0
  sed 's/gpu = "cpu"/gpu = "GH200-96"/; s/name = "cpu"/name = "gpu"/; s/"cpu"\]/"gpu"]/; s/cpus_per_node = 4/cpus_per_node = 288/; s/16e9/854e9/' cpus.toml >gpus.toml
  "$bin_dir/sailor-plan" --cluster gpus.toml --model tiny-gpt --global-batch 4 --sequence-length 64 --profile published \
    --framework sailor --pin data_parallel=4,pipeline_parallel=1,tensor_parallel=1 -o four.toml >/dev/null 2>&1 || return 1
  local asked # MiB: for each of 4 ranks its peak, and 4 GiB more
  asked=$(awk '/^peak_memory_bytes/ { m = 4 * ($3 / 1048576 + 4096); print int(m) + (m > int(m)) }' four.toml)
  script=$(job four.toml host --dry-run -p gpu) || return 1
  expect_in "$script" $'# Enough for the predicted peak of a rank; the partition\'s default may be less\n#SBATCH --mem='"${asked}M"
}
hands_several_partitions_to_slurm_as_they_are() {
  local id script
  id=$(job gpu.toml several --program ./train -p gpu,all --cpus-per-rank 2 --wait) || return 1
  grep -x '#SBATCH --partition=gpu,all' several/job.sbatch || { cat several/job.sbatch; return 1; }
  expect_in "$(sort "several/slurm-$id.out")" 'rank 0 on gh1 gpus 0 ' 'rank 5 on gh2 gpus 1 ' || return 1
  # One that cannot take the job is not to blame while another one can.
  script=$(job gpu.toml several --dry-run -p one,gpu 2>said) || { cat said; return 1; }
  expect_in "$script" '#SBATCH --partition=one,gpu' && expect_in "$(cat said)" "but partition 'one' allows 1 per job" || return 1
  refuses "time 1-00:00:00 is over the limit of partition 'cpu': 01:00:00" small.toml -p cpu -t 1-0 || return 1
  script=$(job small.toml several --dry-run -p cpu,all -t 90 2>said) || { cat said; return 1; }
  expect_in "$script" '#SBATCH --partition=cpu,all' && expect_in "$(cat said)" "over the limit of partition 'cpu'" || return 1
  # The smallest limit on host memory of them counts: Slurm may choose that partition.
  scontrol update partitionname=all MaxMemPerNode=300000
  script=$(job gpu.toml several --dry-run -p gpu,all --sbatch-option=--exclusive) || return 1
  scontrol update partitionname=all MaxMemPerNode=0
  expect_in "$script" '#SBATCH --mem=300000M'
}
needs_a_reservation_where_slurm_does() {
  local script
  scontrol update partitionname=cpu ReqResv=yes
  refuses "partition 'cpu' takes only jobs in a reservation (ReqResv); name one with --reservation NAME, or use another --partition" small.toml -p cpu || return 1
  reserve course users=root,"$(id -un)" starttime=now nodes=cpu2 || return 1
  script=$(job small.toml course -p cpu --reservation course --dry-run) || return 1
  expect_in "$script" '#SBATCH --reservation=course' || return 1
  scontrol delete reservationname=course
  scontrol update partitionname=cpu ReqResv=no
}
tells_slurm_more_about_the_job() {
  local id said
  id=$(job small.toml more --program ./train -p cpu --licenses matlab:1 --mail-type END,FAIL --mail-type TIME_LIMIT_80 \
    --mail-user anna@example.org --wait) || return 1
  said=$(scontrol -o show job "$id")
  expect_in "$said" ' Licenses=matlab:1 ' 'MailUser=anna@example.org' 'MailType=END,FAIL,TIME_LIMIT_80' || return 1
  grep -xE "#SBATCH --comment='sailor plan [0-9a-f]{16}'" more/job.sbatch && expect_in "$said" 'Comment=sailor plan ' || { cat more/job.sbatch; return 1; }
  expect_in "$(job small.toml more --dry-run -p cpu --qos high --comment mine)" '#SBATCH --qos=high' '#SBATCH --comment=mine' || return 1
  expect_failure 2 job small.toml refused -p cpu --licenses matlab:none
  expect_in "$output" "'matlab:none' is no license and number"
}
warns_only_of_partitions_that_are_asked_for() {
  job gpu.toml warns --dry-run -p gpu --program ./train >/dev/null 2>said || { cat said; return 1; }
  [[ ! -s said ]] || { cat said; return 1; }
}
counts_only_nodes_with_the_features_of_the_site() {
  printf '%s\n' 'schema_version = 1' 'name = "mine"' '[launch]' 'constraint = "gpu&gh200"' >mine.toml
  job gpu.toml features --dry-run -p gpu --site mine.toml >script 2>said || { cat said; return 1; }
  expect_in "$(cat script)" "#SBATCH --constraint='gpu&gh200'" || return 1
  sed -i 's/gpu&gh200/thp_never/' mine.toml
  refuses "partition 'gpu' has no usable node with GH200-96" gpu.toml -p gpu --site mine.toml || return 1
  expect_in "$output" 'gh1, gh2: they lack the features that site mine asks for (thp_never)' || return 1
  # Who says it otherwise
  job gpu.toml features --dry-run -p gpu --site mine.toml --sbatch-option=--constraint=gh200 >script || return 1
  expect_in "$(cat script)" '--constraint=gh200' && [[ $(cat script) != *thp_never* ]]
}
names_nodes_that_slurmctld_hides() {
  if scontrol show node far1 >/dev/null 2>&1; then echo 'this Slurm shows cloud nodes'; return 0; fi
  refuses "partition 'far' has no usable node with cpu" small.toml -p far || return 1
  expect_in "$output" 'far1, far2: slurmctld does not show them (cloud nodes that are powered down)' 'PrivateData=cloud'
}
makes_an_array_for_each_number_of_nodes() {
  local ids
  plan cpu 2 0:6 >flat.toml
  ids=$(job small.toml sweep cpu.toml flat.toml --program ./train -p cpu --memory-per-cpu 50 --array-limit 1 --wait 2>said) || { cat said; return 1; }
  mapfile -t ids <<<"$ids"
  ((${#ids[@]} == 2)) || { echo "jobs ${ids[*]}"; return 1; }
  expect_in "$(cat sweep/job-1-nodes.sbatch)" '#SBATCH --nodes=1' '#SBATCH --array=0-1%1' '#   0 small: ' '#   1 flat: ' || return 1
  expect_in "$(cat sweep/job-2-nodes.sbatch)" '#SBATCH --nodes=2' '#SBATCH --array=0-0%1' '#   0 cpu: ' || return 1
  for plan in small cpu flat; do
    diff "$plan.toml" "sweep/$plan/plan.toml" && [[ -s sweep/$plan/arguments ]] || { find sweep; return 1; }
  done
  expect_in "$(cat "sweep/slurm-${ids[1]}_0.out")" 'rank 7 on cpu2' || return 1
  expect_failure 2 job small.toml refused cpu.toml -p cpu --export both.sbatch
  expect_in "$output" '--export writes one script, but the plans need 2'
}
names_images_and_their_views() {
  local script
  cat >views.toml <<'SITE'
schema_version = 1
name = "views"
[launch]
environment = "uenv"
no_core_files = true
[[environments]]
name = "uenv"
image_option = "--uenv"
view_option = "--view"
view = "default"
[environments.pipeline_variables]
NCCL_NCHANNELS_PER_NET_PEER = "4"
[[environments]]
name = "plain"
image_option = "--container-image"
[[nodes]]
gpu = "GH200-96"
cores = [[0, 71], [72, 143]]
memory_nodes = [0, 1]
SITE
  script=$(job gpu.toml view --dry-run -p gpu --site views.toml --image prgenv 2>said) || { cat said; return 1; }
  expect_in "$script" $'\n  --uenv=prgenv\n  --view=default\n' $'\nulimit -c 0\n' $'\nexport NCCL_NCHANNELS_PER_NET_PEER=4\n' \
    'sailor-launch --write-node-facts "$PWD/nodes-$SLURM_JOB_ID.toml"' $'\n  --node-facts "$PWD/nodes-$SLURM_JOB_ID.toml"\n' \
    "  --memory-nodes '0,1' " || return 1
  [[ $script != *numactl* && $(cat said) != *uenv* ]] || { echo "$script"; cat said; return 1; }
  expect_in "$(job gpu.toml view --dry-run -p gpu --site views.toml --image prgenv --view modules,spack)" $'\n  \'--view=modules,spack\'\n' || return 1
  # Without stages that send to each other no such channels.
  plan GH200-96 4 0:6 >one-stage.toml
  [[ $(job one-stage.toml view --dry-run -p gpu --site views.toml --image prgenv) != *NCHANNELS* ]] || return 1
  expect_failure 2 job gpu.toml view --dry-run -p gpu --site views.toml --software plain --image x --view y
  expect_in "$output" "site 'views' does not say how srun takes a view" || return 1
  UENV_VIEW=/user-environment:prgenv:default job gpu.toml view --dry-run -p gpu --site views.toml --image prgenv >/dev/null 2>said || return 1
  expect_in "$(cat said)" 'this shell is inside of a uenv (UENV_VIEW=/user-environment:prgenv:default)' 'leave the uenv, and name it with --image'
  # Options that change nothing are named, and what cannot be started is refused.
  job gpu.toml view --dry-run -p gpu --view x --retries 7 --array-limit 3 >/dev/null 2>said || return 1
  expect_in "$(cat said)" '--retries changes nothing' '--view changes nothing' '--array-limit changes nothing' || return 1
  expect_failure 1 job gpu.toml view -p gpu --export script.sh --program /
  expect_in "$output" 'it is a folder; name a program' || return 1
  expect_failure 1 job cpu.toml view -p cpu --memory-per-cpu 50 --export no/script.sh
  expect_in "$output" "there is no folder" || return 1
  [[ ! -e view ]] || { echo "a run directory is left"; return 1; }
}
refuses_a_container_that_does_not_see_its_files() {
  printf '%s\n' 'schema_version = 1' 'name = "boxes"' '[launch]' 'environment = "box"' '[[environments]]' 'name = "box"' \
    'image_option = "--environment"' >boxes.toml
  printf '%s\n' 'image = "x.sqsh"' 'mounts = ["/elsewhere:/elsewhere"]' >box.toml
  refuses "box.toml mounts nothing at $work/refused, $work: the job would not find its files" small.toml -p cpu --site boxes.toml --image ./box.toml --program ./train || return 1
  expect_in "$output" "add \"$work/refused:$work/refused\" to its mounts, or the folder above it" || return 1
  refuses "there is no EDF './none.toml'" small.toml -p cpu --site boxes.toml --image ./none.toml --program ./train || return 1
  printf '%s\n' 'image = "x.sqsh"' "mounts = [\"\${SAILOR_TEST_MOUNT}:$work\"]" >box.toml
  job small.toml boxed -p cpu --site boxes.toml --image ./box.toml --program ./train --dry-run 2>said >script || return 1
  expect_in "$(cat said)" 'has a variable that is not set here' || return 1
  SAILOR_TEST_MOUNT=/x job small.toml boxed -p cpu --site boxes.toml --image ./box.toml --program ./train --dry-run 2>said >script || return 1
  [[ $(cat said) != *'would not find'* ]] || { cat said; return 1; }
  expect_in "$(cat said)" "/profiles/models: it must be in the image" && expect_in "$(cat script)" '--environment='
}
refuses_components_that_do_not_reach_each_other() {
  local version
  printf '%s\n' 'schema_version = 1' 'name = "slingshot"' '[check]' 'fabric_provider = "cxi"' >slingshot.toml
  version=$(srun --version)
  if [[ ${version##* } < 23.02.3 ]]; then
    refuses 'a heterogeneous job of 2 components, which do not reach each other on Slingshot' mixed.toml -p cpu,gpu --site slingshot.toml
  else
    job mixed.toml het --dry-run -p cpu,gpu --site slingshot.toml >/dev/null
  fi
}
asks_for_nodes_near_each_other() {
  local id script
  start_with_switches || return 1
  eventually bash -c '[[ $(sinfo -h -t idle -o %D) == 3 ]]'
  id=$(job cpu.toml near --program ./train -p only --memory-per-cpu 50 --wait) || return 1
  grep -x '#SBATCH --switches=1@05:00' near/job.sbatch || { cat near/job.sbatch; return 1; }
  expect_in "$(scontrol -o show job "$id")" ' NodeList=x[1-2] ' || return 1
  expect_in "$(job cpu.toml near --dry-run -p only -t 10)" '#SBATCH --switches=1@01:00' || return 1
  script=$(job cpu.toml near --dry-run -p only --sbatch-option=--switches=2) || return 1
  expect_in "$script" '#SBATCH --switches=2' && [[ $script != *switches=1* ]] || return 1
  printf '%s\n' 'schema_version = 1' 'name = "flat"' '[launch]' 'near_nodes = false' >flat.toml
  [[ $(job cpu.toml near --dry-run -p only --site ./flat.toml) != *switches* ]] || return 1
  # One node, and all nodes, are near each other whatever Slurm does.
  [[ $(job small.toml near --dry-run -p only) != *switches* ]] || return 1
  plan cpu 6 0:3 3:6 >wide.toml
  [[ $(job wide.toml near --dry-run -p only) != *switches* ]]
}
# A job that goes on: chain RUN_DIRECTORY PLAN WHAT OPTION...; its folder is there already.
chain() {
  eventually is_idle cpu1 # the first of them takes the next job
  job "$2" "$1" --program ./stepwise --checkpoints "$1/kept" --when-stopped "$3" "${@:4}"
}
# Until no job is left: each of a chain may have to wait some seconds for its turn.
await_end() {
  local attempt jobs
  for ((attempt = 0; attempt < 300; attempt++)); do
    if jobs=$(squeue -h) && [[ -z $jobs ]]; then return 0; fi # not when slurmctld is too busy to say
    sleep 0.2
  done
  squeue
  return 1
}
logs_of() { cat "$1"/slurm-*.out; }
hands_in_the_next_job_first() {
  local first name
  mkdir -p chain && echo 75 >chain/end-0
  first=$(chain chain small.toml resubmit -J night 2>said) || { cat said; return 1; }
  name=$(scontrol -o show job "$first" | grep -o 'JobName=[^ ]*')
  [[ $name == JobName=night-???????? ]] || { echo "the job is called $name: others may be called so, too"; return 1; }
  expect_in "$(cat said)" "to end the training: scancel --me --name=${name#*=}" || return 1
  await_end || return 1
  expect_in "$(cat "chain/slurm-$first.out")" "# job $((first + 1)) goes on after this one" 'start 0 on cpu' || return 1
  # The last one has ended the training: the job that was to follow it is gone.
  expect_in "$(cat "chain/slurm-$((first + 1)).out")" "# job $((first + 2)) goes on after this one" 'start 1 on cpu' || return 1
  [[ $(logs_of chain | grep -c '^start') == 2 && ! -e chain/starts.txt ]] || { logs_of chain; return 1; }
  expect_in "$(scontrol -o show job "$first")" JobState=COMPLETED
}
goes_on_after_a_job_that_dies_without_a_word() {
  local first
  mkdir -p dies && echo sleep >dies/end-0
  first=$(chain dies small.toml resubmit) || return 1
  eventually grep -q 'start 0' "dies/slurm-$first.out"
  scancel --signal=KILL --full "$first" # as when its node dies
  rm dies/end-0
  await_end || return 1
  # A slurmctld that is busy may start it a moment later than nothing is left in the queue.
  (eventually grep -qs 'start 0 on cpu' "dies/slurm-$((first + 1)).out") && return
  ls dies
  logs_of dies
  scontrol -o show job "$first"
  scontrol -o show job "$((first + 1))"
  return 1
}
tries_again_without_the_node_to_blame() {
  local first
  mkdir -p blamed && echo on:cpu1 >blamed/end-0
  first=$(chain blamed small.toml resubmit) || return 1
  await_end || return 1
  expect_in "$(cat "blamed/slurm-$first.out")" '# start 1 of 4 failed with status 7: once more without cpu1' || return 1
  expect_in "$(cat "blamed/slurm-$((first + 1)).out")" 'start 0 on cpu2' || return 1
  expect_in "$(scontrol -o show job "$first")" JobState=FAILED ExitCode=7:0
  expect_in "$(scontrol -o show job $((first + 1)))" JobState=COMPLETED ' ExcNodeList=cpu1 '
}
blames_no_node_where_all_fail() {
  local first
  mkdir -p alike && echo 7 >alike/end-0
  first=$(chain alike cpu.toml resubmit --retries 1) || return 1 # two nodes
  await_end || return 1
  expect_in "$(cat "alike/slurm-$first.out")" '# start 1 of 2 failed with status 7: once more' || return 1
  [[ $(cat "alike/slurm-$first.out") != *'once more without'* ]] || { logs_of alike; return 1; }
  expect_in "$(cat "alike/slurm-$((first + 1)).out")" '# gives up: 2 starts in a row brought no new checkpoint' || return 1
  [[ ! -e alike/slurm-$((first + 2)).out && ! -e alike/starts.txt ]]
}
requeues_without_the_node_to_blame() {
  local id
  mkdir -p requeued && echo on:cpu1 >requeued/end-0
  id=$(chain requeued small.toml requeue --retries 2) || return 1
  eventually grep -q 'start 0 on cpu2' "requeued/slurm-$id.out"
  await_end || return 1
  expect_in "$(cat "requeued/slurm-$id.out")" '# start 1 of 3 failed with status 7: once more without cpu1' || return 1
  expect_in "$(scontrol -o show job "$id")" JobState=COMPLETED ' Restarts=1 '
  # Which nodes the first start had is still there.
  expect_in "$(cat "requeued/versions-$id.txt")" cpu1 && expect_in "$(cat "requeued/versions-$id-1.txt")" cpu2
}
goes_on_as_a_heterogeneous_job() {
  local first
  mkdir -p het && echo 75 >het/end-0 && echo 75 >het/end-1
  first=$(chain het mixed.toml resubmit -p cpu,gpu 2>said) || { cat said; return 1; }
  await_end || return 1
  # A name of its own for each component: they would wait for each other.
  expect_in "$(scontrol -o show job "$first" | grep -o 'JobName=[^ ]*')" .1 || return 1
  [[ $(logs_of het | grep -c '^start') == 3 ]] || { logs_of het; return 1; }
  expect_in "$(logs_of het)" 'start 0 on cpu' 'start 1 on cpu' 'start 2 on cpu'
}
stops_in_time_for_a_checkpoint() {
  local script
  script=$(job small.toml lead --dry-run -p cpu -t 60 --checkpoints leads --stop-lead 600) || return 1
  expect_in "$script" '#SBATCH --signal=USR2@600' || return 1
  script=$(job small.toml lead --dry-run -p cpu -t 60 --checkpoints leads) || return 1
  expect_in "$script" '#SBATCH --signal=USR2@180' || return 1
  mkdir -p leads/iteration-00000100
  echo '{"write_time_s": 100.5, "files": [{"bytes": 1073741824}, {"bytes": 1073741824}]}' >leads/iteration-00000100/manifest.json
  script=$(job small.toml lead --dry-run -p cpu -t 60 --checkpoints leads) || return 1
  expect_in "$script" '# 261 s before the time limit (a checkpoint of 2.00 GiB takes about 100 s, as the last one did)' '#SBATCH --signal=USR2@261' || return 1
  script=$(job small.toml lead --dry-run -p cpu -t 5 --checkpoints leads 2>said) || return 1
  expect_in "$script" '#SBATCH --signal=USR2@150' && expect_in "$(cat said)" 'of which the last checkpoint may need 00:04:21; see --stop-lead' || return 1
  refuses 'the signal would come 600 s before the end of a job of 300 s' small.toml -p cpu -t 5 --stop-lead 600 || return 1
  expect_failure 2 job small.toml lead -p cpu --sbatch-option=--signal=USR2@600
  expect_in "$output" 'sailor-submit itself sets --signal; use its own --stop-lead SECONDS'
}
trains_on_the_nodes_that_are_fit() {
  local id check='#!/bin/bash
((SLURM_PROCID == 0)) && printf "%s\\n" "$@" >checked && echo "checks $SLURM_STEP_NODELIST" && echo "--exclude=$(cat unfit)"
exit 5'
  # Beside a sailor-submit of our own: a check that finds what it is told.
  mkdir -p bin fit && cp "$submit" "$bin_dir"/sailor-launch bin/ && printf '%b\n' "$check" >bin/sailor-check && chmod +x bin/sailor-check
  local submit=$work/bin/sailor-submit
  echo cpu1 >fit/unfit
  id=$(job small.toml fit --program ./train -p cpu --check --spare-nodes 1 --wait --memory-per-cpu 50) || { logs_of fit; return 1; }
  expect_in "$(cat "fit/slurm-$id.out")" 'checks cpu[1-2]' '# goes on without cpu1' 'rank 0 on cpu2' 'rank 1 on cpu2' || return 1
  expect_in "$(cat fit/checked)" $'--plan\n' "$work/fit/plan.toml" '--spare-nodes' || return 1
  # None is left to take its place.
  expect_failure 1 job small.toml fit --program ./train -p cpu --check --wait --memory-per-cpu 50
  expect_in "$output" 'FAILED, exit code 5' "# to submit it without them: sbatch --exclude=cpu1 $work/fit/job.sbatch" || return 1
  # A job that goes on does so without them.
  id=$(job small.toml fit --program ./train -p cpu --check --memory-per-cpu 50 --checkpoints fit/kept --when-stopped resubmit --retries 1) || return 1
  await_end || return 1
  expect_in "$(cat "fit/slurm-$id.out")" 'failed with status 5: once more without cpu1' || return 1
  expect_in "$(cat "fit/slurm-$((id + 1)).out")" 'checks cpu2'
  refuses "the plan needs 3 nodes of 4 cpu but partition 'cpu' has 2 usable" cpu.toml -p cpu --check --spare-nodes 1
}
says_at_once_that_slurm_is_not_there() {
  # Slurm's own programs would look for the file for a minute, each.
  export SLURM_CONF=/nowhere/slurm.conf
  local option
  for option in --job-name=gone --test-only; do
    expect_failure 1 timeout 30 "$submit" cpu.toml --run-directory gone --data corpus --iterations 5 --program ./train --devices-per-node 4 "$option"
    expect_in "$output" "error: SLURM_CONF names '/nowhere/slurm.conf', which does not exist; correct or unset it" || return 1
  done
  [[ ! -e gone ]] || { echo 'the run directory is there'; return 1; }
  timeout 30 "$submit" cpu.toml --run-directory gone --data corpus --iterations 5 --devices-per-node 4 --dry-run >/dev/null
}
says_that_slurmctld_is_silent() {
  kill "$(pid_of slurmctld)" || return 1
  eventually bash -c '! scontrol ping | grep -q UP'
  expect_failure 1 job cpu.toml silent -p cpu --program ./train --devices-per-node 4 --test-only
  expect_in "$output" 'slurmctld did not say whether it would take the job: ' 'see with scontrol ping' || return 1
  [[ $output != *'would refuse'* ]] || { echo "$output"; return 1; }
  expect_failure 1 job cpu.toml silent -p cpu --program ./train --devices-per-node 4
  expect_in "$output" 'sbatch reached no slurmctld, so nothing was submitted: ' || return 1
  [[ ! -e silent ]] || { echo 'the run directory is there'; return 1; }
}
refuses_a_newline_in_the_run_directory() {
  expect_failure 1 job small.toml $'two\nlines'
  expect_in "$output" "run directory '$work/two lines' holds a newline, a tab or another control character" 'choose another one with --run-directory DIR'
}
reserve() { scontrol create reservation "reservationname=$1" duration=30 "${@:2}" >/dev/null; }
runs_in_a_reservation() {
  local id
  reserve ours users=root,"$(id -un)" starttime=now nodes=cpu2 || return 1
  refuses "the plan needs 2 nodes of 4 cpu but partition 'cpu' has 1 usable" cpu.toml -p cpu --reservation ours || return 1
  id=$(job small.toml reserved --program ./train -p cpu --reservation ours --wait --memory-per-cpu 50) || return 1
  expect_in "$(cat "reserved/slurm-$id.out")" 'rank 0 on cpu2' 'rank 1 on cpu2'
  refuses "reservation 'ours' has no node in gpu; use the partition of its nodes: all, cpu" gpu.toml -p gpu --reservation ours || return 1
  scontrol delete reservationname=ours
}
refuses_reservations_that_it_cannot_use() {
  refuses "reservation 'ours' not found (known: none)" small.toml -p cpu --reservation ours || return 1
  reserve theirs users=nobody starttime=now nodes=cpu2 || return 1
  refuses "reservation 'theirs' takes no jobs of $(id -un) (users: nobody); leave out --reservation, or ask the administrator" small.toml -p cpu --reservation theirs || return 1
  refuses "reservation 'their' not found (known: theirs); did you mean 'theirs'?" small.toml -p cpu --reservation their || return 1
  scontrol delete reservationname=theirs
}
refuses_options_of_sbatch_that_it_has_itself() {
  expect_failure 2 job small.toml refused --sbatch-option=--reserv=ours
  expect_in "$output" '--sbatch-option: sailor-submit itself sets --reservation; use its own --reservation'
  expect_failure 2 job small.toml refused --sbatch-option=--partition=gpu
  expect_failure 2 job small.toml refused --sbatch-option=--time=5
  expect_failure 2 job small.toml refused --sbatch-option=--time-m=5
  expect_in "$output" 'with --time-min Slurm would shorten the job' 'use a smaller --time' || return 1
  expect_failure 2 job small.toml refused --sbatch-option=--clusters=other
  expect_in "$output" 'with --clusters the job would run on nodes not counted with'
}
decides_more_than_the_environment() {
  local id said
  id=$(SBATCH_PARTITION=gpu SBATCH_TIMELIMIT=1 SBATCH_RESERVATION=none SBATCH_COMMENT=kept SBATCH_WAIT=1 \
    job small.toml decided --program ./train -p cpu -t 10 --wait --memory-per-cpu 50 2>said) || { cat said; return 1; }
  expect_in "$(cat said)" 'sbatch does not get SBATCH_PARTITION, SBATCH_RESERVATION, SBATCH_TIMELIMIT, SBATCH_WAIT of the environment' || return 1
  expect_in "$(scontrol -o show job "$id")" ' Partition=cpu ' ' TimeLimit=00:10:00 ' || return 1
  said=$(SBATCH_PARTITION=gpu job small.toml decided --program ./train -p cpu --test-only --memory-per-cpu 50 2>&1) || { echo "$said"; return 1; }
  expect_in "$said" 'does not get SBATCH_PARTITION of' 'on nodes cpu' || return 1
  said=$(SBATCH_PARTITION=gpu job small.toml exported --export exported.sbatch -p cpu 2>&1) || { echo "$said"; return 1; }
  expect_in "$said" 'sbatch would take SBATCH_PARTITION of the environment instead of what the script says'
}
refuses_arrays_that_slurm_refuses() {
  local most i
  most=$(scontrol show config | sed -nE 's/^MaxArraySize *= *([0-9]+)$/\1/p')
  mkdir -p many
  for ((i = 0; i <= most; i++)); do cp small.toml "many/p$i.toml"; done
  expect_failure 1 "$submit" many/*.toml --run-directory refused --data corpus --iterations 5 --mpi none --devices-per-node 4 -p cpu
  expect_in "$output" "$((most + 1)) plans are too many: Slurm allows $most tasks in a job array (MaxArraySize); submit fewer at a time" || return 1
  [[ ! -e refused ]] && nothing_submitted
}
knows_no_exit_status_of_other_programs() {
  printf '#!/bin/bash\nexit 6\n' >six && chmod +x six
  expect_failure 1 job small.toml six-run --program ./six --wait --memory-per-cpu 50
  expect_in "$output" ': FAILED, exit code 6' || return 1
  [[ $output != *'stopped before its last iteration'* ]]
}
keeps_run_directories_apart() {
  job small.toml apart --program ./train --wait >/dev/null || return 1
  expect_failure 1 job cpu.toml apart
  expect_in "$output" "run directory '$work/apart' belongs to another plan; use another one with --run-directory DIR"
}
says_that_sbatch_is_missing() {
  PATH=/nowhere expect_failure 1 job small.toml missing --devices-per-node 4
  expect_in "$output" "there is no program 'sbatch' in PATH; load Slurm's module"
}
writes_a_script_to_submit_later() {
  job small.toml later --program ./train -p cpu --export later.sbatch || return 1
  nothing_submitted && diff small.toml later/plan.toml || return 1
  sbatch --wait later.sbatch && [[ -s later/arguments ]] || return 1
  expect_failure 2 job small.toml later --export later.sbatch --wait
  expect_in "$output" '--dry-run, --test-only, --export and --wait do not go together'
}
needs_no_slurm_for_a_dry_run() {
  unset SLURM_CONF
  expect_in "$(PATH=/nowhere job small.toml dry --dry-run --devices-per-node 4)" '#SBATCH --ntasks=2'
  [[ ! -e dry ]] || return 1
  PATH=/nowhere expect_failure 1 job mixed.toml dry --dry-run --devices-per-node 4
  expect_in "$output" 'use --cluster FILE: for several kinds of nodes --devices-per-node alone does not say enough'
}

trains_with_the_real_program() {
  local id
  seq 20000 >text
  "$bin_dir/sailor-data" bytes --output numbers text || return 1
  id=$("$submit" small.toml --run-directory real --data numbers --iterations 5 --memory-per-cpu 400 --wait) || return 1
  expect_in "$(cat "real/slurm-$id.out")" '2 ranks, 2 x 64 tokens per iteration' $'\n          4 '
  [[ -s real/run-$id.h5 ]]
}
says_that_a_stopped_training_is_lost() {
  "$submit" small.toml --run-directory stopped --data numbers --iterations 1000000 --memory-per-cpu 400 --wait >id 2>said &
  local waiting=$!
  eventually bash -c "grep -qs '^ *3 ' stopped/slurm-*.out"
  scancel --signal=USR2 "$(cat id)"
  wait "$waiting" && return 1
  expect_in "$(cat said)" 'FAILED, exit code 6 (NonZeroExitCode): stopped before its last iteration, without a checkpoint'
}

check 'trains a CPU plan' trains_a_cpu_plan
check 'fills GPU nodes in the order of the plan' fills_gpu_nodes_in_the_plans_order
check 'asks Slurm about the nodes' asks_slurm_about_the_nodes
check 'tells when the job would start' tells_when_it_would_start
check 'says how Slurm judges the components of a job' says_how_slurm_judges_components
check 'fails when the job fails' fails_when_the_job_fails
check 'says that there was nothing to do' says_that_there_was_nothing_to_do
check 'fails when the job is cancelled' fails_when_the_job_is_cancelled
check 'stops waiting on Ctrl-C' stops_waiting_on_ctrl_c
check 'writes a script that can be submitted again' runs_the_script_again
check 'passes options of sbatch on' passes_options_of_sbatch_on
check 'asks for the GPU type where there are several' asks_for_the_gpu_type_where_there_are_several
check 'takes GPUs without a type for those of the plan' takes_gpus_without_a_type_for_the_plans
check 'refuses what cannot run' refuses_what_cannot_run
check 'passes on what sbatch says' passes_on_what_sbatch_says
check 'takes the zone for the partition' takes_the_zone_for_the_partition
check 'refuses a zone that is no partition' refuses_a_zone_that_is_no_partition
check 'finds zones of the cluster' finds_zones_of_the_cluster
check 'describes every plan of an array' describes_every_plan_of_an_array
check 'asks for memory and says why' asks_for_memory_and_says_why
check 'refuses what sailor-train cannot run' refuses_what_sailor_train_cannot_run
check 'asks for host memory beside GPUs' asks_for_host_memory_beside_gpus
check 'hands several partitions to Slurm as they are' hands_several_partitions_to_slurm_as_they_are
check 'needs a reservation where Slurm does' needs_a_reservation_where_slurm_does
check 'tells Slurm more about the job' tells_slurm_more_about_the_job
check 'warns only of partitions that are asked for' warns_only_of_partitions_that_are_asked_for
check 'counts only nodes with the features of the site' counts_only_nodes_with_the_features_of_the_site
check 'names nodes that slurmctld hides' names_nodes_that_slurmctld_hides
check 'makes an array for each number of nodes' makes_an_array_for_each_number_of_nodes
check 'names images and their views' names_images_and_their_views
check 'refuses a container that does not see its files' refuses_a_container_that_does_not_see_its_files
check 'refuses components that do not reach each other' refuses_components_that_do_not_reach_each_other
check 'asks for nodes near each other' asks_for_nodes_near_each_other
check 'hands in the next job first' hands_in_the_next_job_first
check 'goes on after a job that dies without a word' goes_on_after_a_job_that_dies_without_a_word
check 'tries again without the node to blame' tries_again_without_the_node_to_blame
check 'blames no node where all fail' blames_no_node_where_all_fail
check 'requeues without the node to blame' requeues_without_the_node_to_blame
check 'goes on as a heterogeneous job' goes_on_as_a_heterogeneous_job
check 'stops in time for a checkpoint' stops_in_time_for_a_checkpoint
check 'trains on the nodes that are fit' trains_on_the_nodes_that_are_fit
check 'refuses a newline in the run directory' refuses_a_newline_in_the_run_directory
check 'runs in a reservation' runs_in_a_reservation
check 'refuses reservations that it cannot use' refuses_reservations_that_it_cannot_use
check 'refuses options of sbatch that it has itself' refuses_options_of_sbatch_that_it_has_itself
check 'decides more than the environment' decides_more_than_the_environment
check 'refuses arrays that Slurm refuses' refuses_arrays_that_slurm_refuses
check 'knows no exit status of other programs' knows_no_exit_status_of_other_programs
check 'keeps run directories apart' keeps_run_directories_apart
check 'says that sbatch is missing' says_that_sbatch_is_missing
check 'writes a script to submit later' writes_a_script_to_submit_later
check 'needs no Slurm for a dry run' needs_no_slurm_for_a_dry_run
if [[ -x $bin_dir/sailor-train && -x $bin_dir/sailor-data && -n $mpi ]]; then
  check 'trains with the real sailor-train' trains_with_the_real_program
  check 'says that a stopped training is lost' says_that_a_stopped_training_is_lost
fi
check 'says at once that Slurm is not there' says_at_once_that_slurm_is_not_there
check 'says that slurmctld is silent' says_that_slurmctld_is_silent
finish
