#!/bin/bash
# Figure 7 of the paper: planners on 32, 80 and 128 A100 of one zone
set -euo pipefail
# shellcheck source=ae_scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# shellcheck disable=SC2317  # figure_options calls it
usage() { figure_usage fig7.sh "Figure 7 of the paper: planners on 32, 80 and 128 A100 of one zone" "1 minute"; }
figure_options usage "$@"
figure_programs
make_figure planners fig7
figure_end
