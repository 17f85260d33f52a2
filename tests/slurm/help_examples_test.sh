#!/bin/bash
# Every example that a program's --help shows works as it stands, in a folder with the files it names and on a cluster
# with a partition "normal".
#
# shellcheck disable=SC2317  # functions are called by name
# shellcheck source-path=SCRIPTDIR source=common.bash
source "$(dirname "${BASH_SOURCE[0]}")/common.bash"
PATH="$bin_dir:$PATH"
# Eight nodes gh1 to gh8 of two cores, 16 GiB in all.
start_cluster --nodes gh:8:-:0:2:1:2000 --partitions normal=ALL

# Examples measure and train as briefly as the environment can ask for.
export SAILOR_TIME_BUDGET=0.5 SAILOR_MAX_MESSAGE=65536 SAILOR_SAMPLES=2 SAILOR_WARM_UP=0 SAILOR_BLOCKS=1
# sailor-check warns of what else this machine does.
export SAILOR_SKIP=load,memory,space
export OMPI_MCA_rmaps_base_oversubscribe=1
export SAILOR_SAILOR_PLAN=$source_dir/tests/fakes/sailor_plan.py

# examples PROGRAM [COMMAND]: the commands under "Examples:", one a line.
examples() { "$@" --help | sed -n '/^Examples:/,/^$/p' | sed -n 's/^  \([^ #]\)/\1/p'; }

