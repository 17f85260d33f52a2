#!/bin/bash
# Trials that take longer than a minute. CI runs a sample of each.
set -euo pipefail
# shellcheck source=ae_scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../ae_scripts/common.sh"

usage() {
  cat <<'TEXT'
tests/long.sh: the tests' trials with many more cases

Usage: tests/long.sh [--write FILE] [TRIAL...]

Needs the default build (cmake --preset default && cmake --build --preset default). Runs all trials, or those named:

  plans        1,000 random plans, and every model under every kind of plan, train as one rank does
  streams      every kind of plan, model and precision trains to the same bits on a device that is late
  gpus         every kind of plan trains on emulated GPUs over a fake NCCL
  nccl         every small plan trains in processes over the fake NCCL, one of which is killed
  kernels      every kernel compiles for every architecture; its registers and spills against tests/gpu/kernel_limits.txt
  survivals    200 trainings over sockets, of which ranks are killed at random moments: the survivors go on in their processes
  elastic      250 elastic trainings whose ranks, nodes and controllers are killed (200) and frozen (50)
  elastic-changes  40 more that get company, leave a node, change their plan or stop, or whose controller freezes
  elastic-scale    recovery from a loss among 64 to 1,024 ranks, rehearsed
  elastic-sixteen  39 of 16 ranks, three of each kind
  kills        100 jobs are killed at random moments and go on under another plan
  writers      500 writers of a profile store are killed at random moments: what was acknowledged is there
  folders      two trainings contend for one folder of checkpoints, over 1,000 looks each
  searches     2,000 random clusters: the planner against brute force
  laws         200 small random clusters: no plan is worse than that of a cluster with less
  threads      what has threads runs under the thread sanitizer
  sanitizers   every unit test runs under the address and undefined-behaviour sanitizers
  builds       every plan of the tests trains to the same bits as at COMMIT ($SAILOR_COMPARE_WITH; default: HEAD~1)

  --write FILE  add the results to a file, with date and processor (experiments/results/DATE-long.txt)
  -h, --help    this text

Exit status: 0 if all passed.
TEXT
}

all=(plans streams gpus nccl kernels survivals elastic elastic-changes elastic-sixteen elastic-scale kills writers folders searches laws threads sanitizers builds)
trials=() results=''
while (($#)); do
  case $1 in
    --write) [[ $# -ge 2 ]] || bad_usage "--write needs a value"; results=$2; shift ;;
    -h | --help) usage; exit 0 ;;
    -*) bad_usage "unknown option '$1' (see tests/long.sh --help)" ;;
    *) [[ " ${all[*]} " == *" $1 "* ]] || bad_usage "there is no trial '$1' (there are: ${all[*]})"; trials+=("$1") ;;
  esac
  shift
done
((${#trials[@]})) || trials=("${all[@]}")
tests=$sailor_root/build/tests
[[ -x $tests/unit_trainer ]] || die "build first: cmake --preset default && cmake --build --preset default"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1

# What a trial runs, without a shell's help: it is printed as it can be typed.
command_of() {
  case $1 in
    plans) echo env SAILOR_LONG=1 RC_PARAMS=max_success=1000 "$tests/unit_trainer" ;;
    streams) echo env SAILOR_LONG=1 "$tests/unit_streams" ;;
    gpus) echo env SAILOR_LONG=1 "$tests/unit_cuda_kernels" ;;
    nccl) echo env SAILOR_LONG=1 "$tests/check_nccl_emulated" ;;
    kernels) echo "$sailor_root/tests/gpu/kernel_limits.sh" ;;
    survivals) echo env SAILOR_SURVIVALS=200 "$tests/unit_recovery" '--gtest_filter=*Killed*' ;;
    # 200 kills and 50 freezes, of one and two ranks, nodes, controllers; then what else there is, and 16 ranks.
    elastic) echo "$sailor_root/tests/elastic/trials.py" --programs "$sailor_root/build/bin" --trials 250 --kinds kill,kill-two,freeze,node,controller,kill-two,both-holders,supervisor,freeze-two,kill ;;
    elastic-changes) echo "$sailor_root/tests/elastic/trials.py" --programs "$sailor_root/build/bin" --trials 40 --kinds join,stop,exclude,request,controller-freeze ;;
    elastic-sixteen) echo "$sailor_root/tests/elastic/trials.py" --programs "$sailor_root/build/bin" --trials 39 --plan sixteen ;;
    elastic-scale) echo "$tests/elastic_scale" "$sailor_root/profiles" 64 128 256 512 1024 ;;
    kills) echo env SAILOR_KILLS=100 "$tests/mpi_training" '--gtest_filter=*KilledAtAnyMoment*' ;;
    writers) echo env SAILOR_KILLED_WRITERS=500 "$tests/unit_profile_durability" '--gtest_filter=*KilledWriters*' ;;
    folders) echo env SAILOR_LOOKS=1000 "$tests/unit_checkpoint" '--gtest_filter=*TwoTrainings*' ;;
    searches) echo env RC_PARAMS=max_success=2000 "$tests/unit_full_search" ;;
    laws) echo "$sailor_root/experiments/planner_laws.py" --small --goal throughput --law type one-type zone space --output /dev/null ;;
    threads) echo "$sailor_root/tests/threads.sh" ;;
    sanitizers) echo "$sailor_root/tests/sanitizers.sh" ;;
    builds) echo "$sailor_root/tests/compare_builds.sh" "${SAILOR_COMPARE_WITH:-HEAD~1}" ;;
  esac
}

tell() {
  printf '%s\n' "$*"
  [[ -z $results ]] || printf '%s\n' "$*" >>"$results"
}
tell "# tests/long.sh, $(date -u +%F), $(git -C "$sailor_root" rev-parse --short HEAD), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(nproc --all) cores"
failed=0
for trial in "${trials[@]}"; do
  read -ra words <<<"$(command_of "$trial")"
  step "$trial: ${words[*]}"
  log=$(mktemp) start=$SECONDS status=0
  "${words[@]}" >"$log" 2>&1 || status=$?
  last=$(grep -E '^(OK, passed|\[  (PASSED|FAILED)  \]|[0-9]+ of [0-9]+ (plans|elastic)|  [a-z -]+: to the first|[a-z-]+ +[0-9]+ +[0-9]+ +[0-9.]+%|[0-9]+ trials|[0-9]+ passed, |100% tests passed)' "$log" | head -12 | tr '\n' ';' || true)
  if ((status)); then
    failed=1
    cat "$log"
  fi
  command_text=${words[*]}
  tell "$([[ $status == 0 ]] && echo passed || echo FAILED) $trial ($((SECONDS - start)) s): ${command_text//"$sailor_root"\//}: $last"
  rm -f "$log"
done
exit "$failed"
