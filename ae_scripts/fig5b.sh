#!/bin/bash
# Figure 5b of the paper: planners' estimates of iteration time against runs on GH200
set -euo pipefail
# shellcheck source=ae_scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# shellcheck disable=SC2317  # figure_options calls it
usage() { figure_usage fig5b.sh "Figure 5b of the paper: planners' estimates of iteration time against runs on GH200" "10 seconds"; }
figure_options usage "$@"
figure_programs
make_accuracy fig5b
figure_end