# prepare: the files that examples name, in the folder of the test.
prepare() {
  cp "$source_dir/README.md" .
  mkdir texts && cp README.md texts/readme.txt
  cp "$source_dir/profiles/models/tiny-gpt.toml" my-model.toml
  sed -i 's/^name = .*/name = "my-model"/' my-model.toml
  sailor-data bytes --output corpus README.md
  # A tokenizer, and the same in the two files of GPT-2.
  cp "$source_dir/tests/data/bpe_tokenizer.json" tokenizer.json
  python3 - <<'PYTHON'
import json
with open("tokenizer.json") as file:
    model = json.load(file)["model"]
with open("vocab.json", "w") as file:
    json.dump(model["vocab"], file)
with open("merges.txt", "w") as file:
    file.write("#version: 0.2\n" + "".join(" ".join(pair) + "\n" for pair in model["merges"]))
with open("documents.jsonl", "w") as file:
    file.write('{"text": "one document"}\n{"text": "and another one"}\n')
PYTHON
  # A program of PyTorch finds what torch.distributed's env:// takes.
  cat >pretrain_gpt.py <<'PYTHON'
import os
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
assert size == 2 and rank in (0, 1) and os.environ["MASTER_ADDR"] and os.environ["MASTER_PORT"] == "29500"
assert 0 <= int(os.environ["LOCAL_RANK"]) < int(os.environ["LOCAL_WORLD_SIZE"])
PYTHON
  # What PyTorch's profiler and Megatron-LM record of a training.
  python3 - <<'PYTHON'
import json
events = []
def add(category, name, begin, duration, **arguments):
    events.append({"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": begin, "dur": duration,
                   "args": arguments})
for step in range(2):
    start, number = 20000 * step, 100 * (step + 1)
    add("user_annotation", f"ProfilerStep#{step}", start, 19000)
    passes = [("aten::embedding", 100)] + [("aten::linear", 900)] * 4 + [("aten::cross_entropy_loss", 500)]
    for i, (name, duration) in enumerate(passes):
        if 1 <= i <= 4:
            add("user_annotation", f"layers.{i - 1}", start + 1000 * i, 950)
        add("cpu_op", name, start + 1000 * i + 10, duration, **{"Sequence number": number + i})
    for i, (_, duration) in reversed(list(enumerate(passes))):
        add("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", start + 8000 + 2000 * (5 - i),
            1.9 * duration, **{"Sequence number": number + i})
with open("trace.json", "w") as file:
    json.dump({"schemaVersion": 1, "deviceProperties": [], "traceEvents": events}, file)
arguments = {"data_parallel_size": 1, "global_batch_size": 16, "hidden_size": 128, "micro_batch_size": 2, "num_layers": 4,
             "seq_length": 64, "bf16": True}
with open("train.log", "w") as file:
    file.writelines(f"  {name} {'.' * (48 - len(name))} {value}\n" for name, value in arguments.items())
    for _ in range(3):
        file.write("(min, max) time across ranks (ms):\n")
        file.writelines(f"    {name} {'.' * 32}: ({low}, {high})\n" for name, low, high in
                        (("forward-compute", 40.0, 41.0), ("backward-compute", 80.0, 82.0), ("optimizer", 3.0, 5.0)))
PYTHON
  cat >config.json <<'JSON'
{"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12}
JSON
  OMPI_MCA_btl=self,vader mpirun -n 2 sailor-profile layers --model tiny-gpt --micro-batches 1,2,4 --store store
  srun -N 2 -n 2 sailor-profile links --store store
  srun -N 1 -n 2 sailor-profile links --store store
  # A session with the id that examples name.
  local file id
  file=$(find store -name '*.h5' | head -1)
  id=$(basename "$file" .h5)
  sailor-profile export "$file" | sed "s/$id/20260102T030405Z-nid001-77-0badcafe/" >session.toml
  sailor-profile import session.toml --output store/20260102T030405Z-nid001-77-0badcafe.h5
  sailor-plan -p normal --model tiny-gpt --global-batch 16 --profile store --save-cluster cluster.toml
  cat >two_ranks.toml <<'PLAN'
schema_version = 1
micro_batch = 2
schedule = "1f1b"
[job]
model = "tiny-gpt"
global_batch = 4
sequence_length = 128
precision = "fp32"
optimizer = "adamw"
[[pipelines]]
count = 2
micro_batches = 1
[[pipelines.stages]]
layers = [0, 6]
gpu = "cpu"
PLAN
  cp two_ranks.toml plan.toml
  srun -n 2 sailor-train plan.toml --data corpus --iterations 5 --run-file run.h5
  # The experiments of sailor-sweep, with a planner that only pretends.
  mkdir experiments && cp "$source_dir"/experiments/{fig7,scale}.toml experiments/
  # A model as transformers saves it, with weights of zero.
  mkdir gpt2-tiny
  python3 - <<'PYTHON'
import json, struct
blocks, hidden, inner = 4, 128, 512
shapes = {"wte.weight": (256, hidden), "wpe.weight": (128, hidden), "ln_f.weight": (hidden,), "ln_f.bias": (hidden,)}
for block in range(blocks):
    for name, rows, columns in (("attn.c_attn", hidden, 3 * hidden), ("attn.c_proj", hidden, hidden),
                                ("mlp.c_fc", hidden, inner), ("mlp.c_proj", inner, hidden)):
        shapes[f"h.{block}.{name}.weight"] = (rows, columns)
        shapes[f"h.{block}.{name}.bias"] = (columns,)
    for name in "ln_1.weight", "ln_1.bias", "ln_2.weight", "ln_2.bias":
        shapes[f"h.{block}.{name}"] = (hidden,)
header, at = {}, 0
for name, shape in shapes.items():
    size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
    header["transformer." + name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
    at += size
text = json.dumps(header).encode()
with open("gpt2-tiny/model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text + bytes(at))
with open("gpt2-tiny/config.json", "w") as file:
    json.dump({"model_type": "gpt2", "n_embd": hidden, "n_layer": blocks, "n_head": 4, "vocab_size": 256,
               "n_positions": 128}, file)
PYTHON
  sailor-checkpoint import gpt2-tiny --model tiny-gpt --output checkpoints/iteration-00000000
  cat >cases.toml <<'CASES'
schema_version = 1
title = "one run"
source = "this test"
framework = "sailor"
[[cases]]
name = "two ranks"
run = "run.h5"
CASES
  cat >original.json <<'PLAN'
{"pipeline_list": [{"num_stages": 2, "dp": [1, 1],
  "layers_per_stage": [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25]],
  "tmp_per_stage": [[[[["GH-96", 4, "us-central1-a"]], 4]], [[[["GH-96", 4, "us-central1-a"]], 4]]]}],
 "mbs": 4, "gbs": 32}
PLAN
}
check "the files that examples name can be made" prepare

# Works as it stands, or with a tenth of the iterations and less time to measure in. What it has queued is cancelled.
run_example() {
  local status=0
  example=${example//--iterations 100/--iterations 10}
  example=${example//--time-budget 30/--time-budget 0.5}
  cp two_ranks.toml plan.toml
  rm -rf run-plan copy start exported
  cp -r store copy
  bash -euc "${example//--mpi=pmix/--mpi=${mpi:-pmix}}" || status=$?
  [[ $example != sailor-s[uw]* ]] || scancel --quiet --user "$(id -un)"
  return "$status"
}
for words in 'sailor models' 'sailor gpus' sailor-data 'sailor-data bytes' 'sailor-data bpe' sailor-checkpoint 'sailor-checkpoint list' \
  'sailor-checkpoint verify' 'sailor-checkpoint export' 'sailor-checkpoint import' 'sailor-profile layers' 'sailor-profile links' 'sailor-profile show' 'sailor-profile check' 'sailor-profile diff' 'sailor-profile estimate' 'sailor-profile model' \
  'sailor-profile list' 'sailor-profile merge' 'sailor-profile remove' 'sailor-profile export' \
  'sailor-profile import' sailor-plan \
  sailor-simulate sailor-report sailor-submit sailor-sweep sailor-train sailor-check sailor-launch; do
  # shellcheck disable=SC2086  # a program and perhaps its command
  mapfile -t commands < <(examples $words)
  enough() { ((${#commands[@]} >= 1)); }
  check "$words --help has examples" enough
  for example in "${commands[@]}"; do check "$example" run_example; done
done
finish
