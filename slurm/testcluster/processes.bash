# shellcheck shell=bash
# shellcheck disable=SC2154  # dir is set by testcluster
# Which processes belong to a test cluster, and how they are ended.
#
# Sourced by `testcluster`. There are no pid files: a process belongs to the cluster of
# directory $dir when the kernel says so. Thus a reused pid is never taken for ours, and
# a daemon is found even when whoever started it was killed before it could write a line.
#   - Daemons, and the `start` that forks them (also its forks that have not called exec
#     yet), carry SAILOR_TESTCLUSTER_MARK=$dir and SAILOR_TESTCLUSTER_ROLE.
#   - slurmstepd and slurmscriptd (a helper of slurmctld) overwrite their environment with
#     their title, but hold the log file of their slurmd or slurmctld open.
#   - Job tasks have SLURM_CONF=$dir/slurm.conf and SLURMD_NODENAME. Tasks that cleaned
#     their environment are found as descendants of a slurmstepd.
#   - Slurm's commands have the same SLURM_CONF. They cannot outlive the cluster usefully:
#     srun would wait for ever.
#   - The command of `run` carries SAILOR_TESTCLUSTER_RUN=$dir, the watchdog
#     SAILOR_TESTCLUSTER_WATCHDOG=$dir.

declare -gA role_of=() # pid -> start.PID | munged | mariadbd | slurmdbd | slurmctld | slurmscriptd | slurmd.NODE | stepd.NODE | task.NODE | client | command | watchdog

# A descriptor that never delivers anything: `read -t` on it sleeps without a fork.
exec {never}<> <(:)
pause() { read -r -t "$1" -u "$never" || true; } # seconds

