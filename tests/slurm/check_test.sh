#!/usr/bin/env bash
# sailor-check on a live Slurm: what it says of good nodes and bad ones, with its exit status. The nodes' GPUs are
# pretended: by Slurm alone, or by a fake of NVIDIA's library too.
#
# shellcheck disable=SC2317,SC2329  # tests are called by name
# shellcheck source-path=SCRIPTDIR source=common.bash
source "$(dirname "${BASH_SOURCE[0]}")/common.bash"
export PATH="$bin_dir:$PATH"
start_cluster --nodes gh:2:gh200:4:16:4:8000,a:1:a100:4:16:4:8000 --partitions 'normal=gh;mixed=ALL' --hostnames auto
[[ -n $mpi ]] || { echo "skipped: this Slurm starts no MPI ranks"; exit 77; }

# Else the first rank to fail ends the others by a signal, and that is srun's exit status.
export SLURM_KILL_BAD_EXIT=0

# What other programs do to this machine is not looked at, and what is measured counts for nothing.
export SAILOR_TIME_BUDGET=0.2 SAILOR_SKIP=load,memory,space

cat >"$work/plan.toml" <<'PLAN'
schema_version = 1
micro_batch = 1
schedule = "1f1b"
[job]
model = "tiny-gpt"
global_batch = 2
sequence_length = 64
precision = "fp32"
optimizer = "adamw"
[[pipelines]]
count = 2
micro_batches = 1
[[pipelines.stages]]
layers = [0, 6]
gpu = "GH200-96"
PLAN
sed 's/^count = 2/count = 4/; s/^global_batch = 2/global_batch = 4/' "$work/plan.toml" >"$work/plan4.toml"
# gpus NODE FIELD...: what the fake library says of a node's four GPUs; the second has these last fields:
# temperature, clock, highest clock, throttle reasons, errors, pending repairs; MIG, the same after a reset, power limit,
# usual power limit
gpus() {
  local gpu last
  for gpu in 0 1 2 3; do
    last='27|1980|1980|1|0|0'
    ((gpu != 1)) || last=$2
    echo "NVIDIA GH200 120GB|GPU-$1-$gpu|0000000$gpu:01:00.0|97871|400|$last"
  done >"$work/gpus-$1"
}
gpus gh1 '27|1980|1980|1|0|0'
gpus gh2 '27|1980|1980|1|3|0'

# A fake of libfabric's program, which finds another network on gh2.
mkdir "$work/fabric"
cat >"$work/fabric/fi_info" <<'SCRIPT'
#!/bin/bash
provider=cxi
[[ $SLURMD_NODENAME != gh2 ]] || provider=udp
printf 'provider: %s\n    fabric: f\n    domain: %s0\n    version: 2.6\n' tcp hsn "$provider" "$provider"
SCRIPT
chmod +x "$work/fabric/fi_info"

# Gives each node the fake library with its GPUs.
cat >"$work/with-driver" <<SCRIPT
#!/bin/bash
export LD_LIBRARY_PATH=$tests_dir/nvml\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH} FAKE_NVML=$work/gpus-\$SLURMD_NODENAME
exec sailor-check "\$@"
SCRIPT
chmod +x "$work/with-driver"

# run STATUS OPTION-OF-SRUN... PROGRAM OPTION...: leaves what it prints in $output, messages in the file errors.
run() {
  local wanted=$1 status=0
  shift
  output=$(timeout 100 srun --mpi="$mpi" "$@" 2>errors) || status=$?
  ((status == wanted)) && return
  printf 'exit status %s, not %s: srun %s\n%s\n' "$status" "$wanted" "$*" "$output"
  cat errors
  exit 1
}

