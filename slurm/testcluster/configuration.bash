# shellcheck shell=bash
# shellcheck disable=SC2154  # dir and the options are set by testcluster
# Reads the node and partition specifications, and writes the cluster's configuration
# files into $dir. Sourced by `testcluster`; problems end the program through `usage_error`.

default_nodes=gh:4:gh200:4:288:4:854000,a:2:a100:4:128:2:512000,v:2:v100:4:40:2:384000
default_partitions='normal=gh;debug=gh MaxTime=30 MaxNodes=2 PriorityTier=20;low=gh PriorityTier=1;mixed=ALL;a100=a;v100=v'

declare -ga kinds=()      # node names without number, in the order given
declare -gA kind_spec=()  # kind -> count:gres-type:gpus:cpus:sockets:memory
declare -gA kind_hosts=() # kind -> gh[1-4]
declare -ga node_names=()

parse_nodes() { # SPEC
    local specs spec name count type gpus cpus sockets memory index rest
    local hint="want name:count:gres-type:gpus:cpus:sockets:memory_mib, such as gh:4:gh200:4:288:4:854000 or cpu:2:-:0:1:1:4000"
    IFS=, read -r -a specs <<<"$1"
    ((${#specs[@]} > 0)) || usage_error "--nodes is empty; $hint"
    for spec in "${specs[@]}"; do
        IFS=: read -r name count type gpus cpus sockets memory rest <<<"$spec"
        [[ $name =~ ^[a-z]([a-z0-9-]*[a-z])?$ ]] ||
            usage_error "--nodes: name '$name' in '$spec' must be of a-z, 0-9 and '-', and not end with a digit; $hint"
        [[ $type =~ ^(-|[a-z][a-z0-9_]*)$ ]] || usage_error "--nodes: gres-type '$type' in '$spec' is no word; $hint"
        for index in "$count" "$cpus" "$sockets" "$memory"; do
            [[ $index =~ ^[1-9][0-9]{0,8}$ ]] ||
                usage_error "--nodes: '$index' in '$spec' is not a number above 0; $hint"
        done
        [[ -z $rest && $gpus =~ ^(0|[1-9][0-9]?)$ ]] || usage_error "--nodes: bad gpus or too many fields in '$spec'; $hint"
        [[ ($type == - && $gpus == 0) || ($type != - && $gpus != 0) ]] ||
            usage_error "--nodes: '$spec': a node without GPUs has gres-type '-' and gpus 0, any other has neither"
        ((cpus % sockets == 0)) || usage_error "--nodes: '$spec': cpus is not a multiple of sockets"
        [[ -z ${kind_spec[$name]:-} ]] || usage_error "--nodes: name '$name' is given twice"
        kinds+=("$name")
        kind_spec[$name]=$count:$type:$gpus:$cpus:$sockets:$memory
        if ((count == 1)); then kind_hosts[$name]=${name}1; else kind_hosts[$name]="${name}[1-$count]"; fi
        for ((index = 1; index <= count; index++)); do node_names+=("$name$index"); done
    done
    ((${#node_names[@]} <= 256)) || usage_error "--nodes asks for ${#node_names[@]} nodes; the limit is 256"
}

# One partition for every kind of node, and one with all.
partitions_of_kinds() {
    local kind
    REPLY=''
    [[ -z ${kind_spec[mixed]:-} ]] || usage_error "nodes named 'mixed' need --partitions, for one of that name is made by default"
    for kind in "${kinds[@]}"; do REPLY+="$kind=$kind;"; done
    REPLY+=mixed=ALL
}

# NODES of a partition -> REPLY, with the name of a kind replaced by all its nodes
expand_kinds() {
    local rest=$1 token
    REPLY=''
    while [[ $rest =~ ^([^],[]+(\[[^][]*\])?)(,|$) ]]; do
        token=${BASH_REMATCH[1]}
        rest=${rest:${#BASH_REMATCH[0]}}
        REPLY+=${REPLY:+,}${kind_hosts[$token]:-$token}
    done
    [[ -z $rest && -n $REPLY ]]
}

# SPEC LIMIT_MINUTES LARGEST_DEFAULT_MEM -> REPLY, the PartitionName lines
parse_partitions() {
    local entries entry name words nodes lines='' default=' Default=YES'
    local hint="want name=NODES [Key=Value ...];..., such as normal=gh;debug=gh[1-2] MaxTime=30;mixed=ALL"
    IFS=';' read -r -a entries <<<"$1"
    ((${#entries[@]} > 0)) || usage_error "--partitions is empty; $hint"
    for entry in "${entries[@]}"; do
        [[ $entry =~ ^[[:space:]]*([A-Za-z][A-Za-z0-9_-]*)=([^[:space:]=]+)([[:space:]].*)?$ ]] ||
            usage_error "--partitions: cannot read '$entry'; $hint"
        name=${BASH_REMATCH[1]} nodes=${BASH_REMATCH[2]} words=${BASH_REMATCH[3]}
        expand_kinds "$nodes" || usage_error "--partitions: cannot read the nodes '$nodes' of '$name'; $hint"
        lines+="PartitionName=$name Nodes=$REPLY$default$words"
        [[ $words == *MaxTime=* ]] || lines+=" MaxTime=$2 DefaultTime=$(($2 < 30 ? $2 : 30))"
        [[ $words == *DefMemPer* ]] || lines+=" DefMemPerCPU=$3"
        [[ $words == *PriorityTier=* ]] || lines+=" PriorityTier=10"
        lines+=$' State=UP\n'
        default=''
    done
    REPLY=$lines
}

# The partition lines do not depend on the ports: made once, so that mistakes come early.
plan_partitions() {
    local kind count cpus memory per_cpu=100
    for kind in "${kinds[@]}"; do
        IFS=: read -r count _ _ cpus _ memory <<<"${kind_spec[$kind]}"
        if ((memory / cpus < per_cpu)); then per_cpu=$((memory / cpus > 0 ? memory / cpus : 1)); fi
    done
    if [[ -z $partitions ]]; then
        if [[ $nodes == "$default_nodes" ]]; then partitions=$default_partitions; else
            partitions_of_kinds
            partitions=$REPLY
        fi
    fi
    parse_partitions "$partitions" "$time_limit" "$per_cpu"
    partition_lines=$REPLY
}

# TCP ports in use in this network namespace, by whoever -> keys of `taken`
read_taken_ports() {
    local file lines line address state
    taken=()
    for file in /proc/net/tcp /proc/net/tcp6; do
        [[ -r $file ]] || continue
        mapfile -t -s 1 lines <"$file"
        for line in "${lines[@]}"; do
            read -r _ address _ state _ <<<"$line"
            # 06 is TIME_WAIT, which does not hinder a bind with SO_REUSEADDR.
            if [[ $state != 06 ]]; then taken[$((16#${address##*:}))]=1; fi
        done
    done
}

ports_are_taken() { # FIRST COUNT: all of them
    local port
    local -A taken
    read_taken_ports
    for ((port = $1; port < $1 + $2; port++)); do
        [[ -n ${taken[$port]:-} ]] || return 1
    done
}

# COUNT -> REPLY, the first of so many free consecutive ports, below those that the kernel
# gives to clients.
choose_ports() {
    local -A taken
    local first=10000 end=32000 lowest attempt port free
    { read -r lowest _ </proc/sys/net/ipv4/ip_local_port_range; } 2>/dev/null || lowest=$end
    if ((lowest - $1 < end && lowest > first + 2 * $1)); then end=$((lowest - $1)); fi
    read_taken_ports
    for ((attempt = 0; attempt < 500; attempt++)); do
        REPLY=$((first + (RANDOM * 32768 + RANDOM) % (end - first)))
        free=yes
        for ((port = REPLY; port < REPLY + $1; port++)); do
            if [[ -n ${taken[$port]:-} ]]; then free='' && break; fi
        done
        [[ -z $free ]] || return 0
    done
    fail "no $1 consecutive free TCP ports between $first and $end; use --port N"
}

write_gres_conf() {
    local kind type gpus cpus sockets gpu first last cores
    {
        echo AutoDetect=off
        for kind in "${kinds[@]}"; do
            IFS=: read -r _ type gpus cpus sockets _ <<<"${kind_spec[$kind]}"
            for ((gpu = 0; gpu < gpus; gpu++)); do
                # slurmd wants a character device behind the name, and takes the GPU's number
                # from the name. A link to /dev/null is one that needs no privilege. Without
                # File= there would be no CUDA_VISIBLE_DEVICES.
                ln -sfn /dev/null "$dir/gpu/nvidia$gpu"
                # Whole sockets: Slurm 24.11 refuses a node that names parts of one.
                cores=''
                if ((sockets % gpus == 0 || gpus % sockets == 0)); then
                    first=$((gpu * sockets / gpus)) last=$(((gpu * sockets + sockets - 1) / gpus))
                    cores=" Cores=$((first * cpus / sockets))-$(((last + 1) * cpus / sockets - 1))"
                fi
                local of_type=" Type=$type"
                [[ $type != untyped ]] || of_type=''
                echo "NodeName=${kind_hosts[$kind]} Name=gpu$of_type File=$dir/gpu/nvidia$gpu$cores"
            done
        done
    } >"$dir/gres.conf"
}

# FIRST_PORT: the controller's; the nodes follow.
write_slurm_conf() {
    local host user kind count type gpus cpus sockets memory index number=0 address gres feature
    host=$(uname -n)
    host=${host%%.*}
    user=$(id -un)
    {
        cat <<CONF
ClusterName=testcluster
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$1
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits cred_expire + 1 s; Slurm's own 120 s would be long for a test.
AuthInfo=socket=$dir/munge/socket,cred_expire=$requeue_delay
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
# Per node: the PMIx plugins of two nodes would collide in one directory.
TmpFS=$dir/tmp/%n
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd.%n.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.%n.log
SlurmctldDebug=info
SlurmdDebug=info
MailProg=/bin/true
PlugStackConfig=$dir/plugstack.conf
# No cgroups and no binding: any container will do. The hardware of the nodes is believed.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
SchedulerType=sched/backfill
SchedulerParameters=permit_job_expansion,batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
# Otherwise a job beyond the limits of its partition is accepted, and pends for ever.
EnforcePartLimits=ALL
# A rank that dies ends its step; otherwise the others hang in their collective.
KillOnBadExit=1
JobRequeue=1
ReturnToService=2
SlurmdTimeout=$slurmd_timeout
SlurmctldTimeout=5
MessageTimeout=$message_timeout
KillWait=2
CompleteWait=0
InactiveLimit=0
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc=$dir/log/jobcomp.log
CONF
        for kind in "${kinds[@]}"; do
            IFS=: read -r count type gpus cpus sockets memory <<<"${kind_spec[$kind]}"
            gres='' feature=$kind,cpu
            if ((gpus > 0)); then gres=" Gres=gpu:$type:$gpus" feature=$kind,$type,gpu; fi
            if [[ $type == untyped ]]; then gres=" Gres=gpu:$gpus" feature=$kind,gpu; fi
            for ((index = 1; index <= count; index++)); do
                number=$((number + 1))
                address="NodeHostname=$host NodeAddr=127.0.0.1"
                if [[ $hostnames == namespaced ]]; then
                    node_address "$number"
                    address="NodeAddr=$REPLY"
                fi
                echo "NodeName=$kind$index $address Port=$(($1 + number)) CPUs=$cpus Sockets=$sockets" \
                    "CoresPerSocket=$((cpus / sockets)) ThreadsPerCore=1 RealMemory=$memory$gres Feature=$feature State=UNKNOWN"
            done
        done
        printf '%s' "$partition_lines"
    } >"$dir/slurm.conf"
    export SLURM_CONF=$dir/slurm.conf
    if [[ $mpi == auto ]]; then
        # The list is printed to stderr, indented. Debian's 26.05 has no pmix, and MPICH starts by pmi2.
        local types
        types=$(srun --mpi=list 2>&1) || true
        for mpi in pmix pmi2 none; do
            if [[ $types =~ (^|[[:space:]])$mpi($|[[:space:]]) ]]; then break; fi
        done
    fi
    echo "MpiDefault=$mpi" >>"$dir/slurm.conf"
    if [[ -n $conf_extra ]]; then append_conf_extra; fi
}

# Its keys replace ours: a key given twice would make every Slurm command complain.
append_conf_extra() {
    local keys
    keys=$(sed -nE 's/^[[:space:]]*([A-Za-z]+)=.*/\1/p' "$conf_extra" | grep -viE '^(NodeName|NodeSet|PartitionName|DownNodes)$' | paste -sd '|') || true
    if [[ -n $keys ]]; then sed -i -E "/^($keys)=/Id" "$dir/slurm.conf"; fi
    cat -- "$conf_extra" >>"$dir/slurm.conf"
}

node_address() { REPLY=127.0.$(($1 / 250 + 1)).$(($1 % 250 + 1)); } # NUMBER, from 1

# The /etc/hosts that namespaced nodes see.
write_hosts() {
    local name number=0
    {
        echo "127.0.0.1 localhost $(uname -n)"
        for name in "${node_names[@]}"; do
            number=$((number + 1))
            node_address "$number"
            echo "$REPLY $name"
        done
    } >"$dir/hosts"
}
