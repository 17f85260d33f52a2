#!/bin/bash
# Figure 8b of the paper: planners on A100 and V100 of one zone
set -euo pipefail
# shellcheck source=ae_scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# shellcheck disable=SC2317  # figure_options calls it
usage() { figure_usage fig8b.sh "Figure 8b of the paper: planners on A100 and V100 of one zone" "1 minute"; }
figure_options usage "$@"
figure_programs
make_figure planners fig8b
figure_end