finds_healthy_nodes_fit() {
  run 0 -N2 --ntasks-per-node=2 sailor-check
  expect_in "$output" 'gh[1-2]  0-3    ok' '2 nodes: 2 fit, 0 to look at, 0 to exclude' 'matrix products             4 ranks' \
    'messages from node to node  2 links' 'all-reduce within a node    2 nodes' 'over all ranks' 'not checked: speed: the site file gives no slower_than_median'
  [[ $output != *--exclude* ]]
}
finds_one_rank_fit() {
  run 0 -n1 sailor-check
  expect_in "$output" '1 node: 1 fit' 'not checked: links: there is one rank only'
}
writes_json() {
  run 0 -N2 --ntasks-per-node=1 --gpus-per-node=1 sailor-check --format json --plan plan.toml
  python3 - "$output" <<'PYTHON'
import json, sys
said = json.loads(sys.argv[1])
assert said["outcome"] == "ok" and said["exclude"] == [] and said["job"] == [], said
assert [(node["node"], node["ranks"], node["findings"]) for node in said["nodes"]] == [("gh1", [0], []), ("gh2", [1], [])], said["nodes"]
for rank in said["ranks"]:
    assert rank["gres_type"] == "gh200" and rank["planned"]["gpu"] == "GH200-96" and rank["planned"]["on_gpu"], rank
    assert rank["memory_total_bytes"] > rank["memory_available_bytes"] > 0, rank
    assert rank["speed"]["flop_per_s"] > 0 and rank["speed"]["bytes_per_s"] > 0, rank
    names = {version["name"] for version in rank["versions"]}
    assert {"sailor", "MPI", "kernel"} <= names, names
sends = {(link["from_rank"], link["to_rank"]) for link in said["links"] if link["kind"] == "send"}
assert sends == {(0, 1), (1, 0)}, said["links"]
assert all(link["bandwidth_bytes_per_s"] > 0 for link in said["links"]), said["links"]
assert any(row["check"] == "gpu-type" and "slurm.conf only (gpu:gh200)" in row["why"] for row in said["not_checked"]), said
PYTHON
}
names_the_node_of_another_type_than_the_plans() {
  run 5 -p mixed -w gh1,a1 -N2 --ntasks-per-node=1 --gpus-per-node=1 sailor-check --plan plan.toml
  expect_in "$output" 'fail     gpu-type  rank' 'needs GH200-96 by the plan, and has A100-40 by slurm.conf (gpu:a100)'
  [[ $(tail -1 <<<"$output") == --exclude=a1 ]] || { echo "$output"; return 1; }
}
refuses_another_number_of_ranks() {
  run 5 -N2 --ntasks-per-node=2 sailor-check --plan plan.toml
  expect_in "$output" '(job)' 'fail     plan' 'the plan has 2 ranks but the job step has 4 tasks; start it with srun --nodes=1 --ntasks-per-node=2'
}
finds_ranks_that_share_a_gpu() {
  run 5 -w gh1 -N1 -n2 --gpus=1 sailor-check
  expect_in "$output" 'fail     gpu-sharing  ranks 0-1 share 1 GPU of gh1 (CUDA_VISIBLE_DEVICES=0)' '-> give the step a GPU for each rank (srun --gpus-per-node=N)'
  run 0 -N1 -n2 --gpus-per-task=1 sailor-check
}
finds_a_sick_gpu() {
  # Rank 1 of each node has its GPU 1.
  run 5 -N2 --ntasks-per-node=2 --gpus-per-node=4 ./with-driver
  expect_in "$output" 'gh2   2-3    fail     ecc    rank 3 (GPU-gh2-1): 3 memory errors that could not be corrected' 'gh1   0-1    ok'
  [[ $(tail -1 <<<"$output") == --exclude=gh2 ]] || { echo "$output"; return 1; }
  # What --exclude leaves.
  run 0 --exclude=gh2 -N1 -n2 --gpus-per-node=4 ./with-driver
  # By its UUID a GPU is seen to be shared whatever numbers say.
  run 5 -w gh1 -N1 -n2 --gpus-per-node=1 ./with-driver
  expect_in "$output" 'fail     gpu-sharing  ranks 0-1 share GPU-gh1-0 of gh1'
}
finds_ranks_that_are_kept_from_the_other_gpus() {
  # Each task with the GPUs that a control group of its own would leave it.
  cat >confined <<SCRIPT
#!/bin/bash
sed -n "\$((SLURM_LOCALID + 1))p" $work/gpus-\$SLURMD_NODENAME >$work/gpus-\$SLURMD_NODENAME-\$SLURM_LOCALID
export LD_LIBRARY_PATH=$tests_dir/nvml\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH} FAKE_NVML=$work/gpus-\$SLURMD_NODENAME-\$SLURM_LOCALID
exec sailor-check "\$@"
SCRIPT
  chmod +x confined
  run 4 -w gh1 -N1 -n2 --gpus-per-task=1 ./confined
  expect_in "$output" 'warn     gpu-visibility  ranks 0-1 may each use only 1 of the ' 'that the job has on gh1: NCCL cannot use NVLink between them' '-> start them without --gpus-per-task' || return 1
  run 0 -w gh1 -N1 -n2 --gpus-per-node=2 ./with-driver
}
finds_a_divided_gpu() {
  gpus gh2 '27|1980|1980|1|0|0|1|1|700000|700000'
  run 5 -N2 --ntasks-per-node=2 --gpus-per-node=4 ./with-driver --plan plan4.toml
  expect_in "$output" 'gh2   2-3    fail     mig    rank 3 (GPU-gh2-1): is divided into instances (MIG)' '--exclude=gh2'
  gpus gh1 '27|1980|1980|1|0|0|0|0|700000|700000'
  gpus gh2 '27|1980|1980|1|0|0|0|0|400000|700000'
  run 4 -w gh1,gh2 -N2 --ntasks-per-node=2 --gpus-per-node=4 ./with-driver
  expect_in "$output" 'rank 3 (GPU-gh2-1): may draw 400 W, GPUs alike 700 W'
  gpus gh1 '27|1980|1980|1|0|0'
  run 0 -N1 -w gh1 -n2 --gpus-per-node=4 ./with-driver
  expect_in "$output" 'not checked: power: the driver does not tell the limits'
}
finds_a_node_without_the_sites_fabric() {
  printf 'schema_version = 1\nname = "ours"\n[check]\nfabric_provider = "cxi"\n' >fabric.toml
  PATH="$work/fabric:$PATH" run 5 -N2 --ntasks-per-node=2 sailor-check --site ./fabric.toml
  expect_in "$output" 'gh2   2-3    fail     fabric  libfabric has no provider cxi, which the site expects (it has: tcp, udp)' \
    'gh1   0-1    ok'
  [[ $(tail -1 <<<"$output") == --exclude=gh2 ]] || { echo "$output"; return 1; }
  # Without a site that expects one, which of the two is right is not known.
  PATH="$work/fabric:$PATH" run 4 -N2 -n2 sailor-check
  expect_in "$output" 'libfabric has not the same providers everywhere: cxi, tcp on gh1; tcp, udp on gh2'
  PATH="$work/fabric:$PATH" run 0 -N2 -n2 sailor-check --skip load,memory,space,fabric
  # One that hangs is not waited for longer than the other ranks wait in MPI's start.
  mkdir -p hanging
  printf '#!/bin/bash\nsleep 100\n' >hanging/fi_info
  chmod +x hanging/fi_info
  PATH="$PWD/hanging:$PATH" run 0 -N2 -n2 sailor-check --timeout 6
  expect_in "$output" 'not checked: fabric: fi_info: no answer within 3 s'
  run 0 -N2 -n2 sailor-check --site ./fabric.toml
  expect_in "$output" 'not checked: fabric: fi_info is not in PATH'
}
writes_to_a_folder_and_leaves_nothing() {
  mkdir -p scratch/gh1
  run 0 -N2 -n4 sailor-check --write-to scratch/gh1 --write-size 1000000
  expect_in "$output" 'files, stored (fsync)       2 nodes'
  run 0 -N2 -n2 sailor-check
  expect_in "$output" 'not checked: writing: no folder is named (--write-to DIR)'
  # A folder that only one node has.
  # shellcheck disable=SC2016  # of the task
  run 5 -N2 -n2 bash -c 'exec sailor-check --write-to "scratch/$SLURMD_NODENAME" --write-size 1000000'
  expect_in "$output" 'gh2   1      fail     writing  cannot write to ' 'scratch/gh2'"'"': No such file or directory'
  [[ $(tail -1 <<<"$output") == --exclude=gh2 ]] || { echo "$output"; return 1; }
  run 5 -n1 sailor-check --write-to scratch/$'c\nd'
  expect_in "$output" "scratch/c d': No such file or directory"
  # More than any node writes.
  printf 'schema_version = 1\nname = "ours"\n[check]\nwrite_per_node_bytes_per_s = 1e15\n' >fast.toml
  run 5 -N2 -n2 sailor-check --write-to scratch/gh1 --write-size 1000000 --site ./fast.toml
  expect_in "$output" '(job)' 'fail     writing  nodes write to ' 'the site expects at least'
  [[ -z $(find scratch -type f) ]] || { find scratch; return 1; }
}
compares_the_environment_with_the_sites() {
  cat >mine.toml <<'SITE'
schema_version = 1
name = "mine"
title = "of this test"
cluster_names = []
[launch]
[launch.variables]
SAILOR_TEST_WANTED = "1"
SITE
  run 4 -n2 sailor-check --site ./mine.toml
  expect_in "$output" "warn     variables  SAILOR_TEST_WANTED is not set, the site wants '1'"
  run 5 -n2 sailor-check --site ./mine.toml --strict
  SAILOR_TEST_WANTED=1 run 0 -n2 sailor-check --site ./mine.toml --strict
  SAILOR_SKIP=load,memory,space,variables run 0 -n2 sailor-check --site ./mine.toml --strict
}
tells_mistakes_once() {
  run 2 -n2 sailor-check --skip nonsense
  [[ $(grep -c 'nonsense' errors) == 1 ]] || { cat errors; return 1; }
  run 1 -n2 sailor-check --plan not-there.toml
  [[ $(grep -c 'not-there.toml' errors) == 1 ]] || { cat errors; return 1; }
}

