#!/bin/bash
# Every figure, and one page of all of them (report.html, report.md) with the paper's claims.
set -euo pipefail
# shellcheck source=ae_scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

models=(opt neo)
# shellcheck disable=SC2317  # figure_options calls it
usage() {
  figure_usage run_all.sh "every figure of the paper, and one page of all of them (report.html)" "10 minutes" |
    sed '/^  --again/i\  --opt-only           without the figures of GPT-Neo-2.7B, which the paper does not have'
}
others=()
while (($#)); do
  case $1 in
    --opt-only) models=(opt) ;;
    -j | --jobs | -o | --output)
      others+=("$1" "${2:-}")
      (($# < 2)) || shift
      ;;
    *) others+=("$1") ;;
  esac
  shift
done
figure_options usage "${others[@]}"
figure_programs
start=$SECONDS
make_accuracy ""
for model in "${models[@]}"; do
  suffix=$([[ $model == opt ]] || echo -gpt-neo)
  for figure in fig7 fig8b fig10 fig11 fig12; do make_figure planners "$figure$suffix"; done
done
make_figure scale scale
# Last: the page has what is there, and fig7 to fig12 the claims of their figure.
python3 "$sailor_root/ae_scripts/figures" report --output "$figures_folder" --version "$("$sailor_bin/sailor-sweep" --version)" ||
  die "the report could not be made"
step "Done in $(((SECONDS - start + 59) / 60)) minutes: $figures_folder/report.html"
((failed_points == 0)) || printf 'Some points failed, or have no plan: the tables say which and why.\n'
figure_end
