#!/usr/bin/env bash
# What accounts and QOS allow, with a real accounting database: sailor-plan --preflight against what Slurm itself does.
#
# shellcheck disable=SC2317,SC2329  # tests are called by name
# shellcheck source-path=SCRIPTDIR source=common.bash
source "$(dirname "${BASH_SOURCE[0]}")/common.bash"

start_cluster --accounting --nodes gh:4:gh200:4:288:4:854000,a:2:a100:4:64:1:500000 --mpi none \
  --partitions 'normal=gh MaxTime=60;long=gh MaxTime=600;debug=gh MaxTime=60;all=ALL MaxTime=60'

accounts() { sacctmgr --quiet --immediate "$@" >/dev/null || { echo "sacctmgr $* failed"; exit 1; }; }
accounts add qos short MaxWall=00:10:00
accounts add qos few MaxTRESPerUser=gres/gpu=4
accounts add qos part MaxTRESPerJob=node=1
accounts add qos closed
accounts modify user "$(id -un)" where account=everybody set qos=normal,short,few
# Below an account that has one node for all its jobs.
accounts add account project GrpTRES=node=1
accounts add account team parent=project
accounts add user "$(id -un)" account=team
accounts modify user "$(id -un)" where account=team set qos=short,few
accounts add account small
accounts add user "$(id -un)" account=small MaxTRESPerJob=gres/gpu=4
accounts add account narrow
accounts add user "$(id -un)" account=narrow
accounts modify user "$(id -un)" where account=narrow set qos=few
scontrol update partitionname=long qos=part
# As on Clariden: 90 node-minutes, 1 job that runs, 2 in all.
accounts add qos debug MaxTRESMinsPerJob=node=90 MaxJobsPerUser=1 MaxSubmitJobsPerUser=2
scontrol update partitionname=debug qos=debug
accounts add qos strict MaxTRESMinsPerJob=node=90 flags=DenyOnLimit
accounts add qos running GrpTRESRunMins=node=100
accounts add qos together GrpTRES=node=3
accounts add qos sized MaxTRESPerNode=gres/gpu=2 MinTRESPerJob=node=3
accounts add qos typed MaxTRESPerJob=gres/gpu:gh200=7
accounts add qos weighed MaxTRESPerJob=mem=100G,billing=1000
accounts add qos wide MaxTRESPerJob=node=8 MaxWall=00:20:00 flags=OverPartQOS
accounts add qos kept flags=RequiresReservation
accounts add qos ours MaxJobsPerUser=1
accounts add account spent GrpTRESMins=node=30
accounts add user "$(id -un)" account=spent
accounts modify user "$(id -un)" where account=everybody \
  set qos+=strict,running,together,sized,typed,weighed,wide,kept,ours
scontrol update partitionname=all TRESBillingWeights=CPU=1.0,GRES/gpu=200

# 8 ranks: 2 nodes of 4
cat >"$work/two.toml" <<'PLAN'
schema_version = 1
micro_batch = 1
schedule = "1f1b"
[job]
model = "tiny-gpt"
global_batch = 4
sequence_length = 64
precision = "fp32"
optimizer = "adamw"
[[pipelines]]
count = 2
micro_batches = 2
[[pipelines.stages]]
layers = [0, 3]
gpu = "GH200-96"
tensor_parallel = 2
[[pipelines.stages]]
layers = [3, 6]
gpu = "GH200-96"
tensor_parallel = 2
PLAN
printf '#!/bin/bash\nexec sleep 30\n' >"$work/sleeps"
chmod +x "$work/sleeps"

# said STATUS PART OPTION...: preflight's verdict, and what it says
said() { # leaves what it says in $output
  local status=$1 part=$2
  shift 2
  expect_failure "$status" "$bin_dir/sailor-plan" --preflight two.toml --mpi none --train-option=--device=cpu "$@"
  expect_in "$output" "$part"
}
# A job of the plan's size, as Slurm sees it: its state, and why it waits
slurm_says() { # WORDS OPTION...
  local words=$1 id state
  shift
  id=$(sbatch --parsable --output=/dev/null -N2 --gres=gpu:gh200:4 "$@" --wrap 'sleep 30') || return 1
  eventually decided "$id"
  state=$(<state)
  scancel "$id"
  [[ $state == "$words" ]] || { echo "Slurm says '$state', not '$words'"; return 1; }
}
# The same of the very job that sailor-submit hands in for two.toml.
job_waits() { # WORDS OPTION...
  local words=$1 id state
  shift
  id=$(submit_job "$@") || return 1
  eventually decided "$id"
  state=$(sort -u state | paste -sd ,)
  scancel "$id"
  [[ $state == "$words" ]] || { echo "Slurm says '$state', not '$words'"; return 1; }
}
submit_job() { "$bin_dir/sailor-submit" "${plan:-two.toml}" --run-directory "run.$RANDOM" --data corpus --remote-data --iterations 1 --mpi none --program ./sleeps "$@"; }
# Slurm refuses the job; not only our own programs say that it would.
slurm_refuses() { # WORDS OPTION...
  local words=$1
  shift
  expect_failure 1 sbatch --output=/dev/null -N2 --gres=gpu:gh200:4 "$@" --wrap true
  expect_in "$output" "$words"
}
# Leaves what Slurm says in the file `state`: asked once more, the job might have ended.
decided() { squeue -h -j "$1" -o '%T %r' >state && grep -qvxE 'PENDING (None|Priority|Resources)' state; }

