#!/bin/bash
# tests/gpu/run.sh: checks and measures the GPU code on a machine with one GPU.
# shellcheck disable=SC2317  # functions are called by name
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  cat <<'TEXT'
tests/gpu/run.sh: checks and measures Sailor's GPU code on a machine with one GPU

Usage: tests/gpu/run.sh [--results FOLDER] [--headers FOLDER] [--build FOLDER] [--programs FOLDER] [--gpu TYPE] [PART...]
       tests/gpu/run.sh --collect-headers FOLDER

Needs CMake, a C++20 compiler and the CUDA toolkit, and the headers of fmt, spdlog, tl-expected, toml++ and nlohmann-json;
for attention on tensor cores cuDNN and the headers of its C++ frontend, too; for part nccl NCCL.
Each part ends within ten minutes and writes FOLDER/PART.txt before the next one begins:

  kernels     every operation against the CPU, all types
  training    small models of every kind against the CPU
  nccl        processes that share the GPU train over NCCL, in all divisions, and after one is killed
  rates       TFLOP/s and TB/s of every operation at the shapes of the models
  models      iterations of whole models: tokens/s, model FLOP utilisation, memory, and where the time goes: the share of each
              operation beside what the GPU reaches
  torch       the same models in PyTorch, if python3 can import it
  sanitizer   every operation under compute-sanitizer (memcheck, racecheck, synccheck); of the last two without cuDNN's own
              kernels, whose asynchronous barriers they take for errors
  programs    with --programs: sailor-check, a profile of four models (RESULTS/store), their training by sailor-train, what
              sailor-simulate predicts of it by that profile, and whether a checkpoint goes on with the same losses

  --results FOLDER  where the results go (default: ./gpu-results)
  --headers FOLDER  where the headers are, when not in the compiler's path
  --collect-headers FOLDER
                    copy this machine's headers to FOLDER, to take them to one with a GPU that has none, and end
  --build FOLDER    where to build (default: a folder beside the results)
  --programs FOLDER the folder with sailor-train and the other programs, built with CUDA, for part programs (which is left
                    out otherwise)
  --gpu TYPE        the type of the GPU for part programs, as the catalogue names it (default: H200-141)
  -h, --help        this text

Exit status: 0 all passed, 1 something failed (it says what), 3 no usable GPU.
TEXT
}

die() {
  printf 'run.sh: error: %s\n' "$*" >&2
  exit 2
}

all=(kernels training nccl rates models programs torch sanitizer)
results=$PWD/gpu-results headers='' build='' programs='' gpu=H200-141 parts=()
# collect_headers FOLDER: into FOLDER/include, since headers of cuDNN's frontend name that folder.
collect_headers() {
  local name from place into=$1/include
  mkdir -p "$into"
  for name in fmt spdlog tl toml++ nlohmann cudnn_frontend cudnn_frontend.h; do
    from=''
    for place in "${CUDNN_FRONTEND_HOME:+$CUDNN_FRONTEND_HOME/include}" /usr/include /usr/local/include; do
      [[ -n $place && -e $place/$name ]] && from=$place && break
    done
    case $name in
      # The frontend is more files than its first one.
      cudnn_frontend.h) [[ -z $from ]] || cp "$from"/cudnn_frontend*.h "$from"/cudnn_backend_base.h "$into" ;;
      *) [[ -z $from ]] || cp -r "$from/$name" "$into" ;;
    esac
    [[ -n $from || $name == cudnn_frontend* ]] || die "the headers of $name are neither in /usr/include nor /usr/local/include"
    [[ -n $from || $name != cudnn_frontend ]] ||
      echo "run.sh: the headers of cuDNN's frontend are not there: attention will be computed without tensor cores (set CUDNN_FRONTEND_HOME)"
  done
}

while (($#)); do
  case $1 in
    --collect-headers)
      [[ $# -ge 2 ]] || die "$1 needs a value"
      collect_headers "$2"
      exit
      ;;
    --results | --headers | --build | --programs | --gpu)
      [[ $# -ge 2 ]] || die "$1 needs a value"
      case $1 in
        --results) results=$2 ;;
        --headers) headers=$2 ;;
        --build) build=$2 ;;
        --gpu) gpu=$2 ;;
        --programs) programs=$(cd "$2" && pwd) || die "there is no folder $2" ;;
      esac
      shift
      ;;
    -h | --help) usage; exit 0 ;;
    -*) die "unknown option '$1' (see tests/gpu/run.sh --help)" ;;
    *) [[ " ${all[*]} " == *" $1 "* ]] || die "there is no part '$1' (there are: ${all[*]})"; parts+=("$1") ;;
  esac
  shift
