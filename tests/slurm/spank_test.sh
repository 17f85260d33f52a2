#!/usr/bin/env bash
# The SPANK plugin in a live Slurm: jobs that do not ask, mistakes before queueing, places of the ranks, refusals.
#
# shellcheck disable=SC2016,SC2317,SC2329  # expanded in tasks; tests are called by name
# shellcheck source-path=SCRIPTDIR source=common.bash
source "$(dirname "${BASH_SOURCE[0]}")/common.bash"
plugin=${bin_dir%/bin}/lib/sailor/sailor_spank.so
[[ -e $plugin ]] || { echo "skipped: there is no $plugin"; exit 77; }

# Copies that every user can read, wherever the build is; and a build that goes on does not disturb.
cp "$plugin" "$work/sailor_spank.so"
cp "$source_dir/profiles/gpus.toml" "$work/gpus.toml"
plugin=$work/sailor_spank.so
mkdir "$work/gpus"
printf 'optional %s gpus=%s devices=%s environment=%s\n' "$plugin" "$work/gpus.toml" "$work/gpus" \
  "$work/site.toml" >"$work/plugstack.conf"
printf 'SAILOR_TEST_SITE = "of the site"\nSAILOR_TEST_MINE = "of the site"\n' >"$work/site.toml"
start_cluster --nodes gh:3:gh200:4:288:4:854000,a:1:a100:4:128:2:512000 --partitions 'gh=gh;a100=a;mixed=ALL' \
  --mpi none --plugstack "$work/plugstack.conf"
unset "${!SAILOR_@}"
# Commands of a login node without the plugin.
sed "s|^PlugStackConfig=.*|PlugStackConfig=$work/none.conf|" "$SLURM_CONF" >"$work/without.conf"
touch "$work/none.conf"

# use_plugin required|optional|no: from now on, for commands and job steps
use_plugin() {
  case $1 in
    no) : >"$work/new" ;;
    *) sed "s/^[a-z]*/$1/" "$work/plugstack.conf" >"$work/new" ;;
  esac
  mv "$work/new" "$work/c/plugstack.conf"
}

# plan COUNT STAGE...: pipelines of the stages; each is FIRST:LAST:GPU:TENSOR_PARALLEL, of tiny-gpt's 6 layers
pipelines() {
  local count=$1 stage first last gpu tensor_parallel
  shift
  printf '[[pipelines]]\ncount = %s\nmicro_batches = 2\n' "$count"
  for stage in "$@"; do
    IFS=: read -r first last gpu tensor_parallel <<<"$stage"
    printf '[[pipelines.stages]]\nlayers = [%s, %s]\ngpu = "%s"\ntensor_parallel = %s\n' "$first" "$last" "$gpu" "$tensor_parallel"
  done
}
plan() { # PIPELINES, as text on stdin
  printf 'schema_version = 1\nmicro_batch = 1\nschedule = "1f1b"\n[job]\nmodel = "tiny-gpt"\nglobal_batch = %s\n' "$((2 * $1))"
  printf 'sequence_length = 64\nprecision = "fp32"\noptimizer = "adamw"\n'
  cat
}
pipelines 2 0:2:GH200-96:2 2:6:GH200-96:2 | plan 2 >"$work/plan.toml" # 8 ranks
pipelines 1 0:6:GH200-96:1 | plan 1 >"$work/one.toml"
# Pipelines of another depth and tensor parallelism on the two kinds of nodes: 4 + 4 + 4 ranks.
{ pipelines 2 0:2:GH200-96:2 2:6:GH200-96:2 && pipelines 1 0:2:A100-40:1 2:3:A100-40:1 3:4:A100-40:1 4:6:A100-40:1; } |
  plan 3 >"$work/two-kinds.toml"

