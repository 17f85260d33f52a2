#!/usr/bin/env bash
# Compiles what includes Slurm's headers against those of other releases, with warnings as errors. Nothing is linked, so
# only the headers are needed: SLURM_HOME of another installation, or a package of another distribution, unpacked
# (dpkg-deb -x libslurm-dev_*.deb DIR; rpm2cpio slurm-devel-*.rpm | cpio -idD DIR). As a test it takes the folders
# from SAILOR_SLURM_HEADERS, separated by colons, and skips without them.
#
#   tests/slurm/compile_with_headers.sh [--build BUILD_FOLDER] DIR...
set -euo pipefail
# shellcheck source=experiments/usage.bash
source "$(dirname "${BASH_SOURCE[0]}")/../../experiments/usage.bash"
[[ ${1:-} == --build ]] || read_usage 0 "$@"

source_dir=${SAILOR_SOURCE_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
build_dir=${SAILOR_BUILD_DIR:-$source_dir/build}
if [[ ${1:-} == --build ]]; then
  build_dir=${2:?--build needs a folder}
  shift 2
fi
if (($# == 0)); then IFS=: read -r -a folders <<<"${SAILOR_SLURM_HEADERS:-}"; else folders=("$@"); fi
if ((${#folders[@]} == 0)); then
  echo "skipped: name folders with Slurm's headers, as arguments or in SAILOR_SLURM_HEADERS"
  exit 77
fi
commands=$build_dir/compile_commands.json
[[ -r $commands ]] || { echo "no $commands: configure first (cmake --preset default), or say --build FOLDER" >&2; exit 1; }

dependencies=$(mktemp) with_sources=$(mktemp)
trap 'rm -f "$dependencies" "$with_sources"' EXIT
"$source_dir/tests/compile_commands.py" "$build_dir" >"$with_sources"

# FILE -> REPLY, how the build compiles it, up to its output; nothing where the build leaves it out.
compile_command() {
  # "command" and "file" are lines of their own, the former with " and \ escaped.
  REPLY=$({ grep -B 1 -F "\"file\": \"$1\"" "$with_sources" || true; } |
    sed -nE '1s/^ *"command": "(.*) -o [^ ]* -c .*/\1/p')
  REPLY=${REPLY//\\\"/\"} REPLY=${REPLY//\\\\/\\}
}

cd "$source_dir"
mapfile -t headers < <(grep -rl '^#include <slurm/' --include='*.hpp' slurm spank_plugin src tests)
pattern='^#include (<slurm/'
for header in "${headers[@]}"; do pattern+="|\"[a-z_/]*${header##*/}\""; done
mapfile -t files < <(grep -rlE "$pattern)" --include='*.cpp' slurm spank_plugin src tests | sort)
failed=0
for folder in "${folders[@]}"; do
  for include in "$folder/usr/include" "$folder/include" "$folder" ''; do
    if [[ -n $include && -r $include/slurm/slurm.h ]]; then break; fi
  done
  [[ -n $include ]] || { echo "no slurm/slurm.h in $folder, nor in include or usr/include below it" >&2; exit 1; }
  number=$(sed -nE 's/^#define SLURM_VERSION_NUMBER +(0x[0-9a-f]+)$/\1/p' "$include/slurm/slurm_version.h")
  printf -v release '%d.%02d.%d' $((number >> 16 & 255)) $((number >> 8 & 255)) $((number & 255))
  for file in "${files[@]}"; do
    compile_command "$source_dir/$file"
    [[ -n $REPLY ]] || { echo "$commands has no $file: it is of a build without Slurm, or without tests" >&2; exit 1; }
    # First of all folders, so that no other Slurm comes before it.
    eval "command=(${REPLY/ -/ -isystem $(printf '%q' "$include") -})"
    # shellcheck disable=SC2154  # set by eval
    if ! "${command[@]}" -Werror -fsyntax-only -MD -MF "$dependencies" "$source_dir/$file"; then
      echo "not ok - $file with Slurm $release"
      failed=1
    elif ! grep -qF "$include/slurm/" "$dependencies"; then
      echo "not ok - $file did not read the headers in $include"
      failed=1
    else
      echo "ok - $file with Slurm $release"
    fi
  done
done
exit "$failed"
