#!/usr/bin/env bash
# Tests slurm/testcluster/testcluster with real daemons. Prints a line "ok - name" or
# "not ok - name" per test and fails if one of them failed; exit 77: Slurm is not installed.
# As root, the essential tests are run once more as an ordinary user ("as daemon").
#
# shellcheck disable=SC2317,SC2016,SC2001  # tests are called by name; jobs expand their variables
set -uo pipefail

here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
tc=$here/../../slurm/testcluster/testcluster
for program in slurmctld slurmd munged srun; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null ||
        { echo "skipped: $program is not installed" && exit 77; }
done

work=$(mktemp -d "${TMPDIR:-/tmp}/tct.XXXXXX")
if ((${#work} > 40)); then rmdir "$work" && work=$(mktemp -d /tmp/tct.XXXXXX); fi
failed=0 count=0
two_nodes=(--nodes cpu:2:-:0:1:1:4000)

finish() {
    local dir
    for dir in "$work"/*/; do "$tc" stop "${dir%/}" 2>/dev/null; done
    rm -rf -- "$work"
}
trap finish EXIT

check() { # NAME FUNCTION: runs it in a subshell; its output is shown if it fails
    local began=${EPOCHREALTIME//[.,]/} output status=0
    output=$(
        exec 2>&1
        set -e
        "$2"
    )
    status=$?
    count=$((count + 1))
    printf -v began '%d.%01d' $(((${EPOCHREALTIME//[.,]/} - began) / 1000000)) $(((${EPOCHREALTIME//[.,]/} - began) / 100000 % 10))
    if ((status == 0)); then
        echo "ok - $1${suffix:-} ($began s)"
    else
        echo "not ok - $1${suffix:-} ($began s)"
        sed 's/^/    /' <<<"$output"
        failed=$((failed + 1))
    fi
}

# Where a test fails is printed, with line and what was expected.
expect() { # WHAT ACTUAL EXPECTED
    [[ $2 == "$3" ]] && return 0
    echo "line ${BASH_LINENO[0]}: $1 is '$2', expected '$3'"
    exit 1
}

# Still: a process that has ended since it was listed is in /proc until it is reaped, with nothing in these files.
refers() { grep -qsF -- "$2" "/proc/$1/environ" "/proc/$1/cmdline"; } # PID DIR

# Processes, other than this test, with DIR in the environment, command line or open files.
# Independent of how testcluster itself looks for them.
referring() { # DIR
    local pid
    for pid in $(grep -lsF -- "$1" /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr -dc '0-9\n' | sort -u); do
        if [[ $pid != "$$" && $pid != "$BASHPID" ]] && refers "$pid" "$1"; then echo "$pid"; fi
    done
    for pid in /proc/[0-9]*; do
        if [[ $(readlink -- "$pid"/fd/* 2>/dev/null) == *"$1/"* ]]; then echo "${pid#/proc/}"; fi
    done
}
expect_nothing_left() { # DIR
    # On a busy machine ending takes its time; what is really left stays.
    local left pid deadline=$((${EPOCHREALTIME//[.,]/} + 20000000))
    while
        left=$(referring "$1")
        [[ -n $left ]] && ((${EPOCHREALTIME//[.,]/} < deadline))
    do sleep 0.1; done
    [[ -n $left ]] || return 0
    echo "line ${BASH_LINENO[0]}: processes of $1 are left:"
    for pid in $left; do echo "$pid $(tr '\0' ' ' <"/proc/$pid/cmdline")"; done
    exit 1
}

use() { eval "$("$tc" env "$1")"; } # DIR
retry() { # COMMAND...: for up to 10 s
    local deadline=$((SECONDS + 10))
    until "$@"; do
        if ((SECONDS > deadline)); then echo "line ${BASH_LINENO[0]}: not within 10 s: $*" && return 1; fi
        sleep 0.1
    done
}

counts_no_process_that_has_ended() {
    local parent pid
    # Its parent does not reap it.
    bash -c 'LEFT=/tct/ended sleep 1000 & echo $! >"$1"; exec sleep 1000' sh "$work/ended" >/dev/null 2>&1 &
    parent=$!
    retry test -s "$work/ended"
    pid=$(<"$work/ended")
    retry refers "$pid" /tct/ended
    kill -KILL "$pid"
    retry grep -q '^State:.Z' "/proc/$pid/status"
    if refers "$pid" /tct/ended; then expect "a process that has ended" "left behind" gone; fi
    kill "$parent"
}

start_killed_while_it_waits_leaves_nothing() {
    local dir=$work/waits pid
    # Another start holds the turn.
    mkdir "$work/turn"
    exec {lock}>"$work/turn/sailor-testcluster.lock"
    flock "$lock"
    TMPDIR=$work/turn "$tc" start "$dir" "${two_nodes[@]}" {lock}>&- &
    pid=$!
    retry grep -qszxF "SAILOR_TESTCLUSTER_MARK=$dir" "/proc/$pid/environ"
    sleep 0.5 # until it waits
    kill -KILL "$pid"
    wait "$pid" || true
    expect_nothing_left "$dir"
    exec {lock}>&-
}

starts_and_stops_without_a_trace() {
    local dir=$work/plain
    "$tc" start "$dir" "${two_nodes[@]}"
    "$tc" status "$dir"
    (
        use "$dir"
        # A task without environment whose parent is gone, and a step that is running at stop.
        srun -n1 bash -c 'env -i sleep 1000 & sleep 1000' &
        retry bash -c '[[ $(squeue -h -t R -o %i) ]]'
    )
    "$tc" stop "$dir"
    expect_nothing_left "$dir"
    "$tc" stop "$dir" # once more is no error
    if "$tc" status "$dir"; then expect "status of a stopped cluster" success failure; fi
}

keeps_accounts() {
    local dir=$work/accounts owner id
    if ! command -v mariadbd >/dev/null || ! command -v slurmdbd >/dev/null; then
        status=0
        "$tc" start "$dir" --accounting "${two_nodes[@]}" 2>"$work/message" || status=$?
        expect "status without slurmdbd" "$status" 77
        return
    fi
    sleep 1000 >/dev/null 2>&1 & # else `check` would wait for it
    owner=$!
    "$tc" start "$dir" --accounting --owner "$owner" "${two_nodes[@]}"
    [[ $("$tc" status "$dir") == *mariadbd*slurmdbd* ]]
    (
        use "$dir"
        expect "default account" "$(sacctmgr -nP show user "$(id -un)" format=defaultaccount)" everybody
        id=$(sbatch --parsable --wait --output=/dev/null --wrap 'exit 3') || true
        # shellcheck disable=SC2016
        retry bash -c '[[ $(sacct -nXPj "$1" -o account,state,exitcode) == "everybody|FAILED|3:0" ]]' sh "$id"
    )
    kill "$owner"
    expect_nothing_left "$dir"
    "$tc" start "$dir" --accounting "${two_nodes[@]}" # what was left is no hindrance
    "$tc" stop "$dir"
    expect_nothing_left "$dir"
}

refuses_bad_requests() {
    local out long=/tmp/0123456789012345678901234567890123456789012345678901234567890
    mkdir "$work/foreign" && touch "$work/foreign/precious"
    out=$("$tc" start "$work/foreign" 2>&1) && exit 1
    expect "message" "${out#*is not empty}" " and holds no test cluster; it would be wiped, so use another directory"
    [[ -e $work/foreign/precious ]]
    out=$("$tc" start "$long" 2>&1) && exit 1
    [[ $out == *"at most 60"* ]]
    out=$("$tc" start "$work/x" --nodes cpu:2:-:4:1:1:4000 2>&1) && exit 1
    [[ $out == *"gres-type '-' and gpus 0"* ]]
    out=$("$tc" start "$work/x" --nodse cpu 2>&1) && exit 1
    [[ $out == *"unknown option '--nodse'"* ]]
    out=$("$tc" run --port 2>&1) && exit 1
    [[ ! -e $work/x ]]
}

runs_two_at_once() {
    local first second
    "$tc" start "$work/one" "${two_nodes[@]}" &
    first=$!
    "$tc" start "$work/two" --nodes big:1:-:0:8:2:9000,small:3:-:0:2:1:2000 &
    second=$!
    wait "$first"
    wait "$second"
    if "$tc" start "$work/one" "${two_nodes[@]}" 2>"$work/message"; then expect "a second start in a DIR" success failure; fi
    grep -q "a cluster is running in $work/one" "$work/message"
    "$tc" stop "$work/one"
    expect_nothing_left "$work/one"
    expect "status of the other" "$("$tc" status "$work/two" >/dev/null && echo fine)" fine
    expect "partitions" "$(use "$work/two" && sinfo -h -o '%P=%N' | sort | paste -sd ' ')" \
        "big*=big1 mixed=big1,small[1-3] small=small[1-3]"
    "$tc" stop "$work/two"
    expect_nothing_left "$work/two"
}

owner_killed_leaves_nothing() {
    local dir=$work/owned owner
    sleep 1000 >/dev/null 2>&1 & # else `check` would wait for it
    owner=$!
    "$tc" start "$dir" "${two_nodes[@]}" --owner "$owner" --remove-on-exit
    (
        use "$dir"
        srun -n1 sleep 1000 &
        retry bash -c '[[ $(squeue -h -t R -o %i) ]]'
    )
    kill -KILL "$owner"
    expect_nothing_left "$dir"
    [[ ! -e $dir ]]
}

run_killed_leaves_nothing() {
    local pid dir
    TMPDIR=$work "$tc" run "${two_nodes[@]}" -- \
        bash -c "echo \$SAILOR_TESTCLUSTER_DIR >$work/dir.new; mv $work/dir.new $work/dir; srun -N2 sleep 1000" &
    pid=$!
    retry test -e "$work/dir"
    dir=$(<"$work/dir")
    sleep 0.2
    kill -KILL "$pid"
    expect_nothing_left "$dir"
    [[ ! -e $dir ]]
}

run_passes_status_and_input() {
    local status=0 out
    out=$(echo hello | "$tc" run "${two_nodes[@]}" -- bash -c 'cat; echo "$SAILOR_TESTCLUSTER_DIR"; srun -n1 -w cpu2 bash -c "exit 7"; exit 9' 2>"$work/message") || status=$?
    expect status "$status" 9
    expect input "${out%%$'\n'*}" hello
    [[ ! -e ${out#*$'\n'} ]]
    # It is said where a job failed.
    grep -q 'is FAILED on cpu2, exit code 7:0' "$work/message" || { cat "$work/message" && exit 1; }
    expect_nothing_left "${out#*$'\n'}"
}

start_killed_at_any_moment() {
    local dir=$work/k round pid within
    for round in 1 2 3 4 5 6 7 8 9 10; do
        # Every other time early, while it takes over from the `start` killed before.
        within=650
        if ((round % 2 == 0)); then within=200; fi
        "$tc" start "$dir" "${two_nodes[@]}" 2>/dev/null &
        pid=$!
        sleep "0.$(printf '%03d' $((RANDOM % within)))"
        # Killed after it was done: the cluster lives, and has to be stopped.
        if kill -KILL "$pid" 2>/dev/null; then echo "round $round: killed"; fi
        wait "$pid" || true
        if [[ -e $dir/run/up ]]; then "$tc" stop "$dir"; fi
        # Every other time at once, without leaving the watchdog time to clean up.
        if ((round % 2 == 0)); then expect_nothing_left "$dir"; fi
    done
    "$tc" start "$dir" "${two_nodes[@]}"
    expect "nodes" "$(use "$dir" && srun -N2 bash -c 'echo $SLURMD_NODENAME' | sort | paste -sd ' ')" "cpu1 cpu2"
    "$tc" stop "$dir"
    expect_nothing_left "$dir"
}

# ---- with the default cluster

srun_and_sbatch_work() {
    use "$work/c"
    expect "srun" "$(srun -N3 bash -c 'echo $SLURMD_NODENAME' | sort | paste -sd ' ')" "gh1 gh2 gh3"
    expect "partitions" "$(sinfo -h -o '%P=%N' | sort | paste -sd ' ')" \
        "a100=a[1-2] debug=gh[1-4] low=gh[1-4] mixed=a[1-2],gh[1-4],v[1-2] normal*=gh[1-4] v100=v[1-2]"
    cat >"$work/job" <<'JOB'
#!/bin/bash
#SBATCH --nodes=2 --partition=a100 --gres=gpu:a100:1
set -e
trap 'echo "failed at line $LINENO on $SLURMD_NODENAME"' ERR
srun bash -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES'
echo done
JOB
    id=$(sbatch --parsable --output="$work/job.out" "$work/job")
    retry grep -qs "done" "$work/job.out"
    expect "output of job $id" "$(sort "$work/job.out" | paste -sd ' ')" "a1 0 a2 0 done"
}

fake_gpus_are_visible() {
    use "$work/c"
    expect "devices of gh1" "$(srun -N1 --gres=gpu:gh200:4 printenv CUDA_VISIBLE_DEVICES)" 0,1,2,3
    expect "devices of tasks" "$(srun -N1 -n2 -p v100 --gpus-per-task=1 printenv CUDA_VISIBLE_DEVICES | sort -u | wc -l)" 2
    if srun --gres=gpu:gh200:5 true 2>"$work/message"; then expect "5 of 4 GPUs" granted refused; fi
    grep -q 'Requested node configuration is not available' "$work/message"
}

nodes_die_and_return() {
    use "$work/c"
    "$tc" kill-node "$work/c" gh4
    if "$tc" status "$work/c" >"$work/status"; then expect "status without gh4" success failure; fi
    grep -q '^slurmd.gh4 missing' "$work/status"
    "$tc" start-node "$work/c" gh4
    # The task itself has to run: srun of 22.05 exits with 0 when a node dies while it is launched.
    srun -w gh4 bash -c "touch $work/task_runs; exec sleep 1000" &
    retry test -e "$work/task_runs"
    "$tc" crash-node "$work/c" gh4
    scontrol update nodename=gh4 state=down reason=test
    wait $! && expect "job on a crashed node" success failure
    "$tc" start-node "$work/c" gh4
    expect "gh4" "$(srun -w gh4 bash -c 'echo $SLURMD_NODENAME')" gh4
}

mpi_runs_over_two_nodes() {
    cat >"$work/hello.c" <<'C'
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char** argv) {
    int rank, size, sum;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("%d/%d %s sum %d\n", rank, size, getenv("SLURMD_NODENAME"), sum);
    MPI_Finalize();
    return 0;
}
C
    mpicc -o "$work/hello" "$work/hello.c"
    use "$work/c"
    expect "ranks" "$(timeout 30 srun -N2 --ntasks-per-node=2 "$work/hello" | sort | paste -sd ,)" \
        "0/4 gh1 sum 6,1/4 gh1 sum 6,2/4 gh2 sum 6,3/4 gh2 sum 6"
}

namespaced_nodes_have_names() {
    local status=0
    "$tc" run "${two_nodes[@]}" --hostnames namespaced -- bash -c \
        "srun -N2 hostname | sort >$work/names; srun -N2 ${have_mpi:+$work/hello} ${have_mpi:-true} | sort >$work/ranks" 2>"$work/message" || status=$?
    if grep -q 'is not permitted here' "$work/message"; then return 0; fi
    cat "$work/message"
    expect status "$status" 0
    expect names "$(paste -sd ' ' "$work/names")" "cpu1 cpu2"
    [[ -z $have_mpi ]] || expect ranks "$(paste -sd , "$work/ranks")" "0/2 cpu1 sum 1,1/2 cpu2 sum 1"
}

have_mpi=''
suffix=''
if ((EUID != 0)); then suffix=" as $(id -un)"; fi
if [[ ${1:-all} == all ]]; then
    check "refuses bad requests" refuses_bad_requests
    check "counts no process that has ended" counts_no_process_that_has_ended
    check "a start that is killed while it waits leaves nothing behind" start_killed_while_it_waits_leaves_nothing
    check "start and stop leave nothing behind" starts_and_stops_without_a_trace
    check "two clusters run side by side" runs_two_at_once
    check "a cluster keeps accounts" keeps_accounts
    check "a killed run leaves nothing behind" run_killed_leaves_nothing
    check "run passes input and exit status, and says which job failed" run_passes_status_and_input
    check "start can be killed at any moment" start_killed_at_any_moment
fi
check "a killed owner leaves nothing behind" owner_killed_leaves_nothing
if "$tc" start "$work/c"; then
    check "srun and sbatch work" srun_and_sbatch_work
    check "fake GPUs are visible to jobs" fake_gpus_are_visible
    if command -v mpicc >/dev/null; then
        have_mpi=yes
        check "MPI runs over two nodes" mpi_runs_over_two_nodes
    else
        echo "ok - MPI runs over two nodes$suffix # skipped: mpicc is not installed"
    fi
    if [[ ${1:-all} == all ]]; then check "nodes die and return" nodes_die_and_return; fi
    "$tc" stop "$work/c"
else
    echo "not ok - the default cluster starts$suffix"
    failed=$((failed + 1))
fi
check "namespaced nodes have names of their own" namespaced_nodes_have_names

if ((EUID == 0)); then
    # Once more, the essential part, as an ordinary user: of a copy, since root's checkout may be closed to others. Not
    # as nobody: for Slurm 26.05 that is no user.
    copy=$work/copy
    mkdir -p "$copy/tests/slurm" "$copy/slurm"
    cp -- "${BASH_SOURCE[0]}" "$copy/tests/slurm/test.sh"
    cp -r -- "${tc%/*}" "$copy/slurm/"
    chmod -R a+rX "$work"
    (cd / && setpriv --reuid=daemon --regid=daemon --clear-groups env -u TMPDIR HOME=/ "$BASH" "$copy/tests/slurm/test.sh" essential) ||
        failed=$((failed + 1))
fi
((failed == 0)) || echo "$failed of $count tests failed$suffix" >&2
exit $((failed > 0))
