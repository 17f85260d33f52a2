#!/usr/bin/env bash
# sailor-submit --trainer on a live Slurm: programs of other frameworks run under a plan, with what it says as their
# arguments, every rank in its place and PyTorch's variables that say so; in one partition and as a heterogeneous job.
# A script stands in for the frameworks: it says what it was given, and its ranks meet as those of torch.distributed do.
#
# shellcheck disable=SC2317,SC2329  # tests are called by name
# shellcheck source-path=SCRIPTDIR source=common.bash
source "$(dirname "${BASH_SOURCE[0]}")/common.bash"
start_cluster --nodes gh:2:gh200:4:16:4:8000,a:1:a100:4:16:4:8000 --partitions 'normal=gh;a100=a;mixed=ALL' --hostnames auto

# plan GPU_OF_STAGE_0 GPU_OF_STAGE_1 [TENSOR_PARALLEL_OF_STAGE_1]: two pipelines of two stages of tiny-gpt
plan() {
  cat <<PLAN
schema_version = 1
micro_batch = 1
schedule = "1f1b"
optimizer_sharding = "zero1"
[job]
model = "tiny-gpt"
global_batch = 8
sequence_length = 64
precision = "bf16"
optimizer = "adamw"
[[pipelines]]
count = 2
micro_batches = 4
[[pipelines.stages]]
layers = [0, 3]
gpu = "$1"
tensor_parallel = 2
[[pipelines.stages]]
layers = [3, 6]
gpu = "$2"
tensor_parallel = ${3:-2}
PLAN
}
plan GH200-96 GH200-96 >"$work/even.toml"
plan GH200-96 A100-40 >"$work/mixed.toml"
plan GH200-96 GH200-96 4 >"$work/uneven.toml"
sed 's/zero1/zero2/' "$work/even.toml" >"$work/zero2.toml"

mkdir "$work/code"
cat >"$work/code/train.py" <<'PYTHON'
import json, os, socket, sys, time

env = os.environ
rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
port = int(env["MASTER_PORT"])
try:
    address = socket.gethostbyname(env["MASTER_ADDR"])
except OSError:
    address = "127.0.0.1"  # nodes of the test's cluster are names of one machine
lines = [f"{rank} {env['SLURMD_NODENAME']} gpu{env['CUDA_VISIBLE_DEVICES']} pipeline{env['SAILOR_PIPELINE']} "
         f"stage{env['SAILOR_STAGE']} node{env['GROUP_RANK']} {env['LOCAL_RANK']}/{env['LOCAL_WORLD_SIZE']}"]
# Rank 0 listens, and every other rank sends it a line.
if rank == 0:
    server = socket.create_server(("", port))
    for _ in range(size - 1):
        connection, _ = server.accept()
        with connection, connection.makefile() as stream:
            lines.append(stream.read())
    with open(os.path.join(env["RESULT"], "ranks"), "w") as file:
        file.write("\n".join(sorted(lines)) + "\n")
    with open(os.path.join(env["RESULT"], "said.json"), "w") as file:
        json.dump({"arguments": sys.argv[1:], "folder": os.getcwd(), "master": env["MASTER_ADDR"], "port": port,
                   "connections": env.get("CUDA_DEVICE_MAX_CONNECTIONS")}, file)
else:
    for attempt in range(600):
        try:
            connection = socket.create_connection((address, port), timeout=5)
            break
        except OSError:
            time.sleep(0.05)
    with connection:
        connection.sendall(lines[0].encode())
sys.exit(3 if "--fail" in sys.argv else 0)
PYTHON

# submit PLAN RUN OPTION... -- COMMAND...: from the folder of the code; Slurm 22.05 now and then hangs when a step over
# several components ends, so up to three times.
submit() {
  local plan=$1 run=$2 attempt id
  shift 2
  export RESULT=$work/$run
  for attempt in 1 2 3; do
    if id=$(cd code && timeout 100 "$bin_dir/sailor-submit" "../$plan" --run-directory "$work/$run" --wait \
      --memory-per-cpu 100 "$@" 2>"$work/said"); then echo "$id" >"$work/id"; return 0; fi
    grep -q 'exit code' "$work/said" && return 1
    scancel --quiet --user="$(id -un)"
  done
  cat "$work/said" "$work/$run"/slurm-*
  return 1
}
# said RUN EXPRESSION: what the program was given
said() { python3 -c "import json, sys; s = json.load(open('$1/said.json')); print($2)"; }
refused() { # STATUS TEXT SUBMIT_ARGUMENT...: and nothing is left behind
  local status=$1 text=$2
  shift 2
  (cd code && expect_failure "$status" "$bin_dir/sailor-submit" "$@" --run-directory "$work/refused" && expect_in "$output" "$text") || return 1
  [[ ! -e refused ]] || { echo 'files were left behind'; return 1; }
}