done
((${#parts[@]})) || parts=("${all[@]}")
[[ ! -d $headers/include ]] || headers=$headers/include
build=${build:-$results/build}
mkdir -p "$results"

for program in cmake nvcc; do
  command -v "$program" >/dev/null || die "$program is not on the PATH"
done
# For the GPU at hand only.
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d .) || capability=''
[[ -n $capability ]] || echo "run.sh: nvidia-smi finds no GPU here: compiling for architecture 90"
generator=()
! command -v ninja >/dev/null || generator=(-G Ninja)
cmake -S "$here" -B "$build" "${generator[@]}" -DCMAKE_CUDA_ARCHITECTURES="${capability:-90}-real" \
  ${headers:+-DSAILOR_HEADERS="$headers"} >"$results/configure.txt" 2>&1 ||
  { cat "$results/configure.txt"; die "it cannot be configured"; }
cmake --build "$build" --parallel >"$results/build.txt" 2>&1 || { tail -40 "$results/build.txt"; die "it does not build"; }

# All 32 blocks of LLaMA-3-8B need 137 GiB, half of them 91.
memory=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null | head -1) || memory=''
llama_blocks=16
((${memory:-0} >= 100000)) || llama_blocks=10
# MODEL SEQUENCES LENGTH MICRO_BATCHES RECOMPUTE [BLOCKS]
models=("opt-350m 8 2048 2 none" "opt-1.3b 8 2048 2 none" "gpt-neo-2.7b 4 2048 2 none"
  "llama-3-8b 1 8192 2 none $llama_blocks")
((${memory:-0} < 140000)) || models+=("llama-3-8b 1 4096 1 full")
failed=0

# plan MODEL GPU MICRO_BATCH MICRO_BATCHES LENGTH LAYERS RECOMPUTE: a plan of one GPU
plan() {
  cat <<TEXT
schema_version = 1
micro_batch = $3
schedule = "1f1b"
[job]
model = "$1"
global_batch = $(($3 * $4))
sequence_length = $5
precision = "bf16"
optimizer = "adamw"
[[pipelines]]
count = 1
micro_batches = $4
[[pipelines.stages]]
layers = [0, $6]
gpu = "$2"
tensor_parallel = 1
recompute = "$7"
TEXT
}
# run_programs: the programs themselves on this GPU, profile to prediction
run_programs() {
  local root status=0 files=$results/model-files store=$results/store data=$results/corpus name
  root=$(cd "$here/../.." && pwd)
  PATH=$programs:$PATH
  sailor-check --nhc --device gpu || status=1
  mkdir -p "$files"
  cp "$root"/profiles/models/*.toml "$files"
  sed "s/^name = .*/name = \"llama-3-8b-part\"/; s/^blocks = .*/blocks = $llama_blocks/" "$files/llama-3-8b.toml" \
    >"$files/llama-3-8b-part.toml"
  cat "$root"/docs/*.md "$root"/docs/*/*.md >"$results/corpus.txt"
  sailor-data bytes --output "$data" "$results/corpus.txt" || return 1
  local -a common=(--models "$files" --precision bf16 --gpu "$gpu" --store "$store" --time-budget 12)
  timeout 90 sailor-profile layers "${common[@]}" --model opt-350m --micro-batches 4,8,16 --recompute none,full || status=1
  timeout 60 sailor-profile layers "${common[@]}" --model opt-1.3b --micro-batches 2,4,8 || status=1
  timeout 60 sailor-profile layers "${common[@]}" --model gpt-neo-2.7b --micro-batches 2,4 || status=1
  timeout 60 sailor-profile layers "${common[@]}" --model llama-3-8b-part --micro-batches 1 --recompute none,full || status=1
  for name in "opt-350m 8 2 2048 26 none" "opt-350m 4 4 2048 26 none" "opt-350m 16 1 2048 26 none" \
    "opt-350m 16 1 2048 26 full" "opt-1.3b 8 2 2048 26 none" "gpt-neo-2.7b 4 2 2048 34 none" "llama-3-8b-part 1 2 8192 $((llama_blocks + 2)) none"; do
    read -ra words <<<"$name"
    plan "${words[0]}" "$gpu" "${words[@]:1}" >"$results/plan.toml"
    timeout 90 sailor-train --models "$files" "$results/plan.toml" --data "$data" --iterations 12 --warm-up-iterations 2 \
      --learning-rate 2e-4 --log-every 4 --run-file "$results/run.h5" || { status=1; continue; }
    sailor-simulate --models "$files" --profile "$store" "$results/plan.toml" --against "$results/run.h5" || status=1
  done
  # A checkpoint goes on with the same losses, bit for bit.
  plan opt-350m "$gpu" 8 2 2048 26 none >"$results/plan.toml"
  local -a train=(sailor-train --models "$files" "$results/plan.toml" --data "$data" --warm-up-iterations 2 --deterministic)
  timeout 60 "${train[@]}" --iterations 8 --metrics "$results/once.jsonl" >/dev/null
  rm -rf "$results/checkpoints"
  timeout 60 "${train[@]}" --iterations 4 --checkpoints "$results/checkpoints" >/dev/null
  timeout 60 "${train[@]}" --iterations 8 --checkpoints "$results/checkpoints" --metrics "$results/twice.jsonl" >/dev/null
  rm -rf "$results/checkpoints"
  python3 - "$results/once.jsonl" "$results/twice.jsonl" <<'TEXT' || status=1
import json, sys
once, twice = ({line["iteration"]: line["loss"] for line in map(json.loads, open(name))} for name in sys.argv[1:])
same = bool(twice) and all(once[i] == loss for i, loss in twice.items())
print("losses after a checkpoint:", "the same" if same else f"FAILED: {once} but {twice}")
sys.exit(not same)
TEXT
  return "$status"
}

# part NAME COMMAND...: runs it into NAME.txt; a status of 3 ends everything.
part() {
  local name=$1 status=0
  shift
  "$@" >>"$results/$name.txt" 2>&1 || status=$?
  ((status != 3)) || { tail -1 "$results/$name.txt"; exit 3; }
  ((status == 0)) || failed=1
}
for name in "${parts[@]}"; do
  {
    printf '# tests/gpu/run.sh %s, %s' "$name" "$(date -u +%F)"
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader 2>/dev/null |
      sed 's/^/, /' || true
    printf '\n'
  } >"$results/$name.txt"
  case $name in
    kernels) part kernels timeout 300 "$build/check_kernels" ;;
    training) part training timeout 300 "$build/check_training" ;;
    nccl)
      if [[ -x $build/check_nccl ]]; then part nccl timeout 420 "$build/check_nccl"; else
        echo "NCCL was not found when this was built: not run" >>"$results/nccl.txt"
      fi
      ;;
    rates) part rates timeout 300 "$build/bench_kernels" ;;
    models)
      for model in "${models[@]}"; do
        read -ra words <<<"$model"
        part models timeout 110 "$build/bench_models" "${words[@]:0:5}" 12 "${words[@]:5}"
      done
      ;;
    programs)
      if [[ -n $programs ]]; then
        part programs run_programs
      else
        echo "--programs does not say where sailor-train is: not run" >>"$results/programs.txt"
      fi
      ;;
    torch)
      if python3 -c 'import torch' 2>/dev/null; then
        for model in "${models[@]}"; do
          read -ra words <<<"$model"
          part torch timeout 115 python3 "$here/bench_torch.py" "${words[@]:0:5}" ${words[5]:+--blocks "${words[5]}"} --compile blocks
        done
      else
        echo "python3 cannot import torch: not run" >>"$results/torch.txt"
      fi
      ;;
    sanitizer)
      if command -v compute-sanitizer >/dev/null; then
        for tool in memcheck racecheck synccheck; do
          options=()
          [[ $tool == memcheck ]] || options=(--kernel-name-exclude kns=cudnn)
          part sanitizer timeout 300 compute-sanitizer --tool "$tool" "${options[@]}" --error-exitcode 1 \
            "$build/check_kernels"
        done
      else
        echo "compute-sanitizer is not on the PATH: not run" >>"$results/sanitizer.txt"
      fi
      ;;
  esac
  echo "== $name"
  cat "$results/$name.txt"
done
exit "$failed"
