# shellcheck shell=bash
# For the tests beside this file: a private cluster for the test, and checks that print "ok - NAME" or "not ok - NAME".
# The test sources this, calls start_cluster, then `check NAME FUNCTION` for each part, and `finish` at its end.
set -uo pipefail

source_dir=${SAILOR_SOURCE_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
# shellcheck disable=SC2034  # for the tests
bin_dir=${SAILOR_BIN_DIR:-$source_dir/build/bin}
# shellcheck disable=SC2034
tests_dir=${SAILOR_TESTS_DIR:-$source_dir/build/tests}
testcluster=$source_dir/slurm/testcluster/testcluster
export PATH=$PATH:/usr/sbin:/sbin
export SAILOR_GPU_MODULE=/none # programs are as of a build without CUDA, whatever this one has
for program in slurmctld slurmd munged sbatch; do
  command -v "$program" >/dev/null || { echo "skipped: $program is not installed"; exit 77; }
done

# Short: UNIX sockets are below it.
work=$(mktemp -d /tmp/sst.XXXXXX)
failed=0
leave() {
  "$testcluster" stop "$work/c" 2>/dev/null
  rm -rf "$work"
}
trap leave EXIT

# start_cluster OPTION...: of testcluster; the cluster goes when this shell does, however it ends.
start_cluster() {
  local status=0
  "$testcluster" start "$work/c" --owner $$ "$@" || status=$?
  ((status == 0)) || exit "$status"
  eval "$("$testcluster" env "$work/c")"
  find_mpi
}

# Sets $mpi to how srun starts ranks of the MPI that Sailor was built with: MPICH by pmi2, others by pmix; to nothing
# where this Slurm cannot. sailor-submit's own default is pmix.
find_mpi() {
  mpi=pmix
  if [[ $(ldd "$bin_dir/sailor-train" 2>/dev/null) == *libmpich* ]]; then
    mpi=pmi2
    export SAILOR_MPI=$mpi
  fi
  srun --mpi=list 2>&1 | grep -qE "^\s*$mpi\$" || mpi=
}

# check NAME FUNCTION: in a subshell, with what it printed if it fails.
check() {
  local output status=0
  output=$(cd "$work" && "$2" 2>&1) || status=$?
  if ((status == 0)); then echo "ok - $1"; return; fi
  printf 'not ok - %s\n%s\n' "$1" "$output"
  failed=1
}
finish() { exit "$failed"; }

# expect_in TEXT PART...: each PART is in TEXT.
expect_in() {
  local text=$1 part
  shift
  for part in "$@"; do
    [[ $text == *"$part"* ]] || { printf 'missing: %s\nin: %s\n' "$part" "$text"; exit 1; }
  done
}
# expect_failure STATUS COMMAND...: leaves its output in $output.
expect_failure() {
  local wanted=$1 status=0
  shift
  output=$("$@" 2>&1) || status=$?
  ((status == wanted)) || { printf 'exit status %s, not %s: %s\n%s\n' "$status" "$wanted" "$*" "$output"; exit 1; }
}
# eventually COMMAND...: succeeds within a minute.
eventually() {
  local attempt
  for ((attempt = 0; attempt < 600; attempt++)); do
    if "$@"; then return 0; fi
    sleep 0.1
  done
  echo "never succeeded: $*"
  exit 1
}
# start_with_switches: a cluster of its own, in $work/t, of nodes x1 to x3 of 4 cores, of which x3 has a leaf switch
# to itself. To be called in a test: it goes with the subshell.
start_with_switches() {
  local dir=$work/t
  "$testcluster" start "$dir" --owner $$ --nodes x:3:-:0:4:1:4000 --partitions only=ALL --mpi none || return 1
  # shellcheck disable=SC2064
  trap "'$testcluster' stop '$dir'" EXIT
  printf 'SwitchName=s0 Nodes=x[1-2]\nSwitchName=s1 Nodes=x3\nSwitchName=root Switches=s[0-1]\n' >"$dir/topology.conf"
  echo 'TopologyPlugin=topology/tree' >>"$dir/slurm.conf"
  export SLURM_CONF=$dir/slurm.conf
  # A plugin is chosen when slurmctld starts.
  kill "$("$testcluster" status "$dir" | sed -n 's/^slurmctld //p')"
  eventually bash -c '! scontrol ping | grep -q UP'
  SAILOR_TESTCLUSTER_ROLE=slurmctld SAILOR_TESTCLUSTER_MARK=$dir slurmctld -f "$SLURM_CONF" || return 1
  eventually bash -c 'scontrol show topology | grep -q SwitchName=s1'
}
pid_of() { "$testcluster" status "$work/c" | sed -n "s/^$1 //p"; } # ROLE
