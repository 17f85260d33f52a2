#!/usr/bin/env bash
# sailor-submit --elastic on a live Slurm: a job that goes on when nodes are lost, and companion jobs that join it. Scripts
# stand in for the controller and for sailor-train: this is about what Slurm and the job's scripts do.
#
# shellcheck disable=SC2317,SC2329  # tests are called by name
# shellcheck disable=SC2015,SC2016  # expect_in ends a test that fails; expressions are of the scripts that are looked at
# shellcheck source-path=SCRIPTDIR source=common.bash
source "$(dirname "${BASH_SOURCE[0]}")/common.bash"

# A node that crashes is DOWN soon.
start_cluster --slurmd-timeout 3 --message-timeout 2 --nodes x:4:-:0:2:1:4000 --partitions 'all=ALL MaxTime=60' --mpi none

cat >"$work/plan.toml" <<'PLAN'
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
gpu = "cpu"
[[pipelines.stages]]
layers = [3, 6]
gpu = "cpu"
PLAN
touch "$work"/corpus.{bin,idx}

# Stand-ins, beside a sailor-submit of their own: the training is over when FOLDER/finish says with which status.
mkdir "$work/bin"
cp "$bin_dir/sailor-submit" "$work/bin/" && submit=$work/bin/sailor-submit
cat >"$work/bin/sailor-controller" <<'STAND_IN'
#!/bin/bash
[[ $1 != --version ]] || { echo 'sailor-controller 0'; exit; }
echo "controller $*"
echo $$ >"$1/controller.pid"
echo '{}' >"$1/controller.json"
echo '{"epoch":1}' >>"$1/journal.jsonl"
trap : TERM
until [[ -e $1/finish ]]; do
  [[ ! -e $1/no-ranks ]] || exit 6
  sleep 0.2
done
exit "$(<"$1/finish")"
STAND_IN
cat >"$work/train" <<'STAND_IN'
#!/bin/bash
[[ $1 != --version ]] || exit 0
folder=$3
mkdir -p "$folder/members"
echo "$*" >"$folder/command-$SLURM_JOB_ID"
echo "$SLURM_LOCALID" >>"$folder/started-$SLURMD_NODENAME"
echo $$ >"$folder/members/$SLURMD_NODENAME.$SLURM_LOCALID"
trap 'rm -f "$folder/members/$SLURMD_NODENAME.$SLURM_LOCALID"' EXIT
until [[ -e $folder/finish ]]; do
  [[ ! -e $folder/leaving/$SLURMD_NODENAME ]] || exit 0
  if grep -sqx "$SLURMD_NODENAME" "$folder/exclude"; then
    [[ ! -e $folder/forgiving ]] || rm -f "$folder/exclude" # before the script that started this can look
    exit 0
  fi
  sleep 0.2
done
exit "$(<"$folder/finish")"
STAND_IN
cat >"$work/bin/sailor-check" <<'STAND_IN'
#!/bin/bash
[[ ! -e /tmp/sailor-unfit-$UID-$SLURMD_NODENAME ]] || { echo 'memory: 3 errors that were not corrected'; exit 5; }
STAND_IN
chmod +x "$work"/bin/sailor-c* "$work/train"
rm -f /tmp/sailor-unfit-"$UID"-*

