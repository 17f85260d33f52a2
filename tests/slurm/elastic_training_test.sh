#!/usr/bin/env bash
# An elastic training on a live Slurm, with sailor-controller and sailor-train: a rank is killed, a node crashes, a
# companion job joins, the job is stopped by a signal and requeues itself, and the training ends with the losses of one
# that nobody disturbed; a node that is drained, and a companion whose time is up, are left without a loss.
#
# shellcheck disable=SC2317,SC2329  # tests are called by name
# shellcheck disable=SC2015  # expect_in ends a test that fails
# shellcheck source-path=SCRIPTDIR source=common.bash
source "$(dirname "${BASH_SOURCE[0]}")/common.bash"

# A node that crashes is DOWN soon.
start_cluster --slurmd-timeout 3 --message-timeout 2 --nodes x:3:-:0:2:1:4000 --partitions 'all=ALL MaxTime=60' --mpi none

cat >"$work/plan.toml" <<'PLAN'
schema_version = 1
micro_batch = 1
schedule = "1f1b"
[job]
model = "tiny-gpt"
global_batch = 8
sequence_length = 64
precision = "fp32"
optimizer = "adamw"
[[pipelines]]
count = 2
micro_batches = 4
[[pipelines.stages]]
layers = [0, 3]
gpu = "cpu"
[[pipelines.stages]]
layers = [3, 6]
gpu = "cpu"
PLAN
seq 20000 >"$work/text"
"$bin_dir/sailor-data" bytes --output "$work/numbers" "$work/text" || exit 1