role='echo "rank $SAILOR_RANK of $SAILOR_RANKS on $SLURMD_NODENAME: $SAILOR_PIPELINE.$SAILOR_STAGE.$SAILOR_TENSOR_PARALLEL_INDEX gpu $CUDA_VISIBLE_DEVICES"'
two_nodes=(-p gh -w 'gh[1-2]' -N2 --ntasks-per-node=4 --gres=gpu:gh200:4 --overcommit --mem-per-cpu=50)
jobs_so_far() { scontrol -o show jobs | grep -c '^JobId='; }
no_node_is_drained() { [[ -z $(sinfo -h -R) ]] || { sinfo -R; return 1; }; }
nodes_are_fine() { no_node_is_drained && eventually nothing_runs && srun -p mixed -N4 true; }
nothing_runs() { [[ -z $(squeue -h) ]]; }
batch_output() { # SBATCH ARGUMENTS...: of the job, when it has ended
  local id
  id=$(sbatch --parsable -o "$work/batch-%j" "$@") || return 1
  eventually job_has_ended "$id"
  cat "$work/batch-$id"
}
job_has_ended() { [[ -z $(squeue -h -j "$1" 2>/dev/null) ]]; }

# ---- jobs that do not ask

# What differs between any two jobs, plugin or not: their numbers (two in 26.05), ports and process ids, and from Slurm
# 23.11 on times.
differs='SLURM_(JOBID|JOB_ID|SRUN_COMM_PORT|STEP_LAUNCHER_PORT|TASK_PID|JOB_START_TIME|JOB_END_TIME|JOB_SLUID)'
describe_task='env | sort; grep Cpus_allowed: /proc/self/status; ulimit -a; ls -l /proc/self/fd | wc -l; echo to stderr >&2; exit 3'
describe_jobs() { # FOLDER: environment, cores, output and exit status of a step, a batch script and an allocation
  mkdir "$1"
  eventually nothing_runs # or they say that they wait
  srun -w gh1 -n1 bash -c "$describe_task" >"$1/srun" 2>"$1/srun.err"
  echo "status $?" >>"$1/srun"
  sort -o "$1/srun.err" "$1/srun.err" # the task's and srun's own, in any order
  printf '#!/bin/bash\n%s\n' "$describe_task" >script
  sbatch -w gh1 -W -o "$1/batch" script >"$1/sbatch" 2>&1
  echo "status $?" >>"$1/sbatch"
  eventually nothing_runs
  salloc -w gh1 -n1 bash -c "$describe_task" >"$1/salloc" 2>"$1/salloc.err"
  echo "status $?" >>"$1/salloc"
  srun --help | sed '/^Options provided by plugins/,/^$/d' >"$1/help"
  sed -i -E "/^($differs)=/d; s/(job|allocation|Allocation|Task|task) ?[0-9]+|JobId=[0-9]+|StepId=[0-9.]+/N/g; /has been revoked/d" "$1"/*
}
leaves_other_jobs_alone() {
  use_plugin no
  describe_jobs without
  use_plugin required
  describe_jobs required
  use_plugin optional
  describe_jobs optional
  [[ $(cat without/* | grep -c '^status 3') == 3 ]] || { cat without/*; return 1; }
  diff -r without required && diff -r without optional
}

# ---- mistakes before queueing

refused_before_queueing() { # MESSAGE COMMAND...
  local message=$1 before after status=0
  shift
  before=$(jobs_so_far)
  output=$("$@" 2>&1) || status=$?
  after=$(jobs_so_far)
  ((status != 0)) || { echo "exit status 0: $*"; echo "$output"; return 1; }
  [[ $before == "$after" ]] || { echo "submitted: $*"; return 1; }
  expect_in "$output" "$message"
}
refuses_before_queueing() {
  local how
  mkdir -p elsewhere
  head -c 200 plan.toml >truncated.toml
  printf 'Lorem ipsum\n' >nonsense.toml
  sed 's/\[2, 6\]/[3, 6]/' plan.toml >gap.toml
  truncate -s 1G large.toml
  mkfifo pipe.toml
  printf '#!/bin/bash\n#SBATCH --sailor-plan=missing.toml\ntrue\n' >script
  printf '#!/bin/bash\n#SBATCH --sailor-plan=plan.toml -n 2\ntrue\n' >small-script
  for how in optional required; do
    use_plugin "$how"
    refused_before_queueing "error: sailor: --sailor-plan: file 'missing.toml' does not exist" srun -p gh --sailor-plan=missing.toml true || return 1
    refused_before_queueing "file 'missing.toml' does not exist" sbatch -p gh --sailor-plan=missing.toml --wrap true || return 1
    refused_before_queueing "file 'missing.toml' does not exist" salloc -p gh --sailor-plan=missing.toml true || return 1
    refused_before_queueing "file 'missing.toml' does not exist" sbatch -p gh script || return 1
    refused_before_queueing "file 'missing.toml' does not exist" sbatch -p gh --test-only --sailor-plan=missing.toml --wrap true || return 1
    refused_before_queueing 'truncated.toml:' srun -p gh --sailor-plan=truncated.toml true || return 1
    refused_before_queueing 'nonsense.toml:1:' srun -p gh --sailor-plan=nonsense.toml true || return 1
    refused_before_queueing 'gap.toml:18:10: stage 1 starts at layer 3 but stage 0 ends at 2' sbatch -p gh --sailor-plan=gap.toml --wrap true || return 1
    refused_before_queueing "file 'large.toml' has 1073741824 bytes; the limit is 16777216" srun -p gh --sailor-plan=large.toml true || return 1
    refused_before_queueing "'pipe.toml' is not a regular file" srun -p gh --sailor-plan=pipe.toml true || return 1
    refused_before_queueing "'elsewhere' is not a regular file" srun -p gh --sailor-plan=elsewhere true || return 1
    refused_before_queueing "file '\$(touch harm)' does not exist" sbatch -p gh '--sailor-plan=$(touch harm)' --wrap true || return 1
    refused_before_queueing 'plan.toml: the plan has 8 ranks, but the job asks for 4 tasks; ask for at least --ntasks=8' \
      sbatch -p gh -N1 -n4 --sailor-plan=plan.toml --wrap true || return 1
    refused_before_queueing 'the plan has 8 ranks, but the job asks for 4 GPUs' \
      salloc -p gh --nodes=1 --gres=gpu:gh200:4 --sailor-plan=plan.toml true || return 1
    refused_before_queueing 'the plan has 8 ranks, but the job asks for 2 tasks' sbatch -p gh small-script || return 1
    # Without the option, the variable.
    SAILOR_PLAN=missing.toml refused_before_queueing "error: sailor: SAILOR_PLAN: file 'missing.toml' does not exist" srun -p gh true || return 1
    SAILOR_PLAN=missing.toml refused_before_queueing 'SAILOR_PLAN: file' sbatch -p gh --wrap true || return 1
    SAILOR_PLAN=missing.toml refused_before_queueing 'SAILOR_PLAN: file' salloc -p gh true || return 1
  done
  [[ ! -e harm ]]
}

# ---- places

places_a_homogeneous_job() {
  local output
  output=$(srun "${two_nodes[@]}" --sailor-plan=plan.toml bash -c "$role" | sort -n -k2) || return 1
  diff <(echo "$output") - <<ROLES
rank 0 of 8 on gh1: 0.0.0 gpu 0
rank 1 of 8 on gh1: 0.0.1 gpu 1
rank 2 of 8 on gh1: 0.1.0 gpu 2
rank 3 of 8 on gh1: 0.1.1 gpu 3
rank 4 of 8 on gh2: 1.0.0 gpu 0
rank 5 of 8 on gh2: 1.0.1 gpu 1
rank 6 of 8 on gh2: 1.1.0 gpu 2
rank 7 of 8 on gh2: 1.1.1 gpu 3
ROLES
}
places_by_the_variable_alone() {
  expect_in "$(SAILOR_PLAN=one.toml srun -w gh1 -n1 --gres=gpu:1 bash -c "$role" 2>&1)" 'rank 0 of 1 on gh1: 0.0.0 gpu 0'
}
places_ranks_of_a_batch_job() {
  # The script is in another folder than the one where it was submitted; steps that are no training say so.
  printf '#!/bin/bash\n#SBATCH --sailor-plan=./plan.toml\ncd /\necho "script ${SAILOR_RANK:-unplaced}"\nsrun --sailor-plan=none -N2 -n2 --ntasks-per-node=1 /bin/bash -c '\''echo "other ${SAILOR_RANK:-unplaced}"'\''\nsrun /bin/bash -c '\''%s'\''\n' "$role" >script
  local output
  output=$(batch_output "${two_nodes[@]}" script) || return 1
  expect_in "$output" 'script unplaced' $'other unplaced\nother unplaced' 'rank 0 of 8 on gh1' 'rank 7 of 8 on gh2: 1.1.1 gpu 3'
  output=$(batch_output "${two_nodes[@]}" --export=NONE script) || return 1
  expect_in "$output" 'script unplaced' $'other unplaced\nother unplaced' 'rank 0 of 8 on gh1' 'rank 7 of 8 on gh2: 1.1.1 gpu 3'
}
places_ranks_in_an_allocation() {
  local output
  output=$(cd / && salloc "${two_nodes[@]}" --sailor-plan="$work/plan.toml" srun bash -c "$role" 2>&1) || { echo "$output"; return 1; }
  expect_in "$output" 'rank 0 of 8 on gh1' 'rank 7 of 8 on gh2'
}
places_a_heterogeneous_job() {
  # Two components in one step, then a command for each; the script is in another folder.
  local output step
  cat >script <<SCRIPT
#!/bin/bash
#SBATCH -p gh -w gh[1-2] -N2 --ntasks-per-node=4 --gres=gpu:gh200:4 --mem-per-cpu=50 --overcommit
#SBATCH --sailor-plan=two-kinds.toml
#SBATCH hetjob
#SBATCH -p a100 -N1 --ntasks-per-node=4 --gres=gpu:a100:4 --mem-per-cpu=50 --overcommit
cd /
srun --het-group=0,1 bash -c '$role' | sed 's/^/one /'
srun --het-group=0 bash -c '$role' : --het-group=1 bash -c '$role' | sed 's/^/two /'
SCRIPT
  output=$(batch_output script) || return 1
  for step in one two; do
    expect_in "$output" "$step rank 0 of 12 on gh1: 0.0.0 gpu 0" "$step rank 7 of 12 on gh2: 1.1.1 gpu 3" \
      "$step rank 8 of 12 on a1: 2.0.0 gpu 0" "$step rank 11 of 12 on a1: 2.3.0 gpu 3"
    [[ $(grep -c "^$step" <<<"$output") == 12 ]] || { echo "$output"; return 1; }
  done
  # Without an allocation.
  output=$(srun "${two_nodes[@]}" --sailor-plan=two-kinds.toml bash -c "$role" : \
    -p a100 -N1 --ntasks-per-node=4 --gres=gpu:a100:4 --overcommit --mem-per-cpu=50 bash -c "$role") || return 1
  expect_in "$output" 'rank 0 of 12 on gh1: 0.0.0 gpu 0' 'rank 11 of 12 on a1: 2.3.0 gpu 3'
}
sets_the_sites_variables() {
  local output
  output=$(SAILOR_TEST_MINE=mine srun -w gh1 -n1 --sailor-plan=one.toml --gres=gpu:1 bash -c 'echo "$SAILOR_TEST_SITE, $SAILOR_TEST_MINE"') || return 1
  [[ $output == 'of the site, mine' ]] || { echo "$output"; return 1; }
}
binds_ranks_to_their_cores() {
  (($(nproc) > 1)) || return 0
  pipelines 2 0:6:GH200-96:1 | plan 2 >two.toml
  local cores
  cores=$(srun -w gh1 -n2 --sailor-plan=two.toml --gres=gpu:gh200:2 bash -c 'taskset -cp $$ | sed "s/.*: //"' | sort -u) || return 1
  [[ $(wc -l <<<"$cores") == 2 ]] || { echo "both ranks have the cores $cores"; return 1; }
}

# ---- refusals from the nodes, all from task_init

refused() { # MESSAGE COMMAND...: once, and no task has started
  local message=$1 status=0
  shift
  output=$("$@" 2>&1) || status=$?
  ((status != 0)) || { echo "exit status 0: $*"; echo "$output"; return 1; }
  expect_in "$output" "error: sailor: " "$message"
  [[ $output != *started* ]] || { echo "started: $output"; return 1; }
  [[ $(grep -c "error: sailor: " <<<"$output") -le ${most_messages:-1} ]] || { echo "$output"; return 1; }
}
refuses_wrong_allocations() {
  local how
  for how in optional required; do
    use_plugin "$how"
    refused "the plan has 8 ranks but the job step has 4 tasks; start it with srun --nodes=2 --ntasks-per-node=4" srun -w gh1 -N1 -n4 --gres=gpu:4 --sailor-plan=plan.toml echo started || return 1
    refused "the plan has 1 rank but the job step has 2 tasks; start it with srun --nodes=1 --ntasks-per-node=1" srun -p gh -N2 -n2 --gres=gpu:4 --sailor-plan=one.toml echo started || return 1
    refused "the plan needs GH200-96 on node a1, which has A100-40" srun -p a100 -n1 --gres=gpu:1 --sailor-plan=one.toml echo started || return 1
    most_messages=8 refused "node gh1 has 8 tasks but 4 GPUs; start at most 4 on a node: --ntasks-per-node=4" \
      srun -w gh1 -N1 -n8 --gres=gpu:4 --sailor-plan=plan.toml echo started || return 1
  done
  nodes_are_fine
}
refuses_what_the_driver_denies() {
  mkdir -p gpus/0
  printf 'Model: \t\t NVIDIA A100-SXM4-40GB\n' >gpus/0/information
  refused "node gh1: its driver reports NVIDIA A100-SXM4-40GB (A100-40), but the plan has GH200-96 here" \
    srun -w gh1 -n1 --gres=gpu:1 --sailor-plan=one.toml echo started || return 1
  rm -r gpus/0
  srun -w gh1 -n1 --gres=gpu:1 --sailor-plan=one.toml true
}
# The plan changes after it was submitted: the login node has no plugin.
on_nodes() { # MESSAGE PLAN
  SLURM_CONF=$work/without.conf SAILOR_PLAN=$2 refused "$1" srun -w gh1 -n1 --gres=gpu:1 echo started
}
refuses_bad_plans_on_the_nodes() {
  head -c 200 plan.toml >truncated.toml
  head -c 100000 /dev/urandom >binary.toml
  truncate -s 1G large.toml
  on_nodes "node gh1: file '$work/missing.toml' does not exist; every node of the job must be able to read the plan: keep it on a shared file system" \
    "$work/missing.toml" || return 1
  on_nodes "node gh1: $work/truncated.toml:" "$work/truncated.toml" || return 1
  on_nodes "node gh1: $work/binary.toml:" "$work/binary.toml" || return 1
  on_nodes "has 1073741824 bytes; the limit is 16777216; is it the right file?" "$work/large.toml" || return 1
  on_nodes "'$work/pipe.toml' is not a regular file" "$work/pipe.toml" || return 1
  on_nodes "'/dev/zero' is not a regular file" /dev/zero || return 1
  on_nodes "'\$(touch $work/harm)' does not exist" "\$(touch $work/harm)" || return 1
  [[ ! -e harm ]] && nodes_are_fine
}
reads_plans_as_the_user() {
  # slurmd runs as root; the job of another user must not see what he may not read.
  chmod 755 "$work"
  install -m 600 one.toml secret.toml
  install -m 644 one.toml public.toml
  local as_nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
  refused_before_queueing "cannot read 'secret.toml': Permission denied" "${as_nobody[@]}" srun -w gh1 -n1 --gres=gpu:1 --sailor-plan=secret.toml true || return 1
  SLURM_CONF=$work/without.conf SAILOR_PLAN=$work/secret.toml refused "node gh1: cannot read '$work/secret.toml': Permission denied" \
    "${as_nobody[@]}" srun -D / -w gh1 -n1 --gres=gpu:1 echo started || return 1
  expect_in "$("${as_nobody[@]}" srun -D / -w gh1 -n1 --gres=gpu:1 --sailor-plan=public.toml bash -c "$role" 2>&1)" 'rank 0 of 1'
}
tells_who_asks_about_bad_arguments() {
  sed 's/$/ nonsense=1/' "$work/plugstack.conf" >c/plugstack.conf
  local output
  eventually nothing_runs
  output=$(srun -w gh1 -n1 echo plain 2>&1)
  [[ $output == plain ]] || { echo "$output"; return 1; }
  output=$(srun -w gh1 -n1 --gres=gpu:1 --sailor-plan=one.toml bash -c "$role" 2>&1) || { echo "$output"; return 1; }
  expect_in "$output" "error: sailor: plugstack.conf: unknown argument 'nonsense=1'" 'rank 0 of 1'
  use_plugin optional
}
works_as_the_administrators_page_says() {
  local build=${bin_dir%/bin} output
  cmake -DCMAKE_INSTALL_PREFIX="$work/prefix" -P "$build/spank_plugin/cmake_install.cmake" >/dev/null || return 1
  cp -r "$source_dir/profiles" prefix/share/sailor/profiles
  echo "include $work/prefix/share/sailor/plugstack.conf.d/sailor.conf" >c/plugstack.conf
  output=$(srun -w gh1 -n1 --gres=gpu:1 --sailor-plan=one.toml bash -c "$role" 2>&1) || { echo "$output"; return 1; }
  [[ $output == 'rank 0 of 1 on gh1: 0.0.0 gpu 0' ]] || { echo "$output"; return 1; }
  refused 'the plan needs GH200-96 on node a1, which has A100-40' srun -p a100 -n1 --gres=gpu:1 --sailor-plan=one.toml echo started || return 1
  : >c/plugstack.conf
  expect_failure 255 srun -w gh1 -n1 --sailor-plan=one.toml true
  expect_in "$output" "unrecognized option '--sailor-plan=one.toml'"
  use_plugin optional
}
# ---- training, with the programs that users call

trains() { # RUN PLAN PARTITIONS: 8 iterations, in which the loss falls; every rank in its place
  local id log=()
  id=$(timeout 120 "$bin_dir/sailor-submit" "$2" --run-directory "$1" --data numbers --iterations 8 --memory-per-cpu 50 \
    --mpi "$mpi" --placer plugin --train-option=--device=cpu --wait -p "$3") || { cat "$1"/slurm-*; return 1; }
  expect_in "$(cat "$1/job.sbatch")" '#SBATCH --sailor-plan='
  mapfile -t log < <(sed -n 's/^ *[0-9][0-9]*  *\([0-9.]*\) .*/\1/p' "$1/slurm-$id.out")
  if ((${#log[@]} != 8)) || ! awk -v a="${log[0]}" -v b="${log[7]}" 'BEGIN { exit !(b < a) }'; then
    cat "$1/slurm-$id.out"
    return 1
  fi
}
trains_where_the_plan_wants_it() {
  use_plugin optional
  seq 20000 >text
  "$bin_dir/sailor-data" bytes --output numbers text || return 1
  trains trained plan.toml gh
}
trains_a_heterogeneous_job() {
  # Slurm 22.05 now and then hangs when a step over several components ends (see slurm/testcluster): once more, then.
  local attempt
  for attempt in 1 2 3; do
    trains "trained-$attempt" two-kinds.toml gh,a100 && return 0
    scancel --quiet --user="$(id -un)"
  done
  return 1
}
is_in_the_help() {
  local program
  for program in srun sbatch salloc; do expect_in "$("$program" --help)" '--sailor-plan=FILE' '[sailor]'; done
}

check 'leaves jobs that do not ask alone: output, exit status, environment, cores' leaves_other_jobs_alone
check 'is in the help of srun, sbatch and salloc' is_in_the_help
check 'refuses mistakes before queueing' refuses_before_queueing
use_plugin optional
check 'places the ranks of a homogeneous job' places_a_homogeneous_job
check 'places by the variable alone' places_by_the_variable_alone
check 'places the ranks of a batch job, also under --export=NONE' places_ranks_of_a_batch_job
check 'places ranks in an allocation' places_ranks_in_an_allocation
check 'places a heterogeneous job over two partitions' places_a_heterogeneous_job
check "sets the site's variables, not the user's" sets_the_sites_variables
check 'binds ranks to their cores' binds_ranks_to_their_cores
check 'refuses wrong allocations' refuses_wrong_allocations
use_plugin optional
check 'refuses what the driver denies' refuses_what_the_driver_denies
mkfifo "$work/pipe.toml" 2>/dev/null
check 'refuses bad plans on the nodes' refuses_bad_plans_on_the_nodes
if ((EUID == 0)); then check 'reads plans as the user' reads_plans_as_the_user; fi
check 'tells who asks about bad arguments' tells_who_asks_about_bad_arguments
check "works as the administrators' page says" works_as_the_administrators_page_says
if [[ -x $bin_dir/sailor-submit && -x $bin_dir/sailor-train && -n $mpi ]]; then
  check 'trains where the plan wants it' trains_where_the_plan_wants_it
  check 'trains a heterogeneous job over two partitions' trains_a_heterogeneous_job
fi
check 'leaves no node drained' nodes_are_fine
finish
