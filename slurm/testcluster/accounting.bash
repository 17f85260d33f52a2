# shellcheck shell=bash
# shellcheck disable=SC2154  # dir and the options are set by testcluster
# An accounting database of the cluster's own: MariaDB, which only a socket in $dir leads to, and slurmdbd.
# Sourced by `testcluster`.

need_accounting() {
    local program missing=''
    for program in mariadbd mariadb-install-db mariadb slurmdbd sacctmgr; do
        command -v "$program" >/dev/null || missing+=" $program"
    done
    if [[ -n $missing ]]; then
        say "--accounting: not installed:$missing; on Debian: apt-get install mariadb-server slurmdbd slurm-client"
        exit 77
    fi
}

# Once per cluster.
launch_database() {
    local words
    # A database that nobody keeps: no time is spent on having it on the disk.
    local options=(--datadir="$dir/database/data" --user="$(id -un)" --debug-no-sync
        --innodb-buffer-pool-size=32M --innodb-log-file-size=8M)
    mkdir -m 700 "$dir/database"
    words=$(mariadb-install-db --no-defaults "${options[@]}" --auth-root-authentication-method=normal --skip-test-db \
        --skip-name-resolve 2>&1) ||
        fail "mariadb-install-db failed: $(tail -n 5 <<<"$words")"
    # Who can reach the socket may do everything: the directory is ours alone.
    launch mariadbd mariadbd --no-defaults "${options[@]}" --socket="$dir/database/socket" --skip-networking \
        --skip-grant-tables --pid-file="$dir/database/pid" --innodb-flush-log-at-trx-commit=0 \
        --innodb-lock-wait-timeout=900
    daemon_pid[mariadbd]=$!
}

# DESCRIPTION COMMAND...: until it succeeds. Returns 1 if a daemon's port was taken.
await_success() {
    local what=$1 deadline
    shift
    now_us
    deadline=$((REPLY + start_timeout * 1000000))
    until "$@" >/dev/null 2>&1; do
        check_daemons || return 1
        now_us
        ((REPLY < deadline)) || fail "$what within $start_timeout s"
        pause 0.05
    done
}
await_database() {
    await_success "mariadbd did not answer" mariadb --no-defaults -S "$dir/database/socket" -u root -e 'select 1'
}

write_slurmdbd_conf() { # PORT
    # slurmdbd insists on mode 600.
    (
        umask 077
        cat >"$dir/slurmdbd.conf" <<CONF
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=$1
SlurmUser=$(id -un)
DebugLevel=info
LogFile=$dir/log/slurmdbd.log
PidFile=$dir/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageLoc=slurm_acct_db
StorageUser=slurm
CommitDelay=0
CONF
    )
}
# Replaces "no accounting" in slurm.conf.
append_accounting() { # PORT
    local kind type types=''
    for kind in "${kinds[@]}"; do
        IFS=: read -r _ type _ <<<"${kind_spec[$kind]}"
        if [[ $type != - && $type != untyped && ",$types," != *",gres/gpu:$type,"* ]]; then types+=,gres/gpu:$type; fi
    done
    # What --conf-extra says is enforced stays.
    local enforce='AccountingStorageEnforce=associations,limits,qos'
    if grep -qi '^AccountingStorageEnforce=' "$dir/slurm.conf"; then enforce=''; fi
    sed -i '/^AccountingStorageType=/d' "$dir/slurm.conf"
    cat >>"$dir/slurm.conf" <<CONF
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=$1
AccountingStoragePass=$dir/munge/socket
AccountingStorageTRES=gres/gpu$types
$enforce
CONF
}

# PORT: slurmdbd answers, and knows the cluster and us. Returns 1 if the port was taken.
start_accounting() {
    write_slurmdbd_conf "$1"
    append_accounting "$1"
    # The server's host must have a name, and its socket is not where MariaDB's library looks.
    MYSQL_UNIX_PORT=$dir/database/socket SLURM_CONF=$dir/slurm.conf launch slurmdbd slurmdbd -D
    daemon_pid[slurmdbd]=$!
    await_success "slurmdbd did not answer" sacctmgr --immediate --noheader show cluster || return 1
    set_up_accounts
}
set_up_accounts() {
    local words said
    # A second try, after ports were taken, finds them there.
    [[ -z $(sacctmgr -nP show cluster testcluster format=cluster) ]] || return 0
    # root is in account 'root' already.
    for words in 'add cluster testcluster' 'add account everybody cluster=testcluster' \
        "add user $(id -un) account=everybody" "modify user $(id -un) set defaultaccount=everybody"; do
        # shellcheck disable=SC2086  # words
        said=$(sacctmgr --immediate $words 2>&1) || fail "sacctmgr $words: $said"
    done
}