now_us() { REPLY=${EPOCHREALTIME//[.,]/}; }

# PID -> REPLY="PID:STARTTIME", which stays unique when pids are reused. Fails for a
# process that is gone, or a zombie: killed, but not yet reaped by its parent.
identify() {
    local stat='' fields
    { IFS= read -r -d '' stat <"/proc/$1/stat" || true; } 2>/dev/null
    [[ -n $stat ]] || return 1
    read -r -a fields <<<"${stat##*) }" # from field 3 (state) on; field 22 is the start time
    [[ ${fields[0]} != [ZX] ]] || return 1
    REPLY="$1:${fields[19]}"
}

alive() { # PID:STARTTIME
    identify "${1%%:*}" && [[ $REPLY == "$1" ]]
}

environment_of() { # PID -> array `entries`; empty if the process is gone or not ours to read
    entries=()
    { mapfile -d '' -t entries <"/proc/$1/environ"; } 2>/dev/null || true
}

# Fills role_of with all processes of $dir except this one.
survey() {
    local files file files_held pid entry entries mark role node run watchdog conf name
    role_of=()
    # `exec env -u`: the searching process must not find itself.
    mapfile -t files < <(exec env -u SAILOR_TESTCLUSTER_MARK -u SAILOR_TESTCLUSTER_RUN \
        -u SAILOR_TESTCLUSTER_WATCHDOG -u SLURM_CONF grep -lzxF \
        -e "SAILOR_TESTCLUSTER_MARK=$dir" -e "SAILOR_TESTCLUSTER_RUN=$dir" \
        -e "SAILOR_TESTCLUSTER_WATCHDOG=$dir" -e "SLURM_CONF=$dir/slurm.conf" \
        /proc/[0-9]*/environ 2>/dev/null)
    for file in "${files[@]}"; do
        pid=${file//[!0-9]/}
        [[ $pid != "$$" ]] || continue
        environment_of "$pid"
        mark='' role='' node='' run='' watchdog='' conf=''
        for entry in "${entries[@]}"; do
            case $entry in
            SAILOR_TESTCLUSTER_MARK=*) mark=${entry#*=} ;;
            SAILOR_TESTCLUSTER_ROLE=*) role=${entry#*=} ;;
            SAILOR_TESTCLUSTER_RUN=*) run=${entry#*=} ;;
            SAILOR_TESTCLUSTER_WATCHDOG=*) watchdog=${entry#*=} ;;
            SLURM_CONF=*) conf=${entry#*=} ;;
            SLURMD_NODENAME=*) node=${entry#*=} ;;
            esac
        done
        if [[ $watchdog == "$dir" ]]; then
            role_of[$pid]=watchdog
        elif [[ $mark == "$dir" ]]; then
            role_of[$pid]=${role:-slurmscriptd} # whose title hides a part
        elif [[ -n $node && $conf == "$dir/slurm.conf" ]]; then
            role_of[$pid]=task.$node
        elif [[ $run == "$dir" ]]; then
            role_of[$pid]="command"
        elif [[ $conf == "$dir/slurm.conf" ]]; then
            { read -r name <"/proc/$pid/comm"; } 2>/dev/null || continue
            case $name in srun | salloc | sbatch | sattach | squeue | sinfo | scontrol | scancel | sacct | sacctmgr) role_of[$pid]=client ;; esac
        fi
    done
    mapfile -t files < <(exec env -u SAILOR_TESTCLUSTER_MARK -u SAILOR_TESTCLUSTER_RUN \
        grep -lxE 'slurm(stepd|scriptd|ctld)' /proc/[0-9]*/comm 2>/dev/null)
    for file in "${files[@]}"; do
        pid=${file//[!0-9]/}
        case ${role_of[$pid]:-} in slurmctld | slurmscriptd) continue ;; esac
        files_held=$(readlink -- "/proc/$pid/fd/"* 2>/dev/null) || true
        if [[ $files_held == *"$dir/log/slurmctld.log"* ]]; then
            role_of[$pid]=slurmscriptd
        elif [[ $files_held == *"$dir/log/slurmd."* ]]; then
            node=${files_held#*"$dir/log/slurmd."}
            role_of[$pid]=stepd.${node%%.log*}
        fi
    done
    return 0
}

# Adds to role_of what descends from a daemon, a slurmstepd or a task.
survey_descendants() {
    local file stat fields pid grew=yes
    local -A parent_of=()
    for file in /proc/[0-9]*/stat; do
        stat=''
        { IFS= read -r -d '' stat <"$file" || true; } 2>/dev/null
        [[ -n $stat ]] || continue
        read -r -a fields <<<"${stat##*) }"
        [[ ${fields[0]} == [ZX] ]] || parent_of[${file//[!0-9]/}]=${fields[1]}
    done
    while [[ -n $grew ]]; do
        grew=''
        for pid in "${!parent_of[@]}"; do
            [[ -z ${role_of[$pid]:-} && $pid != "$$" ]] || continue
            case ${role_of[${parent_of[$pid]}]:-} in
            slurm* | stepd.* | task.*)
                role_of[$pid]=task.${role_of[${parent_of[$pid]}]#*.}
                grew=yes
                ;;
            esac
        done
    done
}

# A `start` that waits for its turn on the same DIR; not a fork that a killed one left.
is_living_start() { # PID
    local owner=${role_of[$1]#start.} entry entries
    [[ ${role_of[$1]} == start.* ]] || return 1
    environment_of "$owner"
    for entry in "${entries[@]}"; do
        [[ $entry == "SAILOR_TESTCLUSTER_ROLE=start.$owner" ]] && return 0
    done
    return 1
}

signal_roles() { # SIGNAL PATTERN: those in role_of; fails if there is none
    local pid found=1
    for pid in "${!role_of[@]}"; do
        # shellcheck disable=SC2053  # the right side is a pattern
        if [[ ${role_of[$pid]} == $2 ]]; then
            kill "-$1" "$pid" 2>/dev/null || true
            found=0
        fi
    done
    return $found
}

end_roles() { # PATTERN MILLISECONDS: TERM, and after so long KILL
    local deadline
    survey
    signal_roles TERM "$1" || return 0
    now_us
    deadline=$((REPLY + $2 * 1000))
    while
        pause 0.02
        survey
        now_us
        ((REPLY < deadline))
    do
        signal_roles 0 "$1" || return 0
    done
    signal_roles KILL "$1" || true
}

# Ends every daemon, slurmstepd, job task and Slurm command of $dir.
#   gently      slurmctld first, so that it sees no node go down; daemons get TERM
#   at-once     KILL
#   --starts    a `start` in progress for this directory as well
# Fails if something is left after 10 s.
stop_processes() { # gently|at-once [--starts]
    local pid left deadline
    if [[ ${2:-} == --starts ]]; then
        survey
        signal_roles KILL 'start.*' || true
    fi
    if [[ $1 == gently ]]; then
        # It saves its state at once, but may then wait long for an unfinished message.
        end_roles slurmctld 500
        # No TERM for slurmstepd: with slurmctld gone it would retry its last message for 10 s.
        survey
        survey_descendants
        signal_roles KILL 'task.*' || true
        signal_roles KILL 'stepd.*' || true
        end_roles 'slurmd.*' 2000
        end_roles slurmdbd 1000
        end_roles mariadbd 2000
        end_roles munged 1000
    fi
    now_us
    deadline=$((REPLY + 10000000))
    while :; do
        survey
        survey_descendants
        left=''
        for pid in "${!role_of[@]}"; do
            case ${role_of[$pid]} in
            watchdog | command) continue ;;
            start.*) if [[ ${2:-} != --starts ]] && is_living_start "$pid"; then continue; fi ;;
            esac
            kill -KILL "$pid" 2>/dev/null || true
            left+=" $pid(${role_of[$pid]})"
        done
        [[ -n $left ]] || return 0
        now_us
        if ((REPLY > deadline)); then
            echo "testcluster: processes of $dir cannot be ended:$left" >&2
            return 1
        fi
        pause 0.02
    done
}

end_watchdogs() { # [PID: one to leave alone]
    while
        survey
        if [[ -n ${1:-} ]]; then unset "role_of[$1]"; fi
        signal_roles KILL watchdog
    do
        pause 0.01
    done
}

# The commands of `run`, and what they left in the background.
end_commands() {
    end_roles command 1000
    while
        survey
        signal_roles KILL command
    do
        pause 0.01
    done
}

# Closes every descriptor above 2 in a subshell that is about to exec: a daemon must not
# hold a lock of ours, nor the pipe whose end a test driver is waiting for.
close_descriptors() {
    local fd
    for fd in "/proc/$BASHPID/fd/"*; do
        fd=${fd##*/}
        # 255 is bash's own, closed by exec.
        if ((fd > 2 && fd != 255)); then eval "exec $fd>&-"; fi
    done
}

# Starts a daemon of the cluster in the background; its pid is $!.
launch() { # ROLE COMMAND...
    local role=$1
    shift
    (
        close_descriptors
        cd "$dir" || exit
        unset SAILOR_TESTCLUSTER_RUN
        export SAILOR_TESTCLUSTER_MARK=$dir SAILOR_TESTCLUSTER_ROLE=$role SLURM_CONF=$dir/slurm.conf
        exec setsid "$@" </dev/null >>"$dir/log/$role.out" 2>&1
    ) &
}
