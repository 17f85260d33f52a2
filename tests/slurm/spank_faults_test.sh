#!/usr/bin/env bash
# Faults in every hook of the SPANK plugin, in every context: jobs that asked for a plan may fail; no node is drained, and
# jobs that did not ask run as ever. Prints a table.
#
# shellcheck disable=SC2016,SC2317,SC2329  # expanded in tasks; tests are called by name
# shellcheck source-path=SCRIPTDIR source=common.bash
source "$(dirname "${BASH_SOURCE[0]}")/common.bash"
plugin=$tests_dir/sailor_spank_faults.so
[[ -e $plugin ]] || { echo "skipped: there is no $plugin"; exit 77; }

cp "$plugin" "$work/faults.so"
printf 'required %s gpus=%s devices=none\n' "$work/faults.so" "$source_dir/profiles/gpus.toml" >"$work/plugstack.conf"
: >"$work/faults.so.fault"
start_cluster --nodes gh:2:gh200:4:8:4:854000 --mpi none --plugstack "$work/plugstack.conf"
unset "${!SAILOR_@}"
cat >"$work/plan.toml" <<'PLAN'
schema_version = 1
micro_batch = 1
schedule = "1f1b"
[job]
model = "tiny-gpt"
global_batch = 1
sequence_length = 64
precision = "fp32"
optimizer = "adamw"
[[pipelines]]
micro_batches = 1
[[pipelines.stages]]
layers = [0, 6]
gpu = "GH200-96"
PLAN
printf '#!/bin/bash\nsrun -n1 bash %s\n' "$work/task" >"$work/script"
echo 'echo "placed $SAILOR_RANK"' >"$work/task"
cd "$work" || exit 1

fault() { echo "$*" >"$work/new.fault" && mv "$work/new.fault" "$work/faults.so.fault"; }
job_has_ended() { [[ -z $(squeue -h -j "$1" 2>/dev/null) ]]; }

# asking PROGRAM: a job that asks. How it ended, in a word: "ran", "refused", "failed"
asking() {
  local id output status=0
  case $1 in
    srun) output=$(timeout 20 srun -n1 --gres=gpu:1 --sailor-plan=plan.toml bash task 2>&1) || status=$? ;;
    sbatch)
      if id=$(timeout 20 sbatch --parsable --gres=gpu:1 -o "$work/out-%j" --sailor-plan=plan.toml script 2>"$work/said"); then
        eventually job_has_ended "$id"
        output=$(cat "$work/out-$id" 2>/dev/null)
        [[ $(scontrol -o show job "$id") == *JobState=COMPLETED* ]] || status=1
      else
        status=1 output=$(cat "$work/said")
      fi
      ;;
  esac
  echo "$output" >"$work/last"
  if [[ $output == *'placed 0'* ]]; then echo ran
  elif [[ $output == *sailor* ]]; then echo "refused"
  else echo "failed, $status"; fi
}

rows=0
# row HOOK CONTEXT KIND PROGRAM
row() {
  local asked plain drained
  fault "$1 $2 $3"
  asked=$(asking "$4")
  # A job that does not ask, with the fault still there.
  plain=$(timeout 20 srun -n1 echo fine 2>/dev/null)
  drained=$(sinfo -h -R -o '%n %E')
  fault none
  [[ $(timeout 20 srun -N2 -n2 echo fine 2>/dev/null) == $'fine\nfine' ]] || plain='not after it'
  rows=$((rows + 1))
  printf '%-15s %-10s %-10s %-7s %-10s %-8s %s\n' "$1" "$2" "$3" "$4" "$asked" "$plain" "${drained:-none}"
  if [[ $plain != fine || -n $drained ]]; then
    failed=1
    sed 's/^/    /' "$work/last"
    scontrol update nodename=ALL state=resume 2>/dev/null
  fi
}

[[ $(asking srun) == ran && $(asking sbatch) == ran ]] || { echo "not ok - without a fault"; cat last; exit 1; }
echo "ok - without a fault jobs are placed"
printf '%-15s %-10s %-10s %-7s %-10s %-8s %s\n' hook context fault by asking plain drained
for kind in exception memory unknown; do
  row init LOCAL "$kind" srun
  row --sailor-plan LOCAL "$kind" srun
  row init_post_opt LOCAL "$kind" srun
  row init ALLOCATOR "$kind" sbatch
  row --sailor-plan ALLOCATOR "$kind" sbatch
  row init_post_opt ALLOCATOR "$kind" sbatch
  for program in srun sbatch; do
    row init REMOTE "$kind" "$program"
    row --sailor-plan REMOTE "$kind" "$program"
    row task_init REMOTE "$kind" "$program"
  done
done
# Processes of the user may even crash.
for kind in crash abort; do
  row --sailor-plan LOCAL "$kind" srun
  row init_post_opt LOCAL "$kind" srun
  row --sailor-plan ALLOCATOR "$kind" sbatch
  row init_post_opt ALLOCATOR "$kind" sbatch
  row task_init REMOTE "$kind" srun
  row task_init REMOTE "$kind" sbatch
done
# A plugin that cannot be loaded at all is optional, as the installed file says.
for broken in missing empty text; do
  case $broken in
    missing) rm -f broken.so ;;
    empty) : >broken.so ;;
    text) cp plan.toml broken.so ;;
  esac
  echo "optional $work/broken.so" >c/plugstack.conf
  plain=$(srun -n1 echo fine 2>/dev/null)
  drained=$(sinfo -h -R -o '%n %E')
  rows=$((rows + 1))
  printf '%-15s %-10s %-10s %-7s %-10s %-8s %s\n' loading all "$broken" srun - "$plain" "${drained:-none}"
  [[ $plain == fine && -z $drained ]] || failed=1
done
cp plugstack.conf c/plugstack.conf

# slurmd loads the plugin when it starts.
slurmd_starts() {
  local kind
  for kind in exception memory unknown; do
    fault "init SLURMD $kind"
    "$testcluster" kill-node c gh2
    "$testcluster" start-node c gh2 || return 1
    fault none
    [[ $(srun -w gh2 -n1 echo fine) == fine && -z $(sinfo -h -R) ]] || { sinfo -R; return 1; }
  done
}
check 'slurmd starts with a fault in init' slurmd_starts
if ((failed == 0 && rows >= 24)); then
  echo "ok - $rows faults: no node drained, every plain job ran"
else
  echo "not ok - $rows faults"
  failed=1
fi
finish
