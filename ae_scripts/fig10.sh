#!/bin/bash
# Figure 10 of the paper: planners on A100 of five zones
set -euo pipefail
# shellcheck source=ae_scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# shellcheck disable=SC2317  # figure_options calls it
usage() { figure_usage fig10.sh "Figure 10 of the paper: planners on A100 of five zones" "1 minute"; }
figure_options usage "$@"
figure_programs
make_figure planners fig10
figure_end