lets_a_job_within_the_limits_start() {
  said 0 "access         $(id -un) may use normal with account 'everybody'" -p normal --time 30
  expect_in "$output" 'limits         2 nodes, 8 GPUs, 00:30:00, within all limits'
  said 0 "may use normal with account 'everybody' and QOS 'short'" -p normal --time 5 --qos short
  slurm_says 'RUNNING None' -p normal -t 5 --qos short
}
knows_the_accounts() {
  said 5 "fail         access         you have no account 'nobodys' in partition 'normal'" -p normal --account nobodys
  expect_in "$output" 'use one of yours with --account NAME: ' everybody narrow team
  slurm_refuses 'Invalid account' -p normal --account nobodys
}
knows_the_qos() {
  said 5 "fail         access         account 'everybody' does not have QOS 'closed' (it has: " -p normal --qos closed
  slurm_refuses 'Invalid qos' -p normal --qos closed
}
knows_the_qos_of_jobs_that_name_none() {
  said 5 "fail         access         the job names no QOS, and account 'team' has no default one (it has: few, short)" -p normal --account team
  slurm_refuses 'Invalid qos' -p normal --account team
  said 5 "fail         limits         the job takes 8 GPUs, QOS 'few' for a user allows 4" -p normal --time 30 --account narrow
  slurm_says 'PENDING QOSMaxGRESPerUser' -p normal -t 30 --account narrow
}
knows_the_time_of_a_qos() {
  said 5 "fail         limits         time 00:30:00 is over the 00:10:00 of QOS 'short'" -p normal --time 30 --qos short
  slurm_says 'PENDING QOSMaxWallDurationPerJobLimit' -p normal -t 30 --qos short
}
knows_the_gpus_of_a_user() {
  said 5 "fail         limits         the job takes 8 GPUs, QOS 'few' for a user allows 4" -p normal --time 30 --qos few
  slurm_says 'PENDING QOSMaxGRESPerUser' -p normal -t 30 --qos few
}
knows_the_gpus_of_an_account() {
  said 5 "fail         limits         the job takes 8 GPUs, account 'small' allows 4" -p normal --time 30 --account small
  slurm_says 'PENDING AssocMaxGRESPerJob' -p normal -t 30 --account small
}
knows_the_qos_of_a_partition() {
  said 5 "fail         limits         the job takes 2 nodes, QOS 'part' allows 1" -p long --time 30
  slurm_says 'PENDING QOSMaxNodePerJobLimit' -p long -t 30
}
knows_node_minutes() {
  said 5 "fail         limits         2 nodes for 01:00:00 are 120 node-minutes, QOS 'debug' allows 90 per job" -p debug --time 60
  expect_in "$output" '-> use --time 00:45:00 or less' 'by its nodes alone: the limits above hold the job back' || return 1
  job_waits 'PENDING QOSMaxNodeMinutesPerJob' -p debug -t 46 || return 1
  said 0 'within all limits' -p debug --time 45 && job_waits 'RUNNING None' -p debug -t 45 || return 1
  said 5 "QOS 'strict' allows 90 per job" -p normal --time 46 --qos strict
  expect_failure 1 submit_job -p normal -t 46 --sbatch-option=--qos=strict
  expect_in "$output" 'QOSMaxNodeMinutesPerJob'
}
knows_how_many_jobs_may_run_and_wait() {
  local running waiting
  running=$(sbatch --parsable --output=/dev/null -p debug -N1 -t 30 --wrap 'sleep 100') && eventually decided "$running" || return 1
  said 4 "warn         limits         QOS 'debug' for a user lets 1 job run at one time, and 1 does: the job waits until it has ended" -p debug --time 45
  job_waits 'PENDING QOSMaxJobsPerUserLimit' -p debug -t 45 || return 1
  waiting=$(sbatch --parsable --output=/dev/null -p debug -N1 -t 30 --wrap 'sleep 100') || return 1
  said 5 "fail         limits         QOS 'debug' for a user takes 2 jobs that wait or run, and there are 2: sbatch refuses the job" -p debug --time 45
  expect_failure 1 submit_job -p debug -t 45
  expect_in "$output" QOSMaxSubmitJobPerUserLimit
  scancel "$running" "$waiting"
}
knows_what_others_use_now() {
  local running
  running=$(sbatch --parsable --output=/dev/null -p normal -N2 -t 30 --qos running --wrap 'sleep 100') && eventually decided "$running" || return 1
  said 4 "2 nodes for 00:30:00 are 60 node-minutes, QOS 'running' for all jobs allows 100 for jobs that run at one time, of which " -p normal --time 30 --qos running
  expect_in "$output" 'it waits until these are fewer' '-> with --time 00:' || return 1
  job_waits 'PENDING QOSGrpNodeRunMinutes' -p normal -t 30 --sbatch-option=--qos=running || return 1
  said 5 '-> use --time 00:50:00 or less' -p normal --time 51 --qos running
  scancel "$running"
  running=$(sbatch --parsable --output=/dev/null -p normal -N2 -t 30 --qos together --wrap 'sleep 100') && eventually decided "$running" || return 1
  said 4 "the job takes 2 nodes, QOS 'together' for all jobs allows 3, of which jobs that run have 2: it waits until enough of them have ended" -p normal --time 30 --qos together
  job_waits 'PENDING QOSGrpNodeLimit' -p normal -t 30 --sbatch-option=--qos=together
  scancel "$running"
}
knows_sizes() {
  said 5 "the job takes 4 GPUs of a node, QOS 'sized' allows 2" -p normal --time 30 --qos sized
  expect_in "$output" "the job takes 2 nodes, QOS 'sized' wants 3 at least" || return 1
  job_waits 'PENDING QOSMaxGRESPerNode' -p normal -t 30 --sbatch-option=--qos=sized
}
knows_types_memory_and_billing() {
  # Limits on a type count only what is asked for by type, as Slurm has it: in a partition of several.
  said 5 "the job takes 8 GPUs of type gh200, QOS 'typed' allows 7" -p all --time 30 --qos typed
  job_waits 'PENDING QOSMaxGRESPerJob' -p all -t 30 --sbatch-option=--qos=typed || return 1
  said 0 'within all limits' -p normal --time 30 --qos typed && job_waits 'RUNNING None' -p normal -t 30 --sbatch-option=--qos=typed || return 1
  said 5 "a billing of 2176, QOS 'weighed' allows 1000" -p all --time 30 --qos weighed
  job_waits 'PENDING QOSMaxBillingPerJob' -p all -t 30 --sbatch-option=--qos=weighed || return 1
  said 0 'within all limits' -p normal --time 30 --qos weighed && job_waits 'RUNNING None' -p normal -t 30 --sbatch-option=--qos=weighed || return 1
  scontrol update partitionname=normal DefMemPerCPU=200
  said 5 "the job takes 112 GiB of memory, QOS 'weighed' allows 100 GiB" -p normal --time 30 --qos weighed
  job_waits 'PENDING QOSMaxMemoryPerJob' -p normal -t 30 --sbatch-option=--qos=weighed
  scontrol update partitionname=normal DefMemPerCPU=100
}
knows_whose_limit_counts() {
  # The QOS of partition 'long' allows one node; this one counts before it.
  said 0 'within all limits' -p long --time 20 --qos wide && job_waits 'RUNNING None' -p long -t 20 --sbatch-option=--qos=wide || return 1
  # A time that nobody says is what the limit allows.
  said 0 'within all limits' -p long --qos wide && job_waits 'RUNNING None' -p long --sbatch-option=--qos=wide || return 1
  said 5 "QOS 'kept' takes only jobs in a reservation" -p normal --time 5 --qos kept
  slurm_refuses 'Invalid qos' -p normal -t 5 --qos kept
}
knows_budgets() {
  said 4 "2 nodes for 00:30:00 are 60 node-minutes, account 'spent' for all its jobs has 30 node-minutes, of which 0 are used, and 0 reserved by jobs that run: Slurm ends the job when they are used up" -p normal --time 30 --account spent
  expect_in "$output" '-> use --time 00:15:00 or less' || return 1
  job_waits 'RUNNING None' -p normal -t 30 -A spent
}
counts_components_as_jobs() {
  sed '0,/GH200-96/! s/GH200-96/A100-40/' two.toml >mixed.toml
  plan=mixed.toml
  expect_failure 5 "$bin_dir/sailor-plan" --preflight mixed.toml --mpi none -p all --time 5 --qos ours
  expect_in "$output" "the job has 2 components, which count as jobs, QOS 'ours' for a user lets 1 run at one time" || return 1
  job_waits 'PENDING QOSMaxJobsPerUserLimit,PENDING Resources' -p all -t 5 --sbatch-option=--qos=ours
}
knows_the_limits_of_accounts_above() {
  said 5 "fail         limits         the job takes 2 nodes, account 'project' for all its jobs allows 1" -p normal --time 5 --qos short --account team
  slurm_says 'PENDING AssocGrpNodeLimit' -p normal -t 5 --qos short --account team
}
lets_accounts_below_that_of_a_reservation_in() {
  scontrol create reservation reservationname=acct accounts=project nodes='gh[1-2]' starttime=now duration=60 >/dev/null || return 1
  local asked=(sbatch --test-only -p normal -t 5 -N1 --qos short --reservation acct --wrap true)
  said 5 "ok           reservations   the job runs in 'acct', which has 2 nodes" -p normal --time 5 --qos short --account team --reservation acct
  "${asked[@]}" --account team || return 1
  said 5 "fail         reservations   reservation 'acct' takes no jobs of account 'everybody' (accounts: project)" -p normal --time 5 --qos short --reservation acct
  expect_in "$output" 'fail         start          ' '-> use another --account, or leave out --reservation' || return 1
  "${asked[@]}" --account everybody && { echo "Slurm lets account 'everybody' in"; return 1; }
  expect_failure 0 "$bin_dir/sailor-submit" two.toml --data corpus --iterations 1 -p normal --account team --reservation acct --dry-run
  expect_in "$output" "reservation 'acct' is for the accounts project: it takes jobs of 'team' only as one below them" '#SBATCH --reservation=acct' || return 1
  SBATCH_ACCOUNT=team SBATCH_QOS=short said 5 "ok           reservations   the job runs in 'acct'" -p normal --time 5 --reservation acct
  scontrol delete reservationname=acct
}
knows_who_is_not_in_the_database() {
  ((EUID == 0)) || return 0
  local as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
  chmod 755 "$work"
  "${as[@]}" test -x "$bin_dir/sailor-plan" || { echo "not looked at: $bin_dir is closed to other users"; return 0; }
  expect_failure 5 "${as[@]}" "$bin_dir/sailor-plan" -p normal --preflight two.toml --mpi none --train-option=--device=cpu
  expect_in "$output" 'fail         access         the accounting database does not know user nobody on this cluster' 'ask the administrator for an account'
  ! "${as[@]}" sbatch -D / --output=/dev/null -p normal --wrap true 2>/dev/null
}
says_that_the_database_is_down() {
  kill "$(pid_of slurmdbd)" || return 1
  eventually bash -c '! sacctmgr -n show cluster'
  said 0 'not checked  access         accounts are not known: sacctmgr: ' -p normal --time 30
  expect_in "$output" "within the partition's limits; those of accounts are not known"
}

