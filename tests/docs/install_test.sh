#!/bin/bash
# `cmake --install` into a folder of the test's: programs find their profiles and sites there, and a project of another
# finds the libraries with find_package(sailor).
set -uo pipefail
build=${SAILOR_BUILD_DIR:?} source=${SAILOR_SOURCE_DIR:?}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
prefix=$folder/prefix
not_ok() { echo "not ok - $*"; cat "$folder/log"; exit 1; }

cmake --install "$build" --prefix "$prefix" >"$folder/log" 2>&1 || not_ok "cmake --install succeeds"
cd "$folder" || exit 1
"$prefix/bin/sailor-plan" --gpus 2x4:A100-40 --model opt-350m-sailor --global-batch 64 --top 1 -o plan.toml >"$folder/log" 2>&1 ||
  not_ok "an installed sailor-plan plans with the installed profiles"
"$prefix/bin/sailor" simulate plan.toml >"$folder/log" 2>&1 || not_ok "an installed sailor starts sailor-simulate"
"$prefix/bin/sailor" models --format names >"$folder/log" 2>&1 || not_ok "sailor models works"
grep -qx tiny-gpt "$folder/log" || not_ok "sailor models lists tiny-gpt"
"$prefix/bin/sailor-testcluster" --help >"$folder/log" 2>&1 || not_ok "sailor-testcluster finds its parts"
echo "ok - installed programs find what was installed with them"

# Debug information is in files of its own, which gdb finds by the build id.
if grep -qx 'SAILOR_SPLIT_DEBUG:BOOL=ON' "$build/CMakeCache.txt"; then
  for program in "$prefix"/bin/sailor-plan "$prefix"/lib*/sailor/*.so; do
    [[ -e $program ]] || continue  # the plugin needs Slurm, the GPU module CUDA
    id=$(readelf -n "$program" | sed -n 's/.*Build ID: //p')
    [[ -e $prefix/lib/debug/.build-id/${id:0:2}/${id:2}.debug ]] || not_ok "$program has debug information in lib/debug"
    readelf -SW "$program" >"$folder/log"
    grep -qE '\.debug_info|\.symtab' "$folder/log" && not_ok "$program is stripped"
    readelf --string-dump=.gnu_debuglink "$program" >"$folder/log" 2>&1
    grep -qF "${id:2}.debug" "$folder/log" || not_ok "$program is linked with its debug information"
  done
  if command -v gdb >/dev/null; then
    gdb -nx -batch -iex "set debug-file-directory $prefix/lib/debug" -ex 'info line main' "$prefix/bin/sailor-plan" \
      >"$folder/log" 2>&1
    grep -q '^Line [0-9]* of ".*sailor_plan.cpp"' "$folder/log" || not_ok "gdb finds the lines of an installed program"
  fi
  (
    export DESTDIR=$folder/stage
    cmake --install "$build" --prefix /usr --component debug && cmake --install "$build" --prefix /usr --component debug
  ) >"$folder/log" 2>&1 || not_ok "the debug information installs by itself"
  [[ $(cd "$folder/stage/usr" && echo *) == lib ]] || not_ok "the component debug has nothing but debug information"
  echo "ok - installed programs are stripped, and gdb finds their debug information"
fi

# A project of another, with what it got from find_package() only.
cmake -S "$source/tests/docs/consumer" -B "$folder/consumer" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Debug \
  ${SAILOR_SANITIZE:+-DCMAKE_CXX_FLAGS=-fsanitize=$SAILOR_SANITIZE} >"$folder/log" 2>&1 ||
  not_ok "find_package(sailor) finds the installed package"
cmake --build "$folder/consumer" >"$folder/log" 2>&1 || not_ok "a project links sailor::planner"
seconds=$("$folder/consumer/consumer" "$prefix/share/sailor/profiles" 2>"$folder/log") || not_ok "the project plans"
[[ $seconds =~ ^[0-9.]+$ ]] || not_ok "the project prints a time, not '$seconds'"
echo "ok - a project plans through sailor::planner ($seconds s per iteration)"

# The module file, from wherever the prefix was moved to.
if [[ -e /usr/share/modules/init/bash ]]; then
  mv "$prefix" "$folder/moved"
  (
    # shellcheck disable=SC1091  # of the package environment-modules
    source /usr/share/modules/init/bash
    module use "$folder/moved/share/sailor/modulefiles" && module load sailor && command -v sailor-plan &&
      man -w sailor-plan && man -w 5 plan.toml
  ) >"$folder/log" 2>&1
  for what in "$folder/moved/bin/sailor-plan" "$folder/moved/share/man/man1/sailor-plan.1" \
    "$folder/moved/share/man/man5/plan.toml.5"; do
    grep -qxF "$what" "$folder/log" || not_ok "module load sailor finds $what"
  done
  echo "ok - the module file finds programs and manual pages"
else
  echo "skipped: the module file (apt-get install environment-modules)"
fi