# How many iterations a job does depends on RUN.iterations when it starts: at first more than any machine does while all
# that is to happen happens, and after that, when it was stopped and requeued, some more than it has done.
endless=654321
# elastic RUN: an endless training on one or two nodes; its id in $id. The queue is looked at often, so that the test need
# not be long.
# The learning rate is low, so that rounding grows little in the many iterations that fast machines do. Its products are
# slow, so that it leaves the cores to other tests.
elastic() {
  "$bin_dir/sailor-submit" plan.toml --run-directory "$1" --data numbers --iterations "$endless" -t 10 --checkpoints "$1/kept" \
    --devices-per-node 2 --memory-per-cpu 300 --train-option=--warm-up-iterations=10 --learning-rate 0.00005 --elastic 1-2 --export "$1.sbatch" || exit 1
  echo "$endless" >"$1.iterations"
  sed -i "s/ period=30$/ period=3/; s|$endless|\"\$(<$work/$1.iterations)\"|" "$1.sbatch"
  id=$(LD_PRELOAD=$tests_dir/slow_blas.so SAILOR_TEST_PRODUCT_US=400 sbatch --parsable "$1.sbatch") || exit 1
  log=$work/$1/slurm-$id.out
  before_long 20 test -e "$log"
}
# Each iteration once, as it was done last.
losses() { sed -n 's/^ *\([0-9][0-9]*\)  *\([0-9.][0-9.]*\)  *[0-9.].*/\1 \2/p' "$1" | sort -n -k1,1 -s | awk '{ loss[$1] = $2 } END { for (i in loss) print i, loss[i] }' | sort -n; }
state() { scontrol -o show job "$id" | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p'; }
all_idle() { [[ $(sinfo -h -t idle -o %D) == 3 ]]; }
queue_is_empty() { [[ -z $(squeue -h) ]]; }
# before_long SECONDS COMMAND...: a busy machine may take three times as long.
before_long() {
  local attempts=$(($1 * 15)) attempt
  shift
  for ((attempt = 0; attempt < attempts; ++attempt)); do
    if "$@"; then return 0; fi
    sleep 0.2
  done
  echo "never succeeded: $*"
  grep '^#' "$log"
  tail -n 10 "$log"
  if [[ -e watched ]]; then cat watched watch-errors; fi
  sinfo --Node --long
  squeue
  exit 1
}
trains_at() { [[ $(losses "$log" | wc -l) -ge $1 ]]; } # ITERATIONS

joined_again() { [[ $(grep -c 'on x3 has joined' "$log") -gt 2 ]]; }

has_ended() { [[ $(state) != @(PENDING|CONFIGURING|RUNNING|COMPLETING|REQUEUED) ]]; }
a_little_more() { echo $(($(losses "$log" | awk 'END { print $1 }') + 50)) >"$1.iterations"; } # RUN
# Stops the job of RUN as Slurm does before a time limit. It goes on, and ends a little later.
stop_and_end() { # RUN
  a_little_more "$1"
  scancel --signal=USR2 "$id" || return 1
  before_long 60 grep -q '^# ended with status 75' "$log"
  a_little_more "$1" # the job waits in the queue, and reads this when it starts again
  before_long 60 grep -q '^# epoch 1: .* from iteration [1-9]' "$log"
  before_long 180 has_ended
  expect_in "$(state)" COMPLETED || return 1
  before_long 30 queue_is_empty
}

trains_on_when_ranks_and_nodes_are_lost_and_come() {
  local rank iterations companion
  elastic wild
  before_long 60 trains_at 10
  rank=$(pgrep -f "sailor-train $work/wild/plan.toml" | tail -n 1) || return 1
  kill -KILL "$rank"
  before_long 30 grep -qE 'go(es)? on at iteration' "$log"
  "$testcluster" crash-node "$work/c" x2 || return 1
  before_long 60 grep -q 'companion job .* is queued: 1 of 2 nodes are missing; without x2' "$log"
  before_long 30 grep -q 'on x3 has joined' "$log"
  before_long 60 grep -q '^# epoch .* go on .*(planned change: .* more' "$log"
  # Slurm sends this before a job's time limit. The training leaves the companion, and another takes its place.
  companion=$(squeue -h -t RUNNING -n "$(squeue -h -j "$id" -o %j)-$id" -o %i)
  scancel --signal=USR2 --batch "$companion" || return 1
  before_long 60 grep -q 'a process on x3, which is excluded, has left' "$log"
  expect_in "$(grep -m 1 '(planned change: x3 is excluded; ' "$log")" 'from memory' 'excluded; 0 iterations again' || return 1
  before_long 60 joined_again
  stop_and_end wild || return 1
  expect_in "$(cat "$log")" '# node x2 was left out: it failed in the job of the training' 'lost a rank on x2: it ' || return 1
  losses "$log" >wild.txt
  iterations=$(<wild.iterations)

  # One rank, that nobody disturbs.
  sed -e '/^\[\[pipelines/,$d' plan.toml >one.toml
  printf '[[pipelines]]\ncount = 1\nmicro_batches = 8\n[[pipelines.stages]]\nlayers = [0, 6]\ngpu = "cpu"\n' >>one.toml
  "$bin_dir/sailor-train" one.toml --data numbers --iterations "$iterations" --warm-up-iterations 10 \
    --learning-rate 0.00005 --log-every 1 >calm.log || return 1
  "$testcluster" start-node "$work/c" x2
  before_long 30 all_idle
  losses calm.log >calm.txt
  # To rounding: other numbers of ranks add in another order. A rank that is killed between an iteration and its line takes
  # the line along: here and when the node crashes.
  awk -v n="$iterations" '
    NR == FNR { calm[$1] = $2; next }
    { d = calm[$1] ? $2 / calm[$1] - 1 : 1; if (d < 0) d = -d; if (d > 0.002) { print "differs: " $0 ", not " calm[$1]; bad = 1 } ++seen }
    END {
      if (length(calm) != n) { print length(calm) " iterations, not " n; bad = 1 }
      if (seen < n - 2) { print "only " seen " lines of " n " iterations"; bad = 1 }
      exit bad
    }' calm.txt wild.txt
}

leaves_a_node_that_is_drained() {
  local watcher node status=0
  "$bin_dir/sailor-profile" layers --model tiny-gpt --micro-batches 1,2 --sequence-length 64 --time-budget 1 --store store >/dev/null || return 1
  # Links are not measured, but stated.
  { cat "$source_dir/slurm/sites/testcluster.toml" && printf '[check]\nsend_between_nodes_bytes_per_s = 1e9\nsend_within_node_bytes_per_s = 1e9\n'; } >site.toml
  elastic drained
  before_long 30 trains_at 5
  node=$(scontrol show hostnames "$(squeue -h -j "$id" -o %N)" | tail -n 1)
  "$bin_dir/sailor-plan" -p all --model tiny-gpt --global-batch 8 --sequence-length 64 --profile store --framework sailor --site ./site.toml \
    --watch --interval 1 --elastic drained/elastic >watched 2>watch-errors &
  watcher=$!
  before_long 20 test -s watched
  scontrol update "nodename=$node" state=drain reason='leaking pump'
  before_long 20 grep -q "$node went (drained: leaking pump).*; the training is to leave $node" watched
  before_long 30 grep -q 'planned change: ' "$log"
  before_long 30 grep -q "a process on $node, which is excluded, has left" "$log"
  [[ $(<drained/elastic/exclude) == "$node" ]] || return 1
  scontrol update "nodename=$node" state=resume
  before_long 20 grep -q "the training may use $node again" watched
  before_long 30 bash -c "sed '1,/a process on $node, which is excluded, has left/d' '$log' | grep -q 'on $node has joined'"
  stop_and_end drained || return 1
  # The training is over, and so is watching it.
  wait "$watcher" || status=$?
  expect_in "$(cat watch-errors)" "the training of 'drained/elastic' has ended" || return 1
  ((status == 0))
}

# Nodes of CPUs have the memory that Slurm says, and without it what their ranks say: until 2026-11 no plan fitted into it.
# scancel ends the training: the job requeued itself, as the ranks end with a checkpoint.
plans_anew_with_times_and_ends_when_it_is_cancelled() {
  local job status=0 rank
  "$bin_dir/sailor-plan" -p all --model tiny-gpt --global-batch 8 --sequence-length 64 --profile store --framework sailor --site ./site.toml \
    --pin data_parallel=2,pipeline_parallel=2 -o anew.toml >/dev/null || return 1
  submit_anew() {
    "$bin_dir/sailor-submit" anew.toml --run-directory anew --data numbers --iterations "$endless" -t 10 --checkpoints anew/kept --devices-per-node 2 \
      --memory-per-cpu 300 --learning-rate 0.0002 --site ./site.toml --elastic "$1" "${@:2}"
  }
  job=$(submit_anew 2-2 2>submit-errors) || { cat submit-errors; return 1; }
  id=$job log=$work/anew/slurm-$job.out
  before_long 60 test -e "$log"
  before_long 60 trains_at 5
  expect_in "$(<anew/job.sbatch)" "--cluster=$work/anew/cluster.toml" '--profile=' || return 1
  # Its run directory is not for another training.
  submit_anew 1-2 >again 2>again-errors || status=$?
  expect_in "$(<again-errors)" "is that of the elastic training of job $job, which is RUNNING" "scancel $job" || return 1
  ((status == 1)) || return 1
  rank=$(pgrep -f "sailor-train $work/anew/plan.toml" | tail -n 1) || return 1
  kill -KILL "$rank"
  before_long 30 grep -qE 'go(es)? on at iteration' "$log"
  before_long 30 grep -q 'with 4 ranks\|4 ranks go on' "$log"
  ! grep 'no plan for' "$log" || return 1
  scancel "$id"
  before_long 60 has_ended
  before_long 60 queue_is_empty
  sleep 3 # it would be back by now
  queue_is_empty || return 1
  expect_in "$(state)" CANCELLED || return 1
  status=0
  submit_anew 1-2 --dry-run >/dev/null 2>&1 || status=$?
  ((status == 0))
}

check 'trains on when ranks and nodes are lost, and come' trains_on_when_ranks_and_nodes_are_lost_and_come
check 'leaves a node that is drained' leaves_a_node_that_is_drained
check 'plans anew with times, and ends when it is cancelled' plans_anew_with_times_and_ends_when_it_is_cancelled
finish
