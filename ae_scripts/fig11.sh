#!/bin/bash
# Figure 11 of the paper: the least cost at a throughput
set -euo pipefail
# shellcheck source=ae_scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# shellcheck disable=SC2317  # figure_options calls it
usage() { figure_usage fig11.sh "Figure 11 of the paper: the least cost at a throughput" "1 minute"; }
figure_options usage "$@"
figure_programs
make_figure planners fig11
figure_end
