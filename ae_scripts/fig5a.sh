#!/bin/bash
# Figure 5a of the paper: planners' estimates of memory against runs on GH200
set -euo pipefail
# shellcheck source=ae_scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# shellcheck disable=SC2317  # figure_options calls it
usage() { figure_usage fig5a.sh "Figure 5a of the paper: planners' estimates of memory against runs on GH200" "10 seconds"; }
figure_options usage "$@"
figure_programs
make_accuracy fig5a
figure_end
