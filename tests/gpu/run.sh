#!/bin/bash
# tests/gpu/run.sh: checks and measures the GPU code on a machine with one GPU.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  cat <<'TEXT'
tests/gpu/run.sh: checks and measures Sailor's GPU code on a machine with one GPU

Usage: tests/gpu/run.sh [--results FOLDER] [--headers FOLDER] [--build FOLDER] [PART...]
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
  sanitizer   every operation under compute-sanitizer (memcheck, racecheck, synccheck)

  --results FOLDER  where the results go (default: ./gpu-results)
  --headers FOLDER  where the headers are, when not in the compiler's path
  --collect-headers FOLDER
                    copy this machine's headers to FOLDER, to take them to one with a GPU that has none, and end
  --build FOLDER    where to build (default: a folder beside the results)
  -h, --help        this text

Exit status: 0 all passed, 1 something failed (it says what), 3 no usable GPU.
TEXT
}

die() {
  printf 'run.sh: error: %s\n' "$*" >&2
  exit 2
}

all=(kernels training nccl rates models torch sanitizer)
results=$PWD/gpu-results headers='' build='' parts=()
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
    --results | --headers | --build)
      [[ $# -ge 2 ]] || die "$1 needs a value"
      case $1 in
        --results) results=$2 ;;
        --headers) headers=$2 ;;
        --build) build=$2 ;;
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

# MODEL SEQUENCES LENGTH MICRO_BATCHES RECOMPUTE [BLOCKS]
models=("opt-350m 8 2048 2 none" "opt-1.3b 8 2048 2 none" "gpt-neo-2.7b 4 2048 2 none" "llama-3-8b 1 8192 2 none 16"
  "llama-3-8b 1 8192 1 full")
failed=0
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
    torch)
      if python3 -c 'import torch' 2>/dev/null; then
        for model in "${models[@]}"; do
          read -ra words <<<"$model"
          part torch timeout 115 python3 "$here/bench_torch.py" "${words[@]:0:5}" ${words[5]:+--blocks "${words[5]}"}
        done
      else
        echo "python3 cannot import torch: not run" >>"$results/torch.txt"
      fi
      ;;
    sanitizer)
      if command -v compute-sanitizer >/dev/null; then
        for tool in memcheck racecheck synccheck; do
          part sanitizer timeout 300 compute-sanitizer --tool "$tool" --error-exitcode 1 "$build/check_kernels"
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
