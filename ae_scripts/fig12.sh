#!/bin/bash
# Figure 12 of the paper: the highest throughput within a budget
set -euo pipefail
# shellcheck source=ae_scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# shellcheck disable=SC2317  # figure_options calls it
usage() { figure_usage fig12.sh "Figure 12 of the paper: the highest throughput within a budget" "1 minute"; }
figure_options usage "$@"
figure_programs
make_figure planners fig12
figure_end
