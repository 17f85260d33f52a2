#!/bin/bash
# Trains every plan of the tests with two builds over MPI, on this machine, and compares losses, gradient norms and
# weights to the last bit; so it does a training that the other build began and this one goes on with from its checkpoint.
# Stored hashes would not do: OpenBLAS chooses its kernels by the processor.
set -euo pipefail
# shellcheck source=ae_scripts/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../ae_scripts/common.sh"

usage() {
  cat <<'TEXT'
tests/compare_builds.sh: do two versions train to the same bits?

Usage: tests/compare_builds.sh [--every N] [--only TEXT] COMMIT

Builds sailor-train at COMMIT in a folder of its own, and trains the small models of the tests under every division of
the work with it, with the build of this tree (build/bin, which must be there), and half with the one and half with the
other. Says, too, how much more memory tensors take. Exit status: 0 all the same.

  --every N      only every N-th plan (default: 1, all)
  --only TEXT    only plans whose name contains TEXT
  --build FOLDER the other build, where it is made already: programs are in FOLDER/bin
  -h, --help     this text

Example:
  tests/compare_builds.sh --every 10 HEAD~5
TEXT
}

every=1 only='' build='' commit=''
while (($#)); do
  case $1 in
    --every) every=$2; shift ;;
    --only) only=$2; shift ;;
    --build) build=$2; shift ;;
    -h | --help) usage; exit 0 ;;
    -*) bad_usage "unknown option '$1' (see --help)" ;;
    *) commit=$1 ;;
  esac
  shift
done
[[ -n $commit || -n $build ]] || die "name the COMMIT to compare with (see --help)"

work=$(mktemp -d)
cleanup() {
  [[ ! -d $work/tree ]] || git -C "$sailor_root" worktree remove --force "$work/tree"
  rm -rf "$work"
}
trap cleanup EXIT
if [[ -z $build ]]; then
  step "Building $commit"
  git -C "$sailor_root" worktree add --quiet --detach "$work/tree" "$commit"
  cmake -S "$work/tree" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG" -DSAILOR_TESTS=OFF >"$work/configured"
  NINJA_STATUS='[%f/%t, %es] ' cmake --build "$work/build" --target sailor-train sailor-data
  build=$work/build
fi
step "Training"
cmake --build "$sailor_root/build" --target sailor-train sailor-data write_plans >"$work/built" || { cat "$work/built"; exit 1; }
"$sailor_root/build/tests/write_plans" "$work/plans"
"$sailor_root/build/bin/sailor-data" bytes --output "$work/corpus" "$work/plans/text" >/dev/null
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl=self,vader OMP_NUM_THREADS=1

# train BUILD NAME PLAN [ITERATIONS]: leaves the losses, the checksums of what was learned and the largest peak of memory
# in $work/NAME; goes on with what is there after `ITERATIONS` of another build.
train() {
  local folder=$work/$2 iterations=${4:-4} ranks
  ranks=$(python3 - "$3" <<'PY'
import sys, tomllib
plan = tomllib.load(open(sys.argv[1], "rb"))
print(sum(p.get("count", 1) * sum(s.get("tensor_parallel", 1) for s in p["stages"]) for p in plan["pipelines"]))
PY
  )
  mkdir -p "$folder"
  mpirun --oversubscribe -n "$ranks" "$1/bin/sailor-train" "$3" --models "$work/plans/models" --data "$work/corpus" \
    --iterations "$iterations" --learning-rate 0.004 --warm-up-iterations 2 --clip-norm 0.5 --metrics "$folder/metrics" \
    --checkpoints "$folder/checkpoints" >"$folder/log" 2>&1 || { cat "$folder/log"; return 1; }
  python3 - "$folder/metrics" >"$folder/result" <<'PY'
import json, sys
peak = 0
for line in open(sys.argv[1]):
    row = json.loads(line)
    peak = max(peak, row["peak_tensor_memory_bytes"])
    print(*(repr(row.get(key)) for key in ("iteration", "loss", "gradient_norm", "learning_rate")))
open(sys.argv[1] + ".peak", "w").write(str(peak))
PY
  newest=$(find "$folder/checkpoints" -maxdepth 1 -name 'iteration-*' | sort | tail -1)
  (cd "$newest" && sha256sum rank-*.bin) >>"$folder/result"
}

compared=0 different=0 number=0 most=0 largest=-
for plan in "$work"/plans/plans/*"$only"*.toml; do
  number=$((number + 1))
  (((number - 1) % every == 0)) || continue
  name=$(basename "$plan" .toml)
  rm -rf "$work"/{before,after,gone-on}
  if ! train "$build" before "$plan" || ! train "$sailor_root/build" after "$plan" ||
    ! train "$build" gone-on "$plan" 2 || ! train "$sailor_root/build" gone-on "$plan"; then
    echo "FAILED: $name"
    different=$((different + 1))
  elif ! cmp -s "$work/before/result" "$work/gone-on/result"; then
    echo "GOES ON DIFFERENTLY: $name"
    diff "$work/before/result" "$work/gone-on/result" | head -6 || true
    different=$((different + 1))
  elif cmp -s "$work/before/result" "$work/after/result"; then
    compared=$((compared + 1))
    read -r most largest < <(python3 -c 'import sys
before, after, most = map(float, sys.argv[1:4])
print(after / before, sys.argv[5]) if after / before > most else print(most, sys.argv[4])' \
      "$(<"$work/before/metrics.peak")" "$(<"$work/after/metrics.peak")" "$most" "$largest" "$name")
  else
    echo "DIFFERENT: $name"
    diff "$work/before/result" "$work/after/result" | head -6 || true
    different=$((different + 1))
  fi
done
echo "$compared of $((compared + different)) plans train to the same bits, also from a checkpoint of the other build; peak memory of tensors" \
  "is $(printf '%.3f' "$most") of the other's at most ($largest)"
((different == 0 && compared > 0))
