#!/bin/bash
# sailor-profile links in one job over nodes of two types, as a cluster with several GPUs runs it.
#
# shellcheck disable=SC2317  # functions are called by name
# shellcheck source-path=SCRIPTDIR source=common.bash
source "$(dirname "${BASH_SOURCE[0]}")/common.bash"
PATH="$bin_dir:$PATH"
command -v python3 >/dev/null || { echo "skipped: python3 is not installed"; exit 77; }
start_cluster --nodes gh:2:-:0:2:1:2000 --partitions normal=ALL
[[ -n $mpi ]] || { echo "skipped: this Slurm starts no MPI ranks"; exit 77; }
export OMPI_MCA_rmaps_base_oversubscribe=1

# Two kinds of cores: what measures is no GPU.
{
  echo 'schema_version = 1'
  for name in near far; do
    printf '[[gpus]]\nname = "%s"\nkind = "cpu"\npeak_fp32_flop_per_s = 1e10\nmemory_bandwidth_bytes_per_s = 1e10\n' "$name"
    printf 'price_usd_per_hour = 0.0\nsource = "a test"\n'
  done
} >"$work/gpus.toml"

# Two ranks on each of gh1 and gh2; the first is one type in one zone, the second another in another.
measure() {
  # shellcheck disable=SC2016  # expanded by the tasks
  srun --mpi="$mpi" -N 2 --ntasks-per-node=2 bash -c '
    case $SLURMD_NODENAME in gh1) export SAILOR_GPU=near SAILOR_ZONE=east ;; *) export SAILOR_GPU=far SAILOR_ZONE=west ;; esac
    exec sailor-profile links --gpus gpus.toml --store store --max-message 16384 --samples 3 --warm-up 0' 2>messages
  expect_in "$(cat messages)" '18 curves x 3 sizes to 16.0 KiB'
}
check "links of two types are measured in one job" measure

both_directions() {
  local text
  text=$(sailor-profile show store --format json)
  # Type, type, scope, operation and senders of each curve, by number of sizes.
  python3 - "$text" <<'PYTHON'
import json, sys
from collections import Counter
curves = Counter((r["from_gpu"], r["from_zone"], r["to_gpu"], r["to_zone"], r["scope"], r["operation"], r["from_ranks"])
                 for r in json.loads(sys.argv[1])["links"])
gh, a = ("near", "east"), ("far", "west")
for ends in (gh + a, a + gh):
    for ranks in (1, 2):
        assert curves[ends + ("inter_node", "send_receive", ranks)] == 3, (ends, ranks, curves)
for end in (gh, a):
    assert curves[end + end + ("intra_node", "send_receive", 1)] == 3, curves
    assert curves[end + end + ("intra_node", "all_gather", 2)] == 3, curves
assert len(curves) == 18, curves
PYTHON
}
check "both directions, inside and between, with one and two ranks" both_directions
finish
