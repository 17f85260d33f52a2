#!/usr/bin/env bash
# sailor-plan --preflight against a live Slurm: what it says of good jobs and of bad ones, with its exit status.
#
# shellcheck disable=SC2317,SC2329  # tests are called by name
# shellcheck source-path=SCRIPTDIR source=common.bash
source "$(dirname "${BASH_SOURCE[0]}")/common.bash"

echo Licenses=matlab:2 >"$work/extra.conf"
start_cluster --conf-extra "$work/extra.conf" --nodes gh:4:gh200:4:288:4:854000,a:2:a100:4:64:1:500000,c:2:-:0:4:1:4000 \
  --partitions 'normal=gh MaxTime=60;small=gh MaxNodes=1 MaxTime=60;gpus=gh[1-4],a[1-2];staff=gh AllowGroups=nosuchgroup;cpu=c MaxTime=60' \
  --mpi none

# plan GPU... : pipelines of two stages of 2, each on its GPU, of tiny-gpt
plan() {
  local gpu
  cat <<PLAN
schema_version = 1
micro_batch = 1
schedule = "1f1b"
[job]
model = "tiny-gpt"
global_batch = $((4 * $#))
sequence_length = 64
precision = "fp32"
optimizer = "adamw"
PLAN
  for gpu in "$@"; do
    printf '[[pipelines]]\ncount = 2\nmicro_batches = 2\n'
    printf '[[pipelines.stages]]\nlayers = [%s]\ngpu = "%s"\ntensor_parallel = 2\n' '0, 3' "$gpu" '3, 6' "$gpu"
  done
}
plan GH200-96 >"$work/two.toml"                  # 8 ranks: 2 nodes of 4
plan GH200-96 GH200-96 GH200-96 >"$work/six.toml" # 24 ranks: 6 nodes
plan GH200-96 A100-40 >"$work/mixed.toml"        # 2 nodes of each
touch "$work/empty.bin" "$work/empty.idx"
head -c 1000 /dev/zero | tee "$work/corpus.bin" >"$work/corpus.idx"

# preflight STATUS PARTITION PLAN OPTION...: leaves what it says in $output; plans for GPUs are to be tried out on CPUs
preflight() {
  local status=$1 partition=$2 plan=$3
  shift 3
  expect_failure "$status" "$bin_dir/sailor-plan" --partition "$partition" --preflight "$plan" --mpi none \
    --train-option=--device=cpu "$@"
}

all_idle() { [[ $(sinfo -h -p normal -t idle -o %D) == 4 ]]; }

finds_nothing_wrong_with_a_good_job() {
  preflight 0 normal two.toml --time 30 --data corpus --checkpoints .
  expect_in "$output" 'two.toml: ' "ok           partition      'normal' is up" 'ok           access ' \
    'ok           limits         2 nodes, 8 GPUs, 00:30:00, within all limits' \
    'ok           nodes          2 nodes of 4 GH200-96: 4 idle' 'ok           gres           GH200-96 is gpu:gh200' \
    'ok           reservations   none while the job would run' 'ok           start          now on gh[' \
    'ok           program        ' ' can run the plan on CPUs (--device=cpu)' 'ok           data           corpus, 1.95 KiB' 'ok           communicators  ' 'ok           mpi            srun has --mpi=none' ' 0 failed'
}
asks_the_program_what_it_can_run() {
  expect_failure 5 "$bin_dir/sailor-plan" -p normal --preflight two.toml --mpi none
  expect_in "$output" 'fail         program        ' 'sailor-train (' 'computes on CPUs only, and the plan is for GH200-96' \
    "or try the plan out on the nodes' CPUs with --train-option=--device=cpu"
  expect_failure 0 "$bin_dir/sailor-plan" -p normal --preflight two.toml --mpi none --program ./mine
  expect_in "$output" 'not checked  program        ' "/mine is not Sailor's: what it can run is not known"
}
counts_licenses_and_reservations_that_partitions_want() {
  preflight 0 normal two.toml --time 30 --licenses matlab:2
  expect_in "$output" "ok           licenses       2 of 'matlab', 2 of 2 free" || return 1
  preflight 5 normal two.toml --time 30 --licenses matlab:3
  expect_in "$output" "fail         licenses       3 licenses 'matlab' wanted, the cluster has 2" || return 1
  scontrol update partitionname=normal ReqResv=yes
  preflight 5 normal two.toml --time 30
  expect_in "$output" "fail         partition      partition 'normal' takes only jobs in a reservation (ReqResv)" '-> name one with --reservation NAME' || return 1
  scontrol update partitionname=normal ReqResv=no
}
asks_about_each_kind_of_node() {
  preflight 0 gpus mixed.toml --time 30
  expect_in "$output" 'nodes          2 nodes of 4 GH200-96: 4 idle' 'nodes          2 nodes of 4 A100-40: 2 idle' \
    'start          GH200-96 alone: now on gh[' 'start          A100-40 alone: now on a[1-2]' 'gres           A100-40 is gpu:a100' \
    'start          the whole job: not before the last of these, now; Slurm says it of each component alone'
}
writes_json() {
  preflight 5 small two.toml --format json
  python3 - "$output" <<'PYTHON'
import json, sys
said = json.loads(sys.argv[1])
assert said["outcome"] == "fail", said
assert said["plan"] == "two.toml", said
limits = [check for check in said["checks"] if check["name"] == "limits"]
assert limits == [{"name": "limits", "outcome": "fail", "what": "the plan takes 2 nodes, partition 'small' allows 1 per job",
                   "remedy": "plan with --max-nodes 1, or use another partition"}], limits
PYTHON
}
refuses_a_plan_for_more_nodes_than_the_limit() {
  preflight 5 small two.toml
  expect_in "$output" "fail         limits         the plan takes 2 nodes, partition 'small' allows 1 per job" \
    '-> plan with --max-nodes 1, or use another partition' 'fail         start          slurmctld: '
}
refuses_a_plan_for_more_nodes_than_there_are() {
  preflight 5 normal six.toml
  expect_in "$output" 'fail         nodes          the plan needs 24 GH200-96, there are 16 (4 nodes with 4)'
}
refuses_more_time_than_the_partition_gives() {
  preflight 5 normal two.toml --time 2:00:00
  expect_in "$output" "fail         limits         time 02:00:00 is over the limit of partition 'normal': 01:00:00"
}
names_states_of_partitions() {
  preflight 5 nromal two.toml
  expect_in "$output" "fail         partition      partition 'nromal' not found (known: cpu, gpus, normal, small, staff)" "-> did you mean 'normal'?"
  scontrol update partitionname=normal state=down
  preflight 5 normal two.toml
  expect_in "$output" "partition 'normal' is down: it starts no jobs" 'ask the administrator'
  scontrol update partitionname=normal state=inactive
  preflight 5 normal two.toml
  expect_in "$output" "partition 'normal' is inactive: it takes no jobs and starts none"
  scontrol update partitionname=normal state=up
}
says_who_has_no_access() {
  local as=()
  if ((EUID == 0)); then # root has access to all
    as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    chmod 755 "$work"
    "${as[@]}" test -x "$bin_dir/sailor-plan" || { echo "not looked at: $bin_dir is closed to other users"; return 0; }
  fi
  expect_failure 5 "${as[@]}" "$bin_dir/sailor-plan" -p staff --preflight two.toml --train-option=--device=cpu
  expect_in "$output" "fail         access         partition 'staff' takes jobs of groups nosuchgroup only, and " 'fail         start          slurmctld: '
}
names_drained_nodes_with_their_reasons() {
  scontrol update nodename=gh[1-3] state=drain reason="leaking pump"
  preflight 5 normal two.toml
  expect_in "$output" 'fail         nodes          2 nodes of 4 GH200-96 needed, 1 up: 1 idle, 3 drained: leaking pump' '-> wait until nodes are back'
  scontrol update nodename=gh4 state=drain reason="leaking pump"
  preflight 5 normal two.toml
  expect_in "$output" '2 nodes of 4 GH200-96 needed, 0 up: 0 idle, 4 drained: leaking pump'
  scontrol update nodename=gh[1-4] state=resume
  eventually all_idle
}
tells_when_busy_nodes_will_be_free() {
  local job
  job=$(sbatch --parsable -p normal -w 'gh[1-3]' -N3 --exclusive -t 20 --wrap 'sleep 120' -o /dev/null) || return 1
  eventually bash -c "squeue -h -j $job -t R | grep -q ."
  preflight 0 normal two.toml --time 10
  expect_in "$output" '1 idle, 3 busy; the job waits until enough are free' 'ok           start          in 00:'
  scancel "$job"
  eventually all_idle
}
sees_reservations() {
  scontrol create reservation reservationname=fix starttime=now+20minutes duration=60 users=root nodes=gh[1-4] flags=maint >/dev/null || return 1
  preflight 0 normal two.toml --time 10
  expect_in "$output" 'none while the job would run'
  preflight 4 normal two.toml --time 30
  expect_in "$output" "warn         reservations   maintenance 'fix' takes 4 nodes from " '-> a job with a --time below 00:'
  scontrol delete reservationname=fix
}
# reserve NAME USERS START MINUTES NODES
reserve() { scontrol create reservation "reservationname=$1" "users=$2" "starttime=$3" "duration=$4" "nodes=$5" >/dev/null; }
says_what_it_does_not_know_of_reservations() {
  scontrol create reservation reservationname=flexible users="$(id -un)" starttime=now duration=40 nodes='gh[1-2]' flags=flex >/dev/null || return 1
  preflight 4 normal two.toml --reservation flexible --time 30
  expect_in "$output" "warn         reservations   reservation 'flexible' is FLEX: jobs may use other nodes and run beyond its time, but only its own" || return 1
  scontrol delete reservationname=flexible
  scontrol create reservation reservationname=cores users="$(id -un)" starttime=now duration=40 nodes='gh[1-2]' corecnt=4,4 >/dev/null || return 1
  eventually bash -c 'scontrol show reservation cores | grep -q CoreIDs='
  "$bin_dir/sailor-plan" --partition normal --preflight two.toml --mpi none --reservation cores --time 30 >said
  expect_in "$(cat said)" "warn         reservations   reservation 'cores' has only some cores of its nodes, which are counted as whole" || return 1
  scontrol delete reservationname=cores
}
checks_the_reservation_of_the_job() {
  reserve ours "$(id -un)" now 40 'gh[1-2]' && reserve theirs nobody now 40 gh3 || return 1
  preflight 0 normal two.toml --reservation ours --time 30
  expect_in "$output" "ok           reservations   the job runs in 'ours', which has 2 nodes since " \
    'nodes          2 nodes of 4 GH200-96: 2 idle' 'ok           start          now on gh[1-2]'
  preflight 4 normal two.toml --reservation ours --time 50
  expect_in "$output" "warn         reservations   the job runs in 'ours'" "before the job's 00:50:00 are over" '-> use a --time below 00:'
  preflight 5 normal two.toml --reservation theirs --time 30
  expect_in "$output" "fail         reservations   reservation 'theirs' takes no jobs of $(id -un) (users: nobody)" \
    'start          slurmctld: will_run: Access denied to requested reservation'
  preflight 5 normal two.toml --reservation our
  expect_in "$output" "fail         reservations   reservation 'our' not found (known: ours, theirs)" "-> did you mean 'ours'?"
  scontrol delete reservationname=ours
  scontrol delete reservationname=theirs
  reserve later "$(id -un)" now+20minutes 40 'gh[1-2]' || return 1
  preflight 4 normal two.toml --reservation later --time 30
  expect_in "$output" "ok           reservations   the job runs in 'later', which has 2 nodes from " 'warn         start ' \
    "-> Slurm does not say before reservation 'later' has begun: the job waits until then"
  scontrol delete reservationname=later
}
plan_in() { # STATUS PARTITION RESERVATION OPTION...
  local status=$1 partition=$2 reservation=$3
  shift 3
  expect_failure "$status" "$bin_dir/sailor-plan" -p "$partition" --reservation "$reservation" --model tiny-gpt \
    --global-batch 16 --sequence-length 64 --profile published --framework sailor "$@"
}
is_reserved() { [[ $(scontrol -o show node "$1") == *RESERVED* ]]; }
plans_in_a_reservation() {
  reserve ours "$(id -un)" now 40 'gh[3-4]' && reserve theirs nobody now 40 gh2 || return 1
  eventually is_reserved gh3 # what planned without it leaves out
  plan_in 0 normal ours --pin pipeline_parallel=2,data_parallel=2,tensor_parallel=2 --placement --save-cluster part.toml
  expect_in "$output" 'gh3 ' 'gh4 '
  [[ $output != *gh1* && $output != *gh2* && $(grep '^nodes = ' part.toml) != *gh1* ]] || { echo "$output"; return 1; }
  plan_in 1 normal theirs
  expect_in "$output" "reservation 'theirs' takes no jobs of $(id -un) (users: nobody); leave out --reservation"
  plan_in 1 normal nope
  expect_in "$output" "reservation 'nope' not found (known: ours, theirs); correct --reservation"
  plan_in 1 cpu ours
  expect_in "$output" "reservation 'ours' has no node in cpu; use the partition of its nodes: gpus, normal, small, staff"
  scontrol delete reservationname=ours
  scontrol delete reservationname=theirs
}
looks_for_the_data() {
  preflight 5 normal two.toml --data nope
  expect_in "$output" "fail         data           'nope.bin' does not exist"
  preflight 5 normal two.toml --data empty
  expect_in "$output" "'empty.bin' is empty"
  preflight 5 normal two.toml --checkpoints two.toml
  expect_in "$output" "fail         checkpoints    " 'is no folder'
}
names_mpi_types() {
  expect_failure 5 "$bin_dir/sailor-plan" -p normal --preflight two.toml --mpi openmpi3
  expect_in "$output" 'fail         mpi            srun has no --mpi=openmpi3 (it has: '
}
plans_and_checks() {
  "$bin_dir/sailor-profile" layers --model tiny-gpt --micro-batches 1,2 --sequence-length 16 --time-budget 1 --store store >/dev/null || return 1
  expect_failure 0 "$bin_dir/sailor-plan" -p cpu --model tiny-gpt --global-batch 8 --sequence-length 16 --profile store \
    --preflight --mpi none --iterations 10 --time 30 -o best.toml
  expect_in "$output" 'the best of ' 'Before the queue:' 'ok           profile        cpu: measured, 0 days ago' \
    'ok           memory         ' 'ok           time           10 iterations of '
  preflight 0 cpu best.toml --profile store --iterations 10 --time 30
  # The plan remembers its store.
  preflight 0 cpu best.toml --iterations 10 --time 30
  expect_in "$output" 'cpu: measured, 0 days ago'
  preflight 5 cpu best.toml --iterations 1e9 --time 30
  expect_in "$output" 'fail         time           1000000000 iterations of '
  preflight 4 cpu best.toml --iterations 1e9 --time 30 --checkpoints .
  expect_in "$output" 'jobs one after the other, each from the last checkpoint'
  # Without a plan, the reason is one of the checks.
  scontrol update nodename=c[1-2] state=drain reason=paint
  expect_failure 5 "$bin_dir/sailor-plan" -p cpu --model tiny-gpt --global-batch 8 --sequence-length 16 --profile store --preflight
  expect_in "$output" "fail         plan          no node of partition 'cpu' is up (unavailable: drained: paint)"
  scontrol update nodename=c[1-2] state=resume
}
refuses_options_that_do_not_go_together() {
  expect_failure 2 "$bin_dir/sailor-plan" --preflight two.toml
  expect_in "$output" '--preflight needs the partition of the job'
  preflight 2 normal two.toml --max-nodes 3
  expect_in "$output" '--max-nodes is about the search for a plan, but a plan is given'
  expect_failure 2 "$bin_dir/sailor-plan" -p normal two.toml
  expect_in "$output" "PLAN 'two.toml' is named, but nothing is to be done with it"
  preflight 2 normal two.toml --format toml
  preflight 2 normal two.toml --time 2h
}
checks_against_a_file_of_the_cluster() {
  "$tests_dir/read_cluster" >cluster.toml || return 1
  export SLURM_CONF=/nowhere PATH=/nowhere
  preflight 5 small two.toml --cluster cluster.toml
  expect_in "$output" "partition 'small' allows 1 per job" 'not checked  start          Slurm was not asked' 'not checked  mpi '
}
says_that_the_controller_is_down() {
  kill "$(pid_of slurmctld)" || return 1
  eventually bash -c '! scontrol ping | grep -q UP'
  preflight 1 normal two.toml
  expect_in "$output" 'slurmctld of cluster testcluster at ' 'does not answer ('
}

check 'finds nothing wrong with a good job' finds_nothing_wrong_with_a_good_job
check 'asks the program what it can run' asks_the_program_what_it_can_run
check 'counts licenses, and reservations that partitions want' counts_licenses_and_reservations_that_partitions_want
check 'asks about each kind of node' asks_about_each_kind_of_node
check 'writes JSON' writes_json
check 'refuses a plan for more nodes than the limit' refuses_a_plan_for_more_nodes_than_the_limit
check 'refuses a plan for more nodes than there are' refuses_a_plan_for_more_nodes_than_there_are
check 'refuses more time than the partition gives' refuses_more_time_than_the_partition_gives
check 'names states of partitions' names_states_of_partitions
check 'says who has no access' says_who_has_no_access
check 'names drained nodes with their reasons' names_drained_nodes_with_their_reasons
check 'tells when busy nodes will be free' tells_when_busy_nodes_will_be_free
check 'sees reservations' sees_reservations
check 'says what it does not know of reservations' says_what_it_does_not_know_of_reservations
check 'checks the reservation of the job' checks_the_reservation_of_the_job
check 'plans in a reservation' plans_in_a_reservation
check 'looks for the data' looks_for_the_data
check 'names MPI types' names_mpi_types
check 'plans and checks' plans_and_checks
check 'refuses options that do not go together' refuses_options_that_do_not_go_together
check 'checks against a file of the cluster' checks_against_a_file_of_the_cluster
check 'says that the controller is down' says_that_the_controller_is_down
finish
