#!/bin/bash
# Compiles every kernel for every architecture without a GPU, and compares what it uses with kernel_limits.txt.
set -euo pipefail
# shellcheck source=ae_scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../ae_scripts/common.sh"

usage() {
  cat <<'TEXT'
tests/gpu/kernel_limits.sh: registers, spills and shared memory of every kernel

Usage: tests/gpu/kernel_limits.sh [--update] [ARCHITECTURE...]

Compiles src/runtime/cuda/*.cu with nvcc for each architecture (75 80 86 89 90 100), warnings as errors, and fails where
a kernel spills registers, or uses more registers, stack or static shared memory than tests/gpu/kernel_limits.txt says: of
each kernel the most over its template arguments and architectures. Needs nvcc, and no GPU.

  --update    write that file anew
  -h, --help  this text
TEXT
}

update=no architectures=()
while (($#)); do
  case $1 in
    --update) update=yes ;;
    -h | --help) usage; exit 0 ;;
    -*) bad_usage "unknown option '$1' (see tests/gpu/kernel_limits.sh --help)" ;;
    *) [[ $1 =~ ^[0-9]+$ ]] || bad_usage "'$1' is no architecture (such as 90)"; architectures+=("$1") ;;
  esac
  shift
done
((${#architectures[@]})) || architectures=(75 80 86 89 90 100)
command -v nvcc >/dev/null || die "nvcc is not in PATH"
limits=$sailor_root/tests/gpu/kernel_limits.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cd "$sailor_root"
for architecture in "${architectures[@]}"; do
  for source in src/runtime/cuda/*.cu; do
    echo "compiling $source for $architecture"
    nvcc -std=c++20 --expt-relaxed-constexpr -O2 -Isrc -I. -Werror all-warnings -Xcompiler=-Wall,-Wextra \
      -gencode "arch=compute_$architecture,code=sm_$architecture" --resource-usage -c "$source" -o "$work/object" \
      2>"$work/said" || { cat "$work/said"; die "$source does not compile for $architecture"; }
    # KERNEL ARCHITECTURE REGISTERS STACK SPILLED SHARED
    c++filt <"$work/said" | awk -v architecture="$architecture" '
      /Compiling entry function/ {
        kernel = $0
        sub(/.*Compiling entry function ./, "", kernel)
        sub(/. for .sm_.*/, "", kernel)
        sub(/\(anonymous namespace\)::|_GLOBAL__N_[^:]*::/, "", kernel)
        sub(/^void /, "", kernel)
        gsub(/sailor::runtime::cuda::/, "", kernel)
        sub(/[<(].*/, "", kernel)
      }
      /bytes stack frame/ { stack = $1; spilled = $5 + $9 }
      /Used [0-9]+ registers/ {
        shared = 0
        for (i = 1; i < NF; ++i) {
          if ($i == "Used") registers = $(i + 1)
          if ($(i + 1) == "bytes" && $(i + 2) ~ /^smem/) shared = $i
        }
        print kernel, architecture, registers, stack, spilled, shared
      }' >>"$work/used"
  done
done
[[ -s $work/used ]] || die "the compiler said nothing of registers"

# KERNEL REGISTERS STACK SHARED
most() {
  awk '{ for (i = 3; i <= 6; ++i) if ($i >= most[$1, i]) most[$1, i] = $i; kernels[$1] }
    END { for (k in kernels) print k, most[k, 3], most[k, 4], most[k, 6] }' "$work/used" | sort
}
bad=0
while read -r kernel architecture _ _ spilled _; do
  ((spilled == 0)) && continue
  echo "$kernel for $architecture: $spilled bytes of spilled registers"
  bad=$((bad + 1))
done < <(sort -u "$work/used")
if [[ $update == yes ]]; then
  { echo '# Kernel, registers and bytes of stack of a thread, bytes of static shared memory: the most over template arguments and architectures.'
    most; } >"$limits"
else
  while read -r kernel registers stack shared; do
    limit=$(awk -v kernel="$kernel" '$1 == kernel { print $2, $3, $4 }' "$limits")
    [[ -n $limit ]] || { echo "$kernel is not in $limits (--update)"; bad=$((bad + 1)); continue; }
    read -r most_registers most_stack most_shared <<<"$limit"
    ((registers <= most_registers && stack <= most_stack && shared <= most_shared)) && continue
    echo "$kernel uses $registers registers, $stack bytes of stack, $shared of shared memory; at most $limit"
    bad=$((bad + 1))
  done < <(most)
fi
echo "$(most | wc -l) kernels, ${#architectures[@]} architectures, $bad findings"
((bad == 0))
