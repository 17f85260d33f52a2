#!/bin/bash
# Compiles the GPU code with CUDA 12 for a V100, which CUDA 13 has left. Needs no GPU.
set -euo pipefail
# shellcheck source=ae_scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../ae_scripts/common.sh"

usage() {
  cat <<'TEXT'
tests/gpu/cuda12.sh: whether the GPU code still compiles with CUDA 12, and for a V100

Usage: tests/gpu/cuda12.sh [--clang PROGRAM] [FOLDER]

Compiles every kernel for architecture 70 with clang, CUDA 12.8's headers and its ptxas, and the rest of src/runtime/cuda
that needs nothing but CUDA's headers with c++. FOLDER gets what is needed of CUDA 12.8 from PyPI (nvidia-cuda-runtime-cu12,
nvidia-cuda-nvcc-cu12, nvidia-cuda-cccl-cu12; 45 MB) unless it is there (default: build/cuda12).

  --clang PROGRAM  clang 17 or newer (default: clang++-19, or clang++)
  -h, --help       this text
TEXT
}

clang='' folder=''
while (($#)); do
  case $1 in
    --clang) clang=${2:?--clang needs a value}; shift ;;
    -h | --help) usage; exit 0 ;;
    -*) bad_usage "unknown option '$1' (see tests/gpu/cuda12.sh --help)" ;;
    *) folder=$1 ;;
  esac
  shift
done
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=${folder:-$root/build/cuda12}
clang=${clang:-$(command -v clang++-19 || command -v clang++ || true)}
[[ -n $clang ]] || die "there is no clang (Debian: clang-19)"

if [[ ! -x $folder/bin/ptxas ]]; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  python3 -m pip install -q --no-deps --target "$scratch" \
    nvidia-cuda-runtime-cu12==12.8.90 nvidia-cuda-nvcc-cu12==12.8.93 nvidia-cuda-cccl-cu12==12.8.90
  mkdir -p "$folder"/{include,bin,lib64}
  for part in cuda_runtime cuda_nvcc cuda_cccl; do cp -r "$scratch/nvidia/$part/include/." "$folder/include"; done
  cp -r "$scratch/nvidia/cuda_nvcc/nvvm" "$folder"
  echo 'CUDA Version 12.8.90' >"$folder/version.txt"
  install "$scratch/nvidia/cuda_nvcc/bin/ptxas" "$folder/bin"
fi
options=(-std=c++20 -x cuda "--cuda-path=$folder" --cuda-gpu-arch=sm_70 -Wno-unknown-cuda-version -Werror "-I$root/src" "-I$root")
for file in "$root"/src/runtime/cuda/*.cu; do
  echo "compiling ${file#"$root"/} for 70 with CUDA 12.8"
  "$clang" "${options[@]}" -O3 --cuda-device-only -c "$file" -o /dev/null
  "$clang" "${options[@]}" --cuda-host-only -fsyntax-only "$file"
done
for name in cuda_device gpu_clock; do
  echo "checking src/runtime/cuda/$name.cpp with CUDA 12.8"
  "${CXX:-c++}" -std=c++20 -fsyntax-only -DSPDLOG_FMT_EXTERNAL=1 "-isystem$folder/include" "-I$root/src" "-I$root" \
    "$root/src/runtime/cuda/$name.cpp"
done
echo "all compiles"
