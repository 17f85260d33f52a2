#!/bin/bash
# Style: clang-format on every file, clang-tidy on those that changed. CI runs the first on everything.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'TEXT'
tests/lint.sh: compares the code with .clang-format and .clang-tidy

Usage: tests/lint.sh [--format | --changed | --fix] [--base COMMIT] [--seconds N] [--build FOLDER]

  (no option)     both on the whole tree; clang-tidy takes half an hour on two cores
  --format        only clang-format, on the whole tree (20 seconds)
  --changed       clang-format on the whole tree, clang-tidy on what changed since --base
  --fix           formats the files
  --base COMMIT   what --changed compares with [default: where this branch left main; on main, the commit before]
  --seconds N     ends clang-tidy of --changed after this time; files that it did not look at are named, and no failure
                  [default: no limit]
  --build FOLDER  a configured build, whose compile commands clang-tidy needs [default: build]
  -h, --help      this text

Files in tests/unformatted_files.txt are not compared with .clang-format.
TEXT
}
bad_usage() { echo "tests/lint.sh: $1 (see tests/lint.sh --help)" >&2; exit 2; }
what=all base='' seconds='' build=build
while (($#)); do
  case $1 in
    --format | --changed | --fix) what=${1#--} ;;
    --base | --seconds | --build)
      [[ $# -ge 2 ]] || bad_usage "$1 needs a value"
      declare "${1#--}=$2"
      shift ;;
    -h | --help) usage; exit 0 ;;
    *) bad_usage "unknown option '$1'" ;;
  esac
  shift
done
[[ -z $seconds || $seconds =~ ^[1-9][0-9]*$ ]] || bad_usage "--seconds is a whole number from 1 on, not '$seconds'"
[[ -z $base ]] || git rev-parse --quiet --verify "$base^{commit}" >/dev/null || bad_usage "there is no commit '$base'"
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
need python3
[[ -e $build/compile_commands.json ]] || { echo "tests/lint.sh: configure first: cmake --preset default" >&2; exit 1; }

# Sources that changed since a commit, or whose headers did.
changed_sources() {
  local file
  local ours=(src/'*.cpp' src/'*.hpp' slurm/'*.cpp' slurm/'*.hpp' spank_plugin/'*.cpp' spank_plugin/'*.hpp')
  { git diff --name-only --diff-filter=d "$1" -- "${ours[@]}"; git ls-files --others --exclude-standard "${ours[@]}"; } |
    sed 's/[.]hpp$/.cpp/' | sort -u | while read -r file; do [[ ! -e $file ]] || echo "$file"; done
}
# Runs clang-tidy on each file. Those for which no time is left are appended to the file $not_looked_at.
tidy() {
  local end=0
  [[ -z $seconds ]] || end=$(($(date +%s) + seconds))
  # The build's commands have options that clang does not know, and CI's make errors of warnings.
  # shellcheck disable=SC2016  # expanded by the shells that xargs starts
  printf '%s\0' "$@" | end=$end build=$commands checks=$checks not_looked_at=$not_looked_at xargs -0 -P "$(nproc)" -n 1 bash -c '
    left=$((end == 0 ? 86400 : end - $(date +%s))) status=0
    if ((left > 0)); then
      timeout "$left" clang-tidy -p "$build" --quiet --extra-arg=-Wno-unknown-warning-option --extra-arg=-Qunused-arguments --checks="$checks" --warnings-as-errors="*" "$0" || status=$?
    else
      status=124
    fi
    ((status != 124)) || echo "$0" >>"$not_looked_at"
    ((status == 0 || status == 124))'
}
checks='' not_looked_at=$(mktemp) commands=$(mktemp -d)
trap 'rm -rf "$not_looked_at" "$commands"' EXIT
# A command for every source, or clang-tidy would take that of a file with a similar name; without the tests' precompiled
# header, which is GCC's.
tests/compile_commands.py "$build" | sed 's# -include [^ "]*cmake_pch[^ "]*##g' >"$commands/compile_commands.json"
if [[ $what == changed ]]; then
  since=$(tests/base_commit.sh ${base:+"$base"})
  if [[ -z $since ]]; then
    echo "skipped: clang-tidy: this clone has no main branch and no earlier commit to compare with (git fetch --unshallow)"
    exit
  fi
  mapfile -t files < <(changed_sources "$since")
  ((${#files[@]})) || { echo "ok: no source changed since $(git rev-parse --short "$since")"; exit; }
else
  # What the build compiles of our folders: a file of a unity build stands for its sources, which are read at once.
  mapfile -t files < <(sed -n 's/^ *"file": "\(.*\.\(cpp\|cxx\)\)",\{0,1\}$/\1/p' "$build/compile_commands.json" |
    grep -E '/(src|slurm|spank_plugin)/' | grep -v '/tests/' | sort -u)
  checks=-bugprone-suspicious-include
fi
status=0
tidy "${files[@]}" || status=1
left_out=$(wc -l <"$not_looked_at")
((left_out == 0)) || echo "skipped: after $seconds seconds, clang-tidy did not look at: $(sort "$not_looked_at" | paste -sd ' ')"
((status == 0)) || { echo "clang-tidy finds faults (see above)"; exit 1; }
echo "ok: clang-tidy has nothing to say of $((${#files[@]} - left_out)) files"
