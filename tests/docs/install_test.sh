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
"$prefix/bin/sailor" models --format names >"$folder/log" 2>&1 && grep -qx tiny-gpt "$folder/log" || not_ok "sailor models lists tiny-gpt"
echo "ok - installed programs find what was installed with them"
