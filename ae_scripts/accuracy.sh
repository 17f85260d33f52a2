#!/bin/bash
# Figures 5a and 5b for measured runs of your own: a folder of run files of the authors' format, or a cases file.
set -euo pipefail
# shellcheck source=ae_scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<TEXT
ae_scripts/accuracy.sh: planners' estimates of time and memory against measured runs (as figures 5a and 5b)

Usage: ae_scripts/accuracy.sh --runs FOLDER|--cases FILE [--model NAME] [--output FOLDER] [--no-build]

  --runs FOLDER        run files as the authors of Sailor publish them (JSON: the plan, real, max_mem)
  --cases FILE         a cases file (experiments/README.md) whose cases have their plan and times
  --model NAME         model of the run files [opt-350m-sailor]
  -o, --output FOLDER  folder for tables and pictures [build/figures/accuracy]
  --no-build           use the programs as they are (SAILOR_BIN, default build/bin)
  -h, --help           this text

Takes a second for each run.

Examples:
  ae_scripts/accuracy.sh --runs sailor/Planner/simulations/validation/clariden/OPT-350
  ae_scripts/accuracy.sh --cases experiments/gh200-opt-350m.toml --output /tmp/accuracy
TEXT
}

source_options=()
model=()
others=()
while (($#)); do
  case $1 in
    --runs | --cases)
      [[ -e ${2:-} ]] || bad_usage "$1: there is no '${2:-}'"
      ((${#source_options[@]} == 0)) || bad_usage "--runs and --cases: give one of them"
      source_options=("$1" "$2")
      shift
      ;;
    --model)
      [[ -n ${2:-} ]] || bad_usage "--model needs a name"
      model=(--model "$2")
      shift
      ;;
    -o | --output) others+=("$1" "${2:-}"); shift ;;
    *) others+=("$1") ;;
  esac
  shift
done
figures_folder="$sailor_root/build/figures/accuracy"
figure_options usage "${others[@]}"
((${#source_options[@]})) || bad_usage "what was measured? Give --runs FOLDER or --cases FILE (see ae_scripts/accuracy.sh --help)"
figure_programs
make_accuracy "" "${source_options[@]}" "${model[@]}"
sed -n '/^| estimator/,/^$/p' "$figures_folder"/fig5[ab].md
