#!/bin/bash
# Style: clang-format on every file, clang-tidy on those that changed. CI runs the first on everything.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'TEXT'
tests/lint.sh: compares the code with .clang-format and .clang-tidy

Usage: tests/lint.sh [--format | --changed | --fix] [--base COMMIT] [--build FOLDER]

  (no option)     both on the whole tree; clang-tidy takes about an hour on two cores
  --format        only clang-format, on the whole tree (20 seconds)
  --changed       clang-format on the whole tree, clang-tidy on what changed since --base
  --fix           formats the files
  --base COMMIT   what --changed compares with [default: main]
  --build FOLDER  a configured build, whose compile commands clang-tidy needs [default: build]
  -h, --help      this text

Files in tests/unformatted_files.txt are not compared with .clang-format.
TEXT
}
what=all base=main build=build
while (($#)); do
  case $1 in
    --format | --changed | --fix) what=${1#--} ;;
    --base | --build)
      [[ $# -ge 2 ]] || { echo "tests/lint.sh: $1 needs a value" >&2; exit 2; }
      if [[ $1 == --base ]]; then base=$2; else build=$2; fi
      shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "tests/lint.sh: unknown option '$1' (see tests/lint.sh --help)" >&2; exit 2 ;;
  esac
  shift
done
need() { command -v "$1" >/dev/null || { echo "tests/lint.sh: $1 is not installed: apt-get install $1" >&2; exit 1; }; }

# Another release formats differently: the tree is formatted by Debian 12's.
need clang-format
release=$(clang-format --version | sed 's/.*version \([0-9]*\).*/\1/')
[[ $release == 14 ]] || echo "tests/lint.sh: clang-format is release $release; the tree is formatted by 14" >&2
mapfile -t sources < <({ git ls-files '*.cpp' '*.hpp' '*.cu' '*.cuh'; git ls-files --others --exclude-standard '*.cpp' '*.hpp' '*.cu' '*.cuh'; } |
  grep -vxFf <(grep -v '^#' tests/unformatted_files.txt))
if [[ $what == fix ]]; then
  clang-format -i "${sources[@]}"
  exit
fi
unformatted=$({ printf '%s\0' "${sources[@]}" | xargs -0 -P "$(nproc)" -n 50 clang-format --dry-run -Werror 2>&1 || true; } |
  sed -n 's/^\([^: ]*\):[0-9]*:[0-9]*: error:.*/\1/p' | sort -u)
if [[ -n $unformatted ]]; then
  echo "These files are not formatted (tests/lint.sh --fix does it):"
  echo "$unformatted"
  exit 1
fi
echo "ok: ${#sources[@]} files are formatted"
[[ $what == format ]] && exit

need clang-tidy
[[ -e $build/compile_commands.json ]] || { echo "tests/lint.sh: configure first: cmake --preset default" >&2; exit 1; }
if [[ $what == changed ]]; then
  mapfile -t files < <(git diff --name-only --diff-filter=d "$(git merge-base "$base" HEAD)" -- '*.cpp')
else
  mapfile -t files < <(git ls-files 'src/*.cpp' 'slurm/*.cpp' 'spank_plugin/*.cpp')
fi
# Only what this build compiles, which may be part of a file of a unity build: those are asked about by their own name.
((${#files[@]})) || { echo "ok: no file changed since $base"; exit; }
printf '%s\0' "${files[@]}" | xargs -0 -P "$(nproc)" -n 1 clang-tidy -p "$build" --quiet --warnings-as-errors='*'
echo "ok: clang-tidy has nothing to say of ${#files[@]} files"