runs_megatron_in_the_places_of_the_plan() {
  submit even.toml megatron --trainer megatron -p normal -- python3 train.py --train-iters 100 --data-path 'my corpus' || return 1
  diff megatron/ranks - <<'RANKS' || return 1
0 gh1 gpu0 pipeline0 stage0 node0 0/4
1 gh1 gpu1 pipeline0 stage0 node0 0/4
2 gh1 gpu2 pipeline0 stage1 node0 0/4
3 gh1 gpu3 pipeline0 stage1 node0 0/4
4 gh2 gpu0 pipeline1 stage0 node1 0/4
5 gh2 gpu1 pipeline1 stage0 node1 0/4
6 gh2 gpu2 pipeline1 stage1 node1 0/4
7 gh2 gpu3 pipeline1 stage1 node1 0/4
RANKS
  expect_in "$(said megatron 's["arguments"]')" "['--train-iters', '100', '--data-path', 'my corpus', '--tensor-model-parallel-size', '2'," \
    "'--pipeline-model-parallel-size', '2'" "'--use-tp-pp-dp-mapping'" "'--use-distributed-optimizer'" \
    "'--micro-batch-size', '1'" "'--global-batch-size', '8'" "'--num-layers', '4'" || return 1
  [[ $(said megatron 's["folder"], s["master"], s["connections"]') == "$work/code gh1 1" ]] || { said megatron s; return 1; }
  [[ $(said megatron 's["port"]') == $((10000 + $(cat id) % 20000)) ]] || { said megatron s; return 1; }
  cmp even.toml megatron/plan.toml
}
runs_deepspeed_over_two_kinds_of_nodes() {
  # DeepSpeed numbers ranks by stage: stage 0 is on gh1, stage 1 on a1.
  submit mixed.toml deepspeed --trainer deepspeed -p mixed --torch-port 23456 -- python3 train.py --deepspeed || return 1
  expect_in "$(cat deepspeed/job.sbatch)" '#SBATCH hetjob' '--torch-ranks stage' || return 1
  sed 's/ node.*//' deepspeed/ranks | diff - <(cat <<'RANKS'
0 gh1 gpu0 pipeline0 stage0
1 gh1 gpu1 pipeline0 stage0
2 gh1 gpu2 pipeline1 stage0
3 gh1 gpu3 pipeline1 stage0
4 a1 gpu0 pipeline0 stage1
5 a1 gpu1 pipeline0 stage1
6 a1 gpu2 pipeline1 stage1
7 a1 gpu3 pipeline1 stage1
RANKS
  ) || return 1
  [[ $(said deepspeed 's["arguments"], s["port"]') == "['--deepspeed', '--deepspeed_config', '$work/deepspeed/ds_config.json'] 23456" ]] || { said deepspeed s; return 1; }
  [[ $(python3 -c 'import json; c = json.load(open("deepspeed/ds_config.json")); print(c["train_batch_size"], c["gradient_accumulation_steps"], c["zero_optimization"]["stage"])') == '8 4 1' ]]
}
runs_megatron_over_two_kinds_of_nodes() {
  submit mixed.toml both --trainer megatron -p mixed -- python3 train.py || return 1
  sed 's/ node.*//' both/ranks | diff - <(cat <<'RANKS'
0 gh1 gpu0 pipeline0 stage0
1 gh1 gpu1 pipeline0 stage0
2 a1 gpu0 pipeline0 stage1
3 a1 gpu1 pipeline0 stage1
4 gh1 gpu2 pipeline1 stage0
5 gh1 gpu3 pipeline1 stage0
6 a1 gpu2 pipeline1 stage1
7 a1 gpu3 pipeline1 stage1
RANKS
  )
}
gives_hugging_face_the_name_of_the_file() {
  submit even.toml named --trainer deepspeed -p normal -- python3 train.py --deepspeed=ds_config.json || return 1
  [[ $(said named 's["arguments"]') == "['--deepspeed=$work/named/ds_config.json']" ]] || { said named s; return 1; }
}
runs_nemo_and_torchtitan() {
  submit even.toml nemo --trainer nemo -p normal -- python3 train.py pretrain --factory llama3_8b trainer.max_steps=7 || return 1
  expect_in "$(said nemo 's["arguments"]')" "['pretrain', '--factory', 'llama3_8b', 'trainer.max_steps=7', 'trainer.strategy.tensor_model_parallel_size=2'," \
    "'trainer.num_nodes=8', 'trainer.devices=1']" || return 1
  submit even.toml torchtitan --trainer torchtitan -p normal -- python3 train.py --module llama3 --config llama3_8b || return 1
  expect_in "$(said torchtitan 's["arguments"]')" "['--module', 'llama3', '--config', 'llama3_8b', '--parallelism.module_fqns_per_model_part'," \
    "'--parallelism.pipeline_parallel_degree', '2'" "'activation-checkpoint:none']" || return 1
  expect_in "$(cat torchtitan/ranks)" '4 gh1 gpu2 pipeline0 stage1' '2 gh2 gpu0 pipeline1 stage0'
}
fails_as_its_program_does() {
  submit even.toml failing --trainer megatron -p normal -- python3 train.py --fail && { echo 'it succeeded'; return 1; }
  expect_in "$(cat said)" 'exit code 3'
}
trains_on_nodes_that_were_checked() {
  [[ -x $bin_dir/sailor-check && -n $mpi ]] || { echo 'sailor-check or its MPI is not there'; return 0; }
  submit even.toml checked --trainer megatron -p normal --check --mpi "$mpi" -- python3 train.py || return 1
  expect_in "$(cat checked/check-*.txt)" '2 nodes: ' ' 0 to exclude' || return 1
  (($(wc -l <checked/ranks) == 8))
}
refuses_what_cannot_run_before_it_queues() {
  refused 2 '--trainer megatron: Megatron-Core cannot run this: stage 0 of pipeline 0 has the tensor-parallel degree 2' \
    ../uneven.toml --trainer megatron -p normal -- python3 train.py || return 1
  refused 2 'optimizer_sharding zero2' ../zero2.toml --trainer nemo -p normal -- python3 train.py || return 1
  refused 2 "the plan decides '--micro-batch-size=2' of the command; leave it out, or make another plan" \
    ../even.toml --trainer megatron -p normal -- python3 train.py --micro-batch-size=2 || return 1
  refused 2 "the plan decides 'data.seq_length=9'" ../even.toml --trainer nemo -p normal -- python3 train.py data.seq_length=9 || return 1
  refused 2 'add --yes to the command' ../even.toml --trainer nemo -p normal -- nemo llm pretrain --factory llama3_8b || return 1
  refused 1 "there is no file 'trian.py'" ../even.toml --trainer megatron -p normal -- python3 trian.py || return 1
  refused 2 '--trainer megatron needs the program' ../even.toml --trainer megatron -p normal || return 1
  refused 2 "say which with --trainer" ../even.toml --data x --iterations 1 -- python3 train.py || return 1
  local option
  for option in --data=x --iterations=3 --checkpoints=kept --elastic=1-2 --train-option=--device=cpu --program=x --seed=1 --retries=2; do
    refused 2 "${option%%=*} is for sailor-train, not for --trainer megatron" ../even.toml --trainer megatron "$option" -- python3 train.py || return 1
  done
  refused 2 '--when-stopped requeue needs checkpoints of sailor-train' ../even.toml --trainer megatron --when-stopped requeue -- python3 train.py || return 1
  refused 2 'sailor-launch places the ranks' ../even.toml --trainer megatron --placer slurm -- python3 train.py || return 1
  refused 2 'takes one plan' ../even.toml ../mixed.toml --trainer megatron -- python3 train.py || return 1
  [[ -z $(squeue -h) ]] || { squeue; return 1; }
}

check 'runs Megatron-Core in the places of the plan' runs_megatron_in_the_places_of_the_plan
check 'runs Megatron-Core over two kinds of nodes' runs_megatron_over_two_kinds_of_nodes
check 'runs DeepSpeed over two kinds of nodes' runs_deepspeed_over_two_kinds_of_nodes
check "gives Hugging Face's scripts the name of DeepSpeed's file" gives_hugging_face_the_name_of_the_file
check 'runs NeMo and torchtitan' runs_nemo_and_torchtitan
check 'fails as its program does' fails_as_its_program_does
check 'trains on nodes that were checked' trains_on_nodes_that_were_checked
check 'refuses what cannot run before it queues' refuses_what_cannot_run_before_it_queues
finish
