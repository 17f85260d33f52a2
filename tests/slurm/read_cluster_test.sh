#!/usr/bin/env bash
# Reads live clusters through libslurm, healthy ones and broken ones.
#
# shellcheck disable=SC2317,SC2329  # tests are called by name
# shellcheck source-path=SCRIPTDIR source=common.bash
source "$(dirname "${BASH_SOURCE[0]}")/common.bash"
reader=$tests_dir/read_cluster

start_cluster --nodes gh:3:gh200:4:288:4:854000,c:2:-:0:8:2:16000,m:1:mi300:8:96:2:512000 \
  --partitions 'normal=gh MaxTime=60 MaxNodes=2;cpu=c MaxTime=UNLIMITED;mixed=ALL'

# node_entry NODE: the [[nodes]] of the live cluster.toml that holds it
node_entry() { "$reader" 2>/dev/null | awk -v node="\"$1\"" 'BEGIN { RS = "" } /^\[\[nodes\]\]/ && index($0, node)'; }
node_says() { [[ $(node_entry "$1") == *"$2"* ]]; }

reads_nodes_and_partitions() {
  local text
  text=$("$reader" 2>"$work/warnings") || return 1
  expect_in "$text" 'name = "testcluster"' \
    $'name = "normal"\nup = true\ndefault = true\ntime_limit_s = 3600.0\nmost_nodes = 2\n' \
    $'name = "cpu"\nup = true\ndefault = false\n\n' \
    $'nodes = ["gh1", "gh2", "gh3"]\ncount = 3\ngpu = "GH200-96"\ngpus_per_node = 4\ncpus_per_node = 288\nmemory_per_node_bytes = 895483904000.0\nstate = "idle"\npartitions = ["normal", "mixed"]' \
    $'nodes = ["c1", "c2"]\ncount = 2\ngpu = "cpu"\ngpus_per_node = 8\ncpus_per_node = 8\n'
}
names_nodes_it_leaves_out() {
  local text
  text=$("$reader" 2>&1 >"$work/toml") || return 1
  expect_in "$text" "left out node m1: GPU type 'mi300' is not in the catalogue"
  ! grep -q m1 "$work/toml"
}
tells_running_jobs() {
  local one two
  one=$(sbatch --parsable -p normal -w gh1 -n1 --gpus=1 --wrap 'sleep 60' -o /dev/null) || return 1
  two=$(sbatch --parsable -p normal -w gh2 --exclusive --wrap 'sleep 60' -o /dev/null) || return 1
  eventually node_says gh1 'state = "mixed"'
  eventually node_says gh2 'state = "allocated"'
  node_says gh3 'state = "idle"' || return 1
  scancel "$one" "$two"
  eventually node_says gh3 'nodes = ["gh1", "gh2", "gh3"]'
}
tells_drained_nodes_with_the_reason() {
  scontrol update nodename=gh2 state=drain reason="bad fan, see \"ticket\" 12" || return 1
  eventually node_says gh2 'state_reason = "drained: bad fan, see \"ticket\" 12"'
  expect_in "$(node_entry gh2)" 'nodes = ["gh2"]' 'state = "unavailable"'
  scontrol update nodename=gh2 state=resume
  eventually node_says gh2 'state = "idle"'
}
tells_nodes_that_are_down() {
  scontrol update nodename=gh3 state=down reason=smoke || return 1
  eventually node_says gh3 'state_reason = "down: smoke"'
  scontrol update nodename=gh3 state=resume
  eventually node_says gh3 'state = "idle"'
}
tells_nodes_under_maintenance() {
  scontrol create reservation reservationname=fix starttime=now duration=10 users=root nodes=c1 flags=maint >/dev/null || return 1
  eventually node_says c1 'state_reason = "in a maintenance reservation"'
  scontrol delete reservationname=fix
  eventually node_says c1 'state = "idle"'
}
# plan PARTITION: what people do with the reading.
plan() {
  "$bin_dir/sailor-plan" --partition "$1" --model tiny-gpt --global-batch 8 --sequence-length 16 --profile "$work/store"
}
plans_for_a_live_partition() {
  "$bin_dir/sailor-profile" layers --model tiny-gpt --micro-batches 1,2 --sequence-length 16 --time-budget 1 --store "$work/store"
  output=$(plan cpu 2>/dev/null) || return 1
  expect_in "$output" 'tiny-gpt: the best of ' 'USD/iteration' 'x [cpu tp1] b'
}
refuses_unknown_partitions() {
  expect_failure 1 plan norml
  expect_in "$output" "partition 'norml' not found (known: cpu, mixed, normal); did you mean 'normal'? use --partition NAME"
}
refuses_partitions_that_are_down() {
  scontrol update partitionname=cpu state=down || return 1
  expect_failure 1 plan cpu
  expect_in "$output" "partition 'cpu' is down: it starts no jobs"
  scontrol update partitionname=cpu state=up
}
says_that_the_configuration_is_missing() {
  export SLURM_CONF=/no/such/slurm.conf
  expect_failure 1 plan normal
  expect_in "$output" "SLURM_CONF names '/no/such/slurm.conf', which does not exist"
  if [[ ! -e /etc/slurm/slurm.conf && ! -e /run/slurm/conf/slurm.conf ]]; then
    unset SLURM_CONF
    expect_failure 1 "$reader"
    expect_in "$output" 'no Slurm configuration found' 'set SLURM_CONF' 'use --cluster FILE'
  fi
}
survives_a_configuration_that_libslurm_dies_of() {
  echo 'NodeName=' >"$work/bad.conf"
  SLURM_CONF=$work/bad.conf expect_failure 1 "$reader"
  expect_in "$output" 'libslurm gave up (' 'use --cluster FILE'
}
# silent_controller PART...: an error that holds these comes within 18 s
silent_controller() {
  local began=$SECONDS
  expect_failure 1 plan normal
  ((SECONDS - began <= 18)) || { echo "took $((SECONDS - began)) s"; exit 1; }
  expect_in "$output" "$@"
}
gives_up_on_a_hanging_controller() {
  local pid
  pid=$(pid_of slurmctld)
  kill -STOP "$pid" || return 1
  # shellcheck disable=SC2064  # $pid as it is now
  trap "kill -CONT $pid" EXIT
  silent_controller 'slurmctld of cluster testcluster at ' 'does not answer'
}
gives_up_on_a_controller_that_is_down() {
  kill "$(pid_of slurmctld)" || return 1
  eventually bash -c '! scontrol ping | grep -q UP'
  silent_controller 'slurmctld of cluster testcluster at ' 'does not answer (Unable to contact slurm controller' \
    'is the controller up? use --cluster FILE to plan without it'
}

check 'reads nodes and partitions' reads_nodes_and_partitions
check 'names nodes it leaves out' names_nodes_it_leaves_out
check 'tells running jobs' tells_running_jobs
check 'tells drained nodes, with the reason' tells_drained_nodes_with_the_reason
check 'tells nodes that are down' tells_nodes_that_are_down
check 'tells nodes under maintenance' tells_nodes_under_maintenance
check 'plans for a live partition' plans_for_a_live_partition
check 'refuses unknown partitions' refuses_unknown_partitions
check 'refuses partitions that are down' refuses_partitions_that_are_down
check 'says that the configuration is missing' says_that_the_configuration_is_missing
check 'survives a configuration that libslurm dies of' survives_a_configuration_that_libslurm_dies_of
check 'gives up on a hanging controller' gives_up_on_a_hanging_controller
check 'gives up on a controller that is down' gives_up_on_a_controller_that_is_down
finish
