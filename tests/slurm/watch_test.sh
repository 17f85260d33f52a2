#!/usr/bin/env bash
# sailor-plan --watch on a live Slurm: nodes that are drained and come back, faster ones that appear, a slurmctld that
# goes away.
#
# shellcheck disable=SC2317,SC2329  # tests are called by name
# shellcheck source-path=SCRIPTDIR source=common.bash
source "$(dirname "${BASH_SOURCE[0]}")/common.bash"

start_cluster --nodes a:3:a100:4:64:1:500000,gh:2:gh200:4:288:4:854000 --partitions 'gpus=ALL' --mpi none
watch=("$bin_dir/sailor-plan" -p gpus --model opt-350m-sailor --global-batch 2048 --profile published --framework sailor
  --watch)

# watching OPTION...: starts it in the background, with what it says in $work/said, and waits for its first line.
watching() {
  : >"$work/said"
  "${as[@]}" "${watch[@]}" --interval 1 "$@" >>"$work/said" 2>"$work/errors" &
  watcher=$!
  says 1
}
as=()
has_lines() { (($(wc -l <"$work/said") >= $1)); }
says() { eventually has_lines "$1" || { cat "$work/errors"; return 1; }; } # LINES
# ends_well: SIGTERM is a good end.
ends_well() {
  local status=0
  kill -TERM "$watcher"
  wait "$watcher" || status=$?
  ((status == 0)) || { echo "exit status $status"; cat "$work/errors"; return 1; }
}
# have_come NODE...: since the fourth line.
have_come() {
  local node
  for node in "$@"; do tail -n +4 "$work/said" | grep -q "$node.* came" || return 1; done
}
line() { sed -n "$1p" "$work/said"; }
all_idle() { [[ $(sinfo -h -p gpus -t idle -o %D) == 5 ]]; }

follows_nodes_that_are_drained_and_come_back() {
  scontrol update nodename=gh[1-2] state=drain reason='to be repaired' && watching || return 1
  expect_in "$(line 1)" '12 A100-40 on 3 nodes: best plan ' ' per iteration' || return 1
  scontrol update nodename=a3 state=drain reason='leaking pump' && says 2 || return 1
  expect_in "$(line 2)" ' a3 went (drained: leaking pump): best plan ' ' on 8 devices, ' \
    'the running plan cannot go on (the plan needs 12 A100-40, there are 8 (2 nodes with 4) in partition ' ': switch' || return 1
  scontrol update nodename=a3 state=resume && says 3 || return 1
  expect_in "$(line 3)" ' a3 came (4 A100-40): best plan ' '; the running plan is as good: keep it' || return 1
  # Faster ones appear, at once, or one after the other where a look falls between the two.
  scontrol update nodename=gh[1-2] state=resume && eventually have_come gh1 gh2 || return 1
  expect_in "$(line 4)" ' came (4 GH200-96' ': best plan ' '% more iterations within 01:00:00 than the running plan, ' \
    'for the switch included: switch' || return 1
  ends_well && (($(wc -l <"$work/said") <= 5))
}
goes_on_when_slurmctld_is_back() {
  watching --format json || return 1
  kill "$(pid_of slurmctld)" && says 2 || return 1
  expect_in "$(line 2)" '"event":"no_answer"' 'does not answer' 'asked again every 1 s' || return 1
  SAILOR_TESTCLUSTER_ROLE=slurmctld SAILOR_TESTCLUSTER_MARK=$work/c slurmctld -f "$SLURM_CONF" && says 3 || return 1
  expect_in "$(line 3)" '"event":"answers"' || return 1
  eventually all_idle
  # A slurmctld that has just started does not know its nodes: they have not gone.
  scontrol update nodename=a1 state=drain reason=paint && says 4 || return 1
  expect_in "$(line 4)" '"went":[{"node":"a1","gpu":"A100-40","devices":4,"zone":"","reason":"drained: paint"}]' || return 1
  scontrol update nodename=a1 state=resume
  eventually all_idle
  ends_well
}
questions() { sdiag | sed -n 's/.*REQUEST_NODE_INFO .* count:\([0-9]*\) .*/\1/p'; }
asks_no_more_often_than_the_interval() {
  local before after
  before=$(questions)
  "${watch[@]}" --interval 2 --watch-count 3 >"$work/said" || return 1
  after=$(questions)
  ((after - before == 3)) || { echo "asked for nodes $((after - before)) times"; sdiag; return 1; }
}
works_as_an_ordinary_user() {
  if ((EUID == 0)); then
    as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    chmod 755 "$work"
    "${as[@]}" test -x "$bin_dir/sailor-plan" || { echo "not looked at: $bin_dir is closed to other users"; return 0; }
  fi
  watching && ends_well
}

check 'follows nodes that are drained and come back' follows_nodes_that_are_drained_and_come_back
eventually all_idle
check 'goes on when slurmctld is back' goes_on_when_slurmctld_is_back
check 'asks no more often than the interval' asks_no_more_often_than_the_interval
check 'works as an ordinary user' works_as_an_ordinary_user
finish
