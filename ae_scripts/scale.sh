#!/bin/bash
# Search time and memory against the number of GPUs, to 1,024 of one, two and three types
set -euo pipefail
# shellcheck source=ae_scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# shellcheck disable=SC2317  # figure_options calls it
usage() { figure_usage scale.sh "Search time and memory against the number of GPUs, to 1,024 of one, two and three types" "2 minutes"; }
figure_options usage "$@"
figure_programs
make_figure scale scale
figure_end
