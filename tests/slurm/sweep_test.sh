#!/bin/bash
# sailor-sweep as a job array: every point once, tables in the end, nothing twice.
#
# shellcheck disable=SC2317  # functions are called by name
# shellcheck source-path=SCRIPTDIR source=common.bash
source "$(dirname "${BASH_SOURCE[0]}")/common.bash"
PATH="$bin_dir:$PATH"
command -v python3 >/dev/null || { echo "skipped: python3 is not installed"; exit 77; }
start_cluster --nodes n:2:-:0:2:1:2000 --partitions normal=ALL
export SAILOR_SAILOR_PLAN=$source_dir/tests/fakes/sailor_plan.py
export FAKE_COUNT_FILE=$work/counted.txt

{
  printf 'schema_version = 1\nname = "little"\ntitle = "A little sweep"\n[[planners]]\nplanner = "counted"\n'
  printf '[[planners]]\nplanner = "none"\n[[models]]\nmodel = "opt-350m-sailor"\nglobal_batch = 1024\n'
  for count in 4 8 12; do
    printf '[[clusters]]\nname = "%s"\ngpus = [{ gpu = "A100-40", count = %s, zone = "us-central1-a" }]\n' "$count" "$count"
  done
} >"$work/little.toml"

array_and_tables() {
  sailor-sweep little.toml -o out --slurm -p normal --array-tasks 2 --cpus-per-task 1 --wait >printed
  head -1 printed | grep -qE '^[0-9]+$'
  expect_in "$(cat printed)" '6 points: 3 with a plan, 3 without, 0 failed'
  [[ $(wc -l <counted.txt) == 3 && -s out/little.h5 && $(wc -l <out/little.csv) == 7 ]]
}
check "a job array does every point, and the tables are written when it has ended" array_and_tables

nothing_twice() {
  sailor-sweep little.toml -o out >printed
  [[ $(wc -l <counted.txt) == 3 ]]
}
check "a call here afterwards does no point again" nothing_twice

refused() {
  local status=0
  sailor-sweep little.toml -o other --slurm -p nowhere 2>said || status=$?
  [[ $status == 1 ]] && expect_in "$(cat said)" nowhere
}
check "a partition that is not there is an error" refused
finish