# Tells its process: to look for it takes longer, on a busy machine, than the ranks work.
cat >"$work/known" <<'SCRIPT'
#!/bin/bash
echo $$ >"rank-$SLURM_PROCID.new" && mv "rank-$SLURM_PROCID.new" "rank-$SLURM_PROCID"
exec sailor-check "$@"
SCRIPT
chmod +x "$work/known"
# meanwhile SIGNAL: sends it to rank 1 while all ranks work; the rank has to be named then
meanwhile() {
  local attempt process
  for attempt in 1 2 3; do
    : >errors
    rm -f rank-1
    # Their work would take ten seconds.
    srun --mpi="$mpi" -K0 -N2 --ntasks-per-node=1 ./known --verbose --timeout 5 --time-budget 30 \
      --skip links,load >out 2>errors &
    process=$!
    eventually grep -q 'multiplying matrices\|Segmentation fault' errors
    if grep -q 'Segmentation fault' errors; then
      wait "$process"
      continue
    fi
    kill "-$1" "$(<rank-1)" || return 1
    if wait "$process"; then
      echo "it succeeded"
      return 1
    fi
    # Open MPI 5 ends the other ranks at once; srun then is the one to name it.
    if [[ $1 == KILL && $(<errors) == *'gh2: task 1: Killed'*'gh1: task 0: Exited with exit code 14'* ]]; then return; fi
    expect_in "$(cat errors)" 'no sign of life from rank 1 (gh2) for ' 'died, or hangs'
    [[ $(cat out) == --exclude=gh2 ]] || { cat out; return 1; }
    return
  done
  return 1
}
names_a_rank_that_hangs() { meanwhile STOP; }
names_a_rank_that_died() { meanwhile KILL; }

check 'finds healthy nodes fit' finds_healthy_nodes_fit
check 'finds one rank fit' finds_one_rank_fit
check 'writes JSON' writes_json
check "names the node of another type than the plan's" names_the_node_of_another_type_than_the_plans
check 'refuses another number of ranks' refuses_another_number_of_ranks
check 'finds ranks that share a GPU' finds_ranks_that_share_a_gpu
check 'finds a sick GPU' finds_a_sick_gpu
check 'finds ranks that are kept from the other GPUs' finds_ranks_that_are_kept_from_the_other_gpus
check 'finds a divided GPU' finds_a_divided_gpu
check "finds a node without the site's fabric" finds_a_node_without_the_sites_fabric
check 'writes to a folder and leaves nothing' writes_to_a_folder_and_leaves_nothing
check "compares the environment with the site's" compares_the_environment_with_the_sites
check 'tells mistakes once' tells_mistakes_once
check 'names a rank that hangs' names_a_rank_that_hangs
check 'names a rank that died' names_a_rank_that_died
finish
