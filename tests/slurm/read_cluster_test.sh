#!/usr/bin/env bash
# Reads live clusters through libslurm, healthy ones and broken ones.
#
# shellcheck disable=SC2317,SC2329  # tests are called by name
# shellcheck source-path=SCRIPTDIR source=common.bash
source "$(dirname "${BASH_SOURCE[0]}")/common.bash"
reader=$tests_dir/read_cluster

# u1 has GPUs whose type nobody said; it has no slurmd.
echo 'NodeName=u1 NodeAddr=127.0.0.1 Port=1 CPUs=8 RealMemory=1000 Gres=gpu:2 State=DOWN' >"$work/extra.conf"
start_cluster --nodes gh:3:gh200:4:288:4:854000,c:2:-:0:8:2:16000,m:1:mi300:8:96:2:512000 \
  --partitions "normal=gh MaxTime=60 MaxNodes=2;cpu=c MaxTime=UNLIMITED DefaultTime=30;staff=c AllowGroups=nosuchgroup;mixed=ALL" \
  --conf-extra "$work/extra.conf"
mkdir "$work/sites"
cp "$source_dir"/slurm/sites/*.toml "$work/sites"

# node_entry NODE: the [[nodes]] of the live cluster.toml that holds it
node_entry() { "$reader" 2>/dev/null | awk -v node="\"$1\"" 'BEGIN { RS = "" } /^\[\[nodes\]\]/ && index($0, node)'; }
node_says() { [[ $(node_entry "$1") == *"$2"* ]]; }

all_idle() { node_says c1 'state = "idle"' && node_says c2 'state = "idle"' && node_says gh2 'state = "idle"'; }
reads_nodes_and_partitions() {
  local text
  text=$("$reader" 2>"$work/warnings") || return 1
  expect_in "$text" 'name = "testcluster"' \
    $'name = "normal"\nup = true\ndefault = true\ntime_limit_s = 3600.0\nmost_nodes = 2\n' \
    $'name = "cpu"\nup = true\ndefault = false\ndefault_time_s = 1800.0\n' \
    $'allowed_groups = ["nosuchgroup"]\n' \
    $'nodes = ["gh1", "gh2", "gh3"]\ncount = 3\ngpu = "GH200-96"\ngpus_per_node = 4\ncpus_per_node = 288\nmemory_per_node_bytes = 895483904000.0\nstate = "idle"\npartitions = ["normal", "mixed"]\nfeatures = ["gh", "gh200", "gpu"]\ncores_per_node = 288\ngres_type = "gh200"\ngpu_sockets = "0-3"' \
    $'nodes = ["c1", "c2"]\ncount = 2\ngpu = "cpu"\ngpus_per_node = 8\ncpus_per_node = 8\n'
}
names_nodes_it_leaves_out() {
  local text
  text=$("$reader" 2>&1 >"$work/toml") || return 1
  expect_in "$text" "left out node m1: GPU type 'mi300' is not in the catalogue"
  expect_in "$text" "left out node u1: GPUs without a type (Slurm says only 'gpu', and no feature of the node says more); say which with --gpu-type NAME, or with [[gpu_types]] of the site file"
  [[ -z $(node_entry m1)$(node_entry u1) ]]
}

tells_running_jobs() {
  local one two
  one=$(sbatch --parsable -p normal -w gh1 -n1 --gpus=1 --mem=1000 --wrap 'sleep 60' -o /dev/null) || return 1
  two=$(sbatch --parsable -p normal -w gh2 --exclusive --wrap 'sleep 60' -o /dev/null) || return 1
  eventually node_says gh1 'state = "mixed"'
  expect_in "$(node_entry gh1)" 'gpus_free = 3'
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
tells_reservations() {
  local start
  start=$(($(date +%s) + 3600))
  scontrol create reservation reservationname=later starttime="$(date -d "@$start" +%Y-%m-%dT%H:%M:%S)" duration=30 users=root nodes=c1,gh2 >/dev/null || return 1
  output=$("$reader" 2>/dev/null)
  expect_in "$output" $'[[reservations]]\nname = "later"\n'"start_unix_s = $start"$'\n'"end_unix_s = $((start + 1800))"$'\n''nodes = ["c1", "gh2"]' \
    'users = ["root"]'
  scontrol delete reservationname=later
}
# plan PARTITION OPTION...: what people do with the reading.
plan() {
  local partition=$1
  shift
  "$bin_dir/sailor-plan" --partition "$partition" --model tiny-gpt --global-batch 8 --sequence-length 16 \
    --profile "$work/store" "$@"
}
plans_for_a_live_partition() {
  "$bin_dir/sailor-profile" layers --model tiny-gpt --micro-batches 1,2 --sequence-length 16 --time-budget 1 --store "$work/store"
  output=$(plan cpu 2>/dev/null) || return 1
  expect_in "$output" 'tiny-gpt in fp32 on ' 'the best of ' 'USD/iteration' 'x [cpu tp1] b'
}
plans_for_several_partitions() {
  # GPUs are that much faster that no plan of cores is among the ten best.
  output=$(plan normal,cpu,mixed --save-cluster both.toml --top 200 2>/dev/null) || return 1
  expect_in "$output" 'x [cpu tp1] b' 'x [GH200-96 tp1] b'
  # Nodes of another partition may be excluded too.
  plan cpu --exclude gh1,c1 --pin data_parallel=1 >/dev/null || return 1
  expect_failure 1 plan cpu,normla
  expect_in "$output" "partition 'normla' not found (known: cpu, mixed, normal, staff); did you mean 'normal'? use --partition NAME"
}
plan_gpus() { # PARTITION OPTION...
  local partition=$1
  shift
  "$bin_dir/sailor-plan" --partition "$partition" --model opt-350m-sailor --global-batch 8 --profile published \
    --availability all --pin pipeline_parallel=1,tensor_parallel=1 "$@"
}
plans_for_gpus_without_a_type() {
  local why="no node of partition 'odd' exists (left out node u1: GPUs without a type (Slurm says only 'gpu', and no feature of the node says more))"
  scontrol create partitionname=odd nodes=u1 || return 1
  expect_failure 3 plan_gpus odd
  expect_in "$output" "$why; say which with --gpu-type NAME, or with [[gpu_types]] of the site file" || return 1
  output=$(plan_gpus odd --gpu-type A100-40 2>said) || { cat said; return 1; }
  expect_in "$output" '2 x [A100-40 tp1' || return 1
  [[ $(cat said) != *'left out'* ]] || { cat said; return 1; }
  output=$(plan_gpus odd --gpu-type 'gh[1-3],u1=v100' 2>said) || { cat said; return 1; }
  expect_in "$output" '2 x [V100-16 tp1' || return 1
  expect_failure 2 plan_gpus odd --gpu-type 'u1=abacus'
  expect_in "$output" "--gpu-type: GPU type 'abacus' is not in the catalogue" || return 1
  # The node's features, and the site file
  scontrol update nodename=u1 availablefeatures=gpu,a100-80gb activefeatures=gpu,a100-80gb || return 1
  output=$(plan_gpus odd 2>said) || { cat said; return 1; }
  expect_in "$output" '2 x [A100-80 tp1' || return 1
  printf '[[gpu_types]]\ngpu = "GH200-96"\nuntyped = true\n' >>"$work/sites/testcluster.toml"
  output=$(SAILOR_SITES=$work/sites plan_gpus odd 2>said) || { cat said; return 1; }
  expect_in "$output" '2 x [GH200-96 tp1' || return 1
  scontrol delete partitionname=odd
}
names_left_out_nodes_of_its_partitions_only() {
  plan_gpus normal >/dev/null 2>said || { cat said; return 1; }
  [[ $(cat said) != *'left out node'* ]] || { cat said; return 1; }
  plan_gpus mixed >/dev/null 2>said || { cat said; return 1; }
  expect_in "$(cat said)" 'left out node m1: '
}
# takes PIPELINES OPTION...: whether a plan for so many GH200 of the three nodes is found
takes() {
  local pipelines=$1
  shift
  "$bin_dir/sailor-plan" --partition mixed --model opt-350m-sailor --global-batch 64 --profile published \
    --pin gpu=GH200-96 --pin "data_parallel=$pipelines" --pin pipeline_parallel=1 --pin tensor_parallel=1 "$@" >/dev/null
}
plans_for_what_is_free_up_or_there() {
  local one
  takes 12 || return 1
  one=$(sbatch --parsable -p normal -w gh1 -n1 --gpus=1 --mem=1000 --wrap 'sleep 60' -o /dev/null) || return 1
  eventually node_says gh1 'gpus_free = 3'
  expect_failure 3 takes 12 --availability idle
  expect_in "$output" 'what is pinned takes 12 devices' '1 more than there are'
  takes 11 --availability idle || return 1 # 4 + 4 + 3
  takes 12 --availability up || return 1
  scancel "$one"
  scontrol update nodename=gh2 state=drain reason=paint
  expect_failure 3 takes 12
  expect_in "$output" '4 more than there are'
  takes 12 --availability all || return 1
  scontrol update nodename=c1 state=drain reason=paint
  scontrol update nodename=c2 state=drain reason="wet paint"
  expect_failure 3 plan cpu
  expect_in "$output" "no node of partition 'cpu' is up (unavailable: drained: paint; unavailable: drained: wet paint); choose another partition, or plan for what may come back with --availability all"
  plan cpu --availability all --pin data_parallel=1 >/dev/null || return 1
  scontrol update nodename=gh2,c[1-2] state=resume
  eventually all_idle
}
warns_of_partitions_that_are_closed_to_the_user() {
  local as=() program
  # Root may use any; programs of another user must find everything.
  if ((EUID == 0)); then
    as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    chmod 755 "$work"
    "${as[@]}" test -x "$bin_dir/sailor-plan" || { echo "not looked at: $bin_dir is closed to other users"; return 0; }
  fi
  program=$("${as[@]}" "$bin_dir/sailor-plan" --partition staff --model tiny-gpt --global-batch 8 --sequence-length 16 \
    --profile "$work/store" 2>&1) || { echo "$program"; return 1; }
  expect_in "$program" "warning: partition 'staff' takes jobs of groups nosuchgroup only, and "
}
refuses_unknown_partitions() {
  expect_failure 1 plan norml
  expect_in "$output" "partition 'norml' not found (known: cpu, mixed, normal, staff); did you mean 'normal'? use --partition NAME"
}
refuses_partitions_that_are_down() {
  scontrol update partitionname=cpu state=down || return 1
  expect_failure 1 plan cpu
  expect_in "$output" "partition 'cpu' is down: it starts no jobs"
  scontrol update partitionname=cpu state=drain
  expect_failure 1 plan cpu
  expect_in "$output" "partition 'cpu' is draining: it takes no new jobs"
  scontrol update partitionname=cpu state=inactive
  expect_failure 1 plan cpu
  expect_in "$output" "partition 'cpu' is inactive: it takes no jobs and starts none"
  output=$(plan cpu --availability all 2>&1) || return 1
  expect_in "$output" "warning: partition 'cpu' is inactive" 'x [cpu tp1] b'
  scontrol update partitionname=cpu state=up
}
keeps_two_clusters_apart() {
  local first=$SLURM_CONF texts
  printf 'ClusterName=other\n' >"$work/other.conf"
  "$testcluster" start "$work/d" --owner $$ --nodes x:2:-:0:4:1:4000 --partitions only=ALL --conf-extra "$work/other.conf" || return 1
  # shellcheck disable=SC2064
  trap "'$testcluster' stop '$work/d'" EXIT
  # Both at once, several times.
  for _ in 1 2 3; do
    SLURM_CONF=$first "$reader" >first.toml 2>/dev/null &
    texts=$!
    SLURM_CONF=$work/d/slurm.conf "$reader" >second.toml || return 1
    wait "$texts" || return 1
    expect_in "$(cat first.toml)" 'name = "testcluster"' '"gh1"'
    expect_in "$(cat second.toml)" 'name = "other"' 'nodes = ["x1", "x2"]'
    [[ $(cat first.toml) != *x1* && $(cat second.toml) != *gh1* ]] || { cat first.toml second.toml; return 1; }
  done
  SLURM_CONF=$work/d/slurm.conf expect_failure 1 plan cpu
  expect_in "$output" "partition 'cpu' not found (known: only)"
}
tells_the_switches() {
  start_with_switches || return 1
  expect_in "$("$reader")" 'nodes = ["x1", "x2", "x3"]' 'switches = ["s0", "s0", "s1"]' 'kind = "tree"'
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
waits_for_a_slow_controller() {
  local pid status=0
  pid=$(pid_of slurmctld)
  kill -STOP "$pid" || return 1
  (sleep 3; kill -CONT "$pid") &
  plan cpu >/dev/null || status=1
  wait $!
  return "$status"
}
# A listener whose queue of connections is full: the kernel drops what comes, as a firewall does.
gives_up_on_an_address_that_drops_packets() {
  local listener port
  python3 -c '
import socket, sys, time
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(0)
waiting = []
for _ in range(4):
    client = socket.socket()
    client.setblocking(False)
    client.connect_ex(listener.getsockname())
    waiting.append(client)
print(listener.getsockname()[1], flush=True)
time.sleep(120)' >port &
  listener=$!
  # shellcheck disable=SC2064
  trap "kill $listener" EXIT
  eventually test -s port
  port=$(cat port)
  sed "s/^SlurmctldPort=.*/SlurmctldPort=$port/" "$SLURM_CONF" >dropping.conf
  SLURM_CONF=$work/dropping.conf silent_controller "slurmctld of cluster testcluster at " ":$port does not answer ("
}
gives_up_on_an_address_of_nobody() {
  sed "s/^SlurmctldHost=.*/SlurmctldHost=nobody(192.0.2.1)/" "$SLURM_CONF" >nobody.conf
  SLURM_CONF=$work/nobody.conf silent_controller 'slurmctld of cluster testcluster at nobody:' 'does not answer ('
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
check 'tells reservations' tells_reservations
check 'plans for a live partition' plans_for_a_live_partition
check 'plans for several partitions' plans_for_several_partitions
check 'plans for GPUs without a type' plans_for_gpus_without_a_type
check 'names left-out nodes of its partitions only' names_left_out_nodes_of_its_partitions_only
check 'plans for what is free, up, or there' plans_for_what_is_free_up_or_there
check 'warns of partitions that are closed to the user' warns_of_partitions_that_are_closed_to_the_user
check 'refuses unknown partitions' refuses_unknown_partitions
check 'refuses partitions that are down, draining or inactive' refuses_partitions_that_are_down
check 'says that the configuration is missing' says_that_the_configuration_is_missing
check 'survives a configuration that libslurm dies of' survives_a_configuration_that_libslurm_dies_of
check 'keeps two clusters apart' keeps_two_clusters_apart
check 'tells the switches' tells_the_switches
check 'gives up on an address that drops packets' gives_up_on_an_address_that_drops_packets
check 'gives up on an address of nobody' gives_up_on_an_address_of_nobody
check 'waits for a slow controller' waits_for_a_slow_controller
check 'gives up on a hanging controller' gives_up_on_a_hanging_controller
check 'gives up on a controller that is down' gives_up_on_a_controller_that_is_down
finish