# elastic RUN OPTION...: submits it; its id in $id, its folder in $folder.
elastic() {
  local run=$1
  shift
  folder=$work/$run/elastic
  id=$(cd "$work" && "$submit" plan.toml --run-directory "$run" --data corpus --iterations 5 --program "${trainer:-./train}" -t 10 \
    --checkpoints kept --devices-per-node 2 --memory-per-cpu 50 "$@") || exit 1
}
members() { (cd "$folder/members" 2>/dev/null && shopt -s nullglob && printf '%s ' *); }
has_members() { [[ $(members) == "$1 " ]]; }
training_ends() { echo "$1" >"$folder/finish.new" && mv "$folder/finish.new" "$folder/finish"; }
state() { scontrol -o show job "$id" | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p'; }
is_in_state() { [[ $(state) == "$1" ]]; }
log() { cat "$work/$1/slurm-$id.out"; }
queue_is_empty() { [[ -z $(squeue -h) ]]; }
companions_are() { [[ $(squeue -h --array -n "sailor-tiny-gpt-$id" -t "$1" -o %i | wc -l) == "$2" ]]; } # STATE NUMBER

grows_when_companions_start_and_ends_with_them() {
  local blocker companion
  blocker=$(sbatch --parsable -N2 --exclusive -o /dev/null --wrap 'sleep 300') || return 1
  eventually bash -c "squeue -h -j $blocker -t R | grep -q ."
  elastic grows --elastic 2-4
  eventually has_members 'x3.0 x3.1 x4.0 x4.1'
  eventually companions_are PENDING 2
  scancel "$blocker"
  eventually has_members 'x1.0 x1.1 x2.0 x2.1 x3.0 x3.1 x4.0 x4.1'
  # The time of one of them is nearly over.
  companion=$(squeue -h --array -n "sailor-tiny-gpt-$id" -t RUNNING -o '%i %N' | head -n 1)
  scancel --batch --signal=USR2 "${companion% *}" || return 1
  eventually test -e "$folder/leaving/${companion#* }"
  eventually bash -c "! squeue -h --array -t R -o %i | grep -qx '${companion% *}'"
  # A newcomer runs the very command of the first ones.
  [[ $(cat "$folder"/command-* | sort -u | wc -l) == 1 ]] || { cat "$folder"/command-*; return 1; }
  training_ends 0
  eventually queue_is_empty
  expect_in "$(state)" COMPLETED
  expect_in "$(log grows)" "controller $folder --plan $work/grows/plan.toml --min-ranks 4 --max-ranks 8" \
    'is queued: 2 of 4 nodes are missing' || return 1
  has_members ''
}
goes_on_without_a_node_that_crashes() {
  elastic crash --elastic 2-2
  eventually has_members 'x1.0 x1.1 x2.0 x2.1'
  "$testcluster" crash-node "$work/c" x2 || return 1
  eventually bash -c "sinfo -h -n x2 -o %t | grep -q down"
  [[ $(squeue -h -j "$id" -o '%T %N') == 'RUNNING x1' ]] || { squeue; return 1; }
  [[ -d /proc/$(<"$folder/members/x1.0") && -d /proc/$(<"$folder/members/x1.1") ]] || return 1
  # The node that is missing comes from a companion job, which does not get the one that failed.
  "$testcluster" start-node "$work/c" x2
  rm "$folder"/members/x2.*
  finish_after_growth 'x1.0 x1.1 x3.0 x3.1' || return 1
  expect_in "$(state)" COMPLETED
  expect_in "$(log crash)" 'is queued: 1 of 2 nodes are missing; without x2' '# node x2 was left out: it failed in the job of the training'
}
replaces_nodes_that_are_excluded() {
  local blocker companion script=$work/excludes.sbatch
  blocker=$(sbatch --parsable -N2 --exclusive -w x3,x4 -o /dev/null --wrap 'sleep 300') || return 1
  eventually bash -c "squeue -h -j $blocker -t R | grep -q ."
  elastic excludes --elastic 2-3 --export "$script"
  sed -i 's/ period=30$/ period=1/; s/^ *period=.*/:/' "$script" # look often, so that the test is short
  id=$(cd "$work" && sbatch --parsable "$script") || return 1
  eventually has_members 'x1.0 x1.1 x2.0 x2.1'
  eventually companions_are PENDING 1
  printf 'x9 \nx2' >"$folder/exclude" # Slurm has no x9; no end of the line: the controller reads that, too
  eventually has_members 'x1.0 x1.1'
  eventually companions_are PENDING 2
  # Also the one that waited before gets another node.
  for companion in $(squeue -h --array -n "sailor-tiny-gpt-$id" -t PENDING -o %F); do
    expect_in "$(scontrol -o show job "$companion")" 'ExcNodeList=x2' || return 1
  done
  scancel "$blocker"
  eventually has_members 'x1.0 x1.1 x3.0 x3.1 x4.0 x4.1'
  # It may be used again: its ranks start anew, and no companion takes the place of one that leaves.
  rm "$folder/exclude"
  eventually has_members 'x1.0 x1.1 x2.0 x2.1 x3.0 x3.1 x4.0 x4.1'
  companion=$(squeue -h --array -n "sailor-tiny-gpt-$id" -t RUNNING -o '%i %N' | head -n 1)
  scancel --batch --signal=USR2 "${companion% *}" || return 1
  eventually bash -c "! squeue -h --array -t R -o %i | grep -qx '${companion% *}'"
  sleep 5
  companions_are PENDING 0 || { squeue; return 1; }
  # A rank that was sent home starts again, too, where its node may be used by the time that somebody looks.
  local started
  started=$(wc -l <"$folder/started-x2")
  touch "$folder/forgiving"
  echo x2 >"$folder/exclude"
  eventually bash -c "[[ \$(wc -l <'$folder/started-x2') -gt $started ]]"
  training_ends 0
  eventually queue_is_empty
  expect_in "$(state)" COMPLETED
  expect_in "$(log excludes)" 'is queued: 1 of 3 nodes are missing; without x2' \
    "there is no node x9, which $folder/exclude names"
}
# finish_after_growth MEMBERS [RUN]: a companion is looked for every half minute.
finish_after_growth() {
  local attempt
  for ((attempt = 0; attempt < 450; ++attempt)); do
    if has_members "$1"; then break; fi
    sleep 0.1
  done
  has_members "$1" || { echo "members: $(members)"; squeue; log "${2-crash}"; return 1; }
  training_ends 0
  eventually queue_is_empty
}
starts_what_was_killed_again() {
  local controller rank
  elastic killed --elastic 2-2
  eventually has_members 'x1.0 x1.1 x2.0 x2.1'
  controller=$(<"$folder/controller.pid") rank=$(<"$folder/members/x2.1")
  kill -KILL "$controller" "$rank"
  eventually bash -c "[[ \$(<'$folder/controller.pid') != $controller && \$(<'$folder/members/x2.1') != $rank ]]"
  training_ends 0
  eventually queue_is_empty
  expect_in "$(state)" COMPLETED
  expect_in "$(log killed)" 'the controller was ended by signal 9: it starts again' \
    '# a rank on x2 ended with status 137: starts again'
}
ends_when_no_rank_can_start() {
  printf '#!/bin/bash\n[[ $1 != --version ]] || exit 0\nexit 2\n' >"$work/fails" && chmod +x "$work/fails"
  local trainer=./fails
  elastic broken --elastic 2-2
  eventually queue_is_empty
  expect_in "$(state)" FAILED
  expect_in "$(log broken)" '# no rank could start'
  expect_in "$(scontrol -o show job "$id")" 'ExitCode=2:0'
}
goes_back_into_the_queue_with_a_checkpoint() {
  elastic again --elastic 1-2
  eventually test -e "$folder/members/x1.1"
  training_ends 75
  eventually is_in_state PENDING
  rm "$folder/finish"
  eventually is_in_state RUNNING
  eventually test -e "$folder/members/x1.1"
  [[ -e $folder/journal-before-$id-1.jsonl ]] || { ls "$folder"; return 1; }
  training_ends 0
  eventually queue_is_empty
  expect_in "$(state)" COMPLETED
}
checks_newcomers_before_they_join() {
  local blocker node
  blocker=$(sbatch --parsable -N3 --exclusive -o /dev/null --wrap 'sleep 300') || return 1
  eventually bash -c "squeue -h -j $blocker -t R | grep -q ."
  touch /tmp/sailor-unfit-"$UID"-x{1,2,3} # whichever is free first
  elastic checks --elastic 1-2
  eventually has_members 'x4.0 x4.1'
  eventually companions_are PENDING 1
  scancel "$blocker"
  eventually bash -c "[[ -n \$(ls '$folder/left-out') ]]"
  node=$(find "$folder/left-out" -type f -printf '%f\n' | head -n 1)
  rm -f /tmp/sailor-unfit-"$UID"-*
  has_members 'x4.0 x4.1' || { members; return 1; }
  eventually grep -q "# no node is fit to train: $node" checks/companion-*.out
  expect_in "$(cat checks/companion-*.out)" "$node: memory: 3 errors that were not corrected" || return 1
  training_ends 0
  eventually queue_is_empty
  expect_in "$(log checks)" "# node $node was left out: memory: 3 errors that were not corrected"
}
companions_end_when_the_job_is_cancelled() {
  local blocker
  blocker=$(sbatch --parsable -N3 --exclusive -o /dev/null --wrap 'sleep 300') || return 1
  eventually bash -c "squeue -h -j $blocker -t R | grep -q ."
  elastic cancelled --elastic 1-4
  eventually companions_are PENDING 3
  scancel "$id"
  eventually is_in_state CANCELLED
  scancel "$blocker"
  eventually queue_is_empty
}
refuses_what_does_not_go_together() {
  expect_failure 2 "$submit" plan.toml --data corpus --iterations 5 --elastic 1-2
  expect_in "$output" '--elastic needs checkpoints to go on from' 'use --checkpoints FOLDER'
  expect_failure 2 "$submit" plan.toml --data corpus --iterations 5 --checkpoints kept --elastic 4-2
  expect_in "$output" "--elastic: '4-2' is no number of nodes from MIN to MAX"
  expect_failure 2 "$submit" plan.toml --data corpus --iterations 5 --checkpoints kept --elastic 1-2 --when-stopped resubmit
  expect_in "$output" '--when-stopped resubmit does not go with --elastic'
  expect_failure 1 "$submit" plan.toml --data corpus --iterations 5 --checkpoints kept --elastic 3-4 --devices-per-node 2
  expect_in "$output" 'the plan is for 2 nodes, not for 3 to 4'
}

check 'grows when companions start, and ends with them' grows_when_companions_start_and_ends_with_them
check 'goes on without a node that crashes' goes_on_without_a_node_that_crashes
check 'replaces nodes that are excluded' replaces_nodes_that_are_excluded
check 'starts what was killed again' starts_what_was_killed_again
check 'ends when no rank can start' ends_when_no_rank_can_start
check 'goes back into the queue with a checkpoint' goes_back_into_the_queue_with_a_checkpoint
check 'checks newcomers before they join' checks_newcomers_before_they_join
check 'companions end when the job is cancelled' companions_end_when_the_job_is_cancelled
check 'refuses what does not go together' refuses_what_does_not_go_together
finish
