#!/bin/bash
# The validation runs of OPT-350M on GH200 with Sailor's own runtime: submits the plans of the 15 published runs as job
# arrays (one for each number of nodes), and compares what they measured with the simulator.
set -euo pipefail
# shellcheck source=ae_scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

folder=$PWD/clariden-runs
account='' partition='' data='' time=30 iterations=30 limit='' site=alps-clariden
dry=0
usage() {
  cat <<TEXT
ae_scripts/clariden/validate.sh: the 15 validation runs on GH200 with sailor-train, submitted and compared

Usage: ae_scripts/clariden/validate.sh submit --data PREFIX [-A ACCOUNT] [-p PARTITION] [more]
       ae_scripts/clariden/validate.sh collect [--folder FOLDER]

submit: job arrays of sailor-submit, one for each number of nodes (1, 2, 4, 8, 16 and 32 of 4 GPUs)
  --data PREFIX            what to train on: files that sailor-data wrote, with a vocabulary of at most 50304
  -A, --account NAME       Slurm account [Slurm's default]
  -p, --partition NAME     Slurm partition [Slurm's default]
  -t, --time TIME          time limit of a run, as Slurm writes it [$time, minutes]
  --iterations N           iterations of a run [$iterations]
  --array-limit N          runs of an array at the same time, at most [all]
  --site NAME              site file of sailor-submit [$site]
  --dry-run                print the scripts; submit nothing
collect: cases.toml of the run files, and the simulator's errors, overall and for each run
both:
  --folder FOLDER          where the runs are [clariden-runs in the working directory]
  -h, --help               this text

Needs sailor-submit and sailor-simulate in PATH or in build/bin (SAILOR_BIN).

Examples:
  ae_scripts/clariden/validate.sh submit --data corpus -A g123 -p normal --dry-run
  ae_scripts/clariden/validate.sh submit --data corpus -A g123 -p normal
  ae_scripts/clariden/validate.sh collect
TEXT
}

[[ ${1:-} != -h && ${1:-} != --help ]] || { usage; exit 0; }
command=${1:-}
[[ $command == submit || $command == collect ]] || bad_usage "submit or collect? (see ae_scripts/clariden/validate.sh --help)"
shift
while (($#)); do
  case $1 in
    --dry-run) dry=1; shift; continue ;;
    -h | --help) usage; exit 0 ;;
  esac
  [[ -n ${2:-} ]] || bad_usage "$1 needs a value, or is no option (see ae_scripts/clariden/validate.sh --help)"
  case $1 in
    --data) data=$2 ;;
    -A | --account) account=$2 ;;
    -p | --partition) partition=$2 ;;
    -t | --time) time=$2 ;;
    --iterations) iterations=$2 ;;
    --array-limit) limit=$2 ;;
    --site) site=$2 ;;
    --folder) folder=$2 ;;
    *) bad_usage "unknown option '$1' (see ae_scripts/clariden/validate.sh --help)" ;;
  esac
  shift 2
done
sailor_bin=${SAILOR_BIN:-$sailor_root/build/bin}
export PATH="$sailor_bin:$PATH"
validation() { python3 "$sailor_root/ae_scripts/clariden/validation.py" "$@"; }

if [[ $command == collect ]]; then
  validation cases "$folder" "$folder/cases.toml"
  sailor-simulate --against "$folder/cases.toml" --profile published
  exit
fi

[[ -n $data ]] || bad_usage "submit needs --data PREFIX"
plans_folder=$folder/plans
scratch=
if ((dry)); then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  plans_folder=$scratch
fi
options=(--data "$data" --iterations "$iterations" --time "$time" --devices-per-node 4 --site "$site")
[[ -z $account ]] || options+=(--account "$account")
[[ -z $partition ]] || options+=(--partition "$partition")
[[ -z $limit ]] || options+=(--array-limit "$limit")
plans=()
while read -r plan; do plans+=("$plan"); done < <(validation plans "$sailor_root/experiments/gh200-opt-350m.toml" "$plans_folder")
((${#plans[@]})) || die "the plans could not be written"
if ((dry)); then
  sailor-submit "${plans[@]}" "${options[@]}" --run-directory "$folder" --dry-run --remote-data
else
  sailor-submit "${plans[@]}" "${options[@]}" --run-directory "$folder"
fi