check 'lets a job within the limits start' lets_a_job_within_the_limits_start
check 'knows the accounts' knows_the_accounts
check 'knows the QOS' knows_the_qos
check 'knows the QOS of jobs that name none' knows_the_qos_of_jobs_that_name_none
check 'knows the time of a QOS' knows_the_time_of_a_qos
check 'knows the GPUs of a user' knows_the_gpus_of_a_user
check 'knows the GPUs of an account' knows_the_gpus_of_an_account
check 'knows the QOS of a partition' knows_the_qos_of_a_partition
check 'knows node-minutes, and the largest time' knows_node_minutes
check 'knows how many jobs may run and wait' knows_how_many_jobs_may_run_and_wait
check 'knows what others use now' knows_what_others_use_now
check 'knows sizes of nodes and jobs' knows_sizes
check 'knows types, memory and billing' knows_types_memory_and_billing
check 'knows whose limit counts' knows_whose_limit_counts
check 'knows budgets of minutes' knows_budgets
check 'counts components as jobs' counts_components_as_jobs
check 'knows the limits of accounts above' knows_the_limits_of_accounts_above
check 'lets accounts below that of a reservation in' lets_accounts_below_that_of_a_reservation_in
check 'knows who is not in the database' knows_who_is_not_in_the_database
check 'says that the database is down' says_that_the_database_is_down
finish
