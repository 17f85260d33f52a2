#!/bin/bash
# tests/gpu/run.sh: checks and measures the GPU code on a machine with one GPU.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
  cat <<'TEXT'
tests/gpu/run.sh: checks and measures Sailor's GPU code on a machine with one GPU

Usage: tests/gpu/run.sh [--results FOLDER] [--headers FOLDER] [--build FOLDER] [PART...]

Needs CMake, a C++20 compiler and the CUDA toolkit, and the headers of fmt, spdlog, tl-expected, toml++ and nlohmann-json;
for attention on tensor cores cuDNN and the headers of its C++ frontend, too; for part nccl NCCL.
Each part ends within ten minutes and writes FOLDER/PART.txt before the next one begins:

  kernels     every operation against the CPU, all types
  training    small models of every kind against the CPU
  nccl        processes that share the GPU train over NCCL, in all divisions, and after one is killed
  rates       TFLOP/s and TB/s of every operation at the shapes of the models
  models      iterations of whole models: tokens/s, model FLOP utilisation, memory
  sanitizer   every operation under compute-sanitizer (memcheck, racecheck, synccheck)

  --results FOLDER  where the results go (default: ./gpu-results)
  --headers FOLDER  where the headers are, when not in the compiler's path
  --build FOLDER    where to build (default: a folder beside the results)
  -h, --help        this text

Exit status: 0 all passed, 1 something failed (it says what), 3 no usable GPU.
TEXT
}

die() {
  printf 'run.sh: error: %s\n' "$*" >&2
  exit 2
}

all=(kernels training nccl rates models sanitizer)
results=$PWD/gpu-results headers='' build='' parts=()
while (($#)); do
  case $1 in
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
      part models timeout 200 "$build/bench_models" opt-350m 8 2048 2
      part models timeout 200 "$build/bench_models" gpt-neo-2.7b 4 2048 2
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
