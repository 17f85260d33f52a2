#!/usr/bin/env bash
# Runs scripts of ae_scripts with a planner that answers what the authors' code answered: do they find their programs and
# data, do tables, claims and pages say what they should? Usage: run_test.sh NAME, of the functions below.
#
# shellcheck disable=SC2317,SC2329  # functions are called by name
set -uo pipefail
source_dir=${SAILOR_SOURCE_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
build_dir=${SAILOR_BUILD_DIR:-$source_dir/build}
scripts=$source_dir/ae_scripts
unset "${!SLURM_@}" "${!SAILOR_@}"
export SAILOR_BIN=$build_dir/bin SAILOR_SKIP_PACKAGES=1
export SAILOR_SAILOR_PLAN=$source_dir/tests/fakes/sailor_plan.py

for program in python3 gnuplot; do
  command -v "$program" >/dev/null || { echo "skipped: $program is not there"; exit 77; }
done
work=$(mktemp -d /tmp/sat.XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1

# run COMMAND...: it succeeds, or the test ends
run() { "$@" >out 2>err || { printf '%s: exit status %s\n' "$*" "$?"; cat out err; exit 1; }; }
# has FILE PART...: each PART is in FILE, or the test ends
has() {
  local file=$1 part
  shift
  for part; do grep -qF -- "$part" "$file" || { printf '%s: missing: %s\n' "$file" "$part"; head -c 4000 "$file"; exit 1; }; done
}

# One figure of each kind: tables with the authors' numbers beside the planner's, pictures in both forms.
figures() {
  run "$scripts/fig8b.sh" --output f
  has f/fig8b.md '| 32 A100 + 96 V100 | AMP | 0.1316 | 0.1316 | +0.0 % | 0.8279 | 0.8279 | 4 | 4 |' \
    '| 128 A100 + 384 V100 | Sailor | 0.5490 |' '1.57 times the throughput of AMP' '| reproduced |'
  has f/fig8b.svg 'Sailor (authors)' 'throughput (iterations/s)'
  [[ $(head -c 4 f/fig8b.png | tail -c 3) == PNG && -s f/sweeps/fig8b/fig8b.h5 ]] || exit 1
  run "$scripts/fig12.sh" --output f
  has f/fig12.md '| DTFM | no plan | no plan |' '| 128 A100 + 128 V100 in each of two zones | Galvatron | 0.2873 |'
  has f/fig12.svg 'cost (USD/iteration)' 'limit: 1.2 USD/iteration'
  run "$scripts/scale.sh" --output f
  has f/scale.md '| 32 of one type | Sailor |' '130.63'
  [[ -s f/scale-time.svg && -s f/scale-memory.png ]] || exit 1
}

# What is run again agrees in all that was not measured, a changed number is found, and a browser shows the page.
report() {
  run "$scripts/run_all.sh" --opt-only --output first
  cp -r first second
  rm second/report.{html,md}
  run "$scripts/fig12.sh" --again --output second
  run "$scripts/scale.sh" --again --output second
  run "$scripts/run_all.sh" --opt-only --output second # the other points are finished
  run python3 "$scripts/figures" compare first/report.html second/report.html
  has first/report.html 'id="claims"' 'id="fig5a"' 'id="fig12"' 'id="scale"' 'class="long reproduced"' 'class="long differs"' 'Not made: fig7-gpt-neo'
  has first/report.md '## The paper' '![Figure 7' '| Fig. 8b | 1.39 times the throughput of Metis |'
  ! grep -qE '(src|href)="(https?:|file:|[^d#"][^"]*\.(svg|png|css|js))' first/report.html || { echo 'the page needs other files'; exit 1; }
  # Not by its reader: what differs must be found.
  sed 's/0\.1316/0.1317/' second/report.html >changed.html
  ! python3 "$scripts/figures" compare first/report.html changed.html >out || exit 1
  has out '0.1317'
  command -v chromium >/dev/null || { echo "skipped in part: chromium is not there"; return; }
  # --dump-dom: what the browser made of it, after all pictures were decoded.
  run timeout 120 chromium --headless=new --no-sandbox --disable-gpu --user-data-dir="$work/profile" --virtual-time-budget=5000 \
    --dump-dom "file://$work/first/report.html"
  has out 'id="fig7"' 'The paper' '</html>'
  cat >look.html <<'PAGE'
<!DOCTYPE html><title>look</title><iframe id="page" src="first/report.html" width="1240" height="900"></iframe>
<script>onload = () => { const page = document.getElementById("page").contentDocument;
  const pictures = [...page.images].map(i => i.naturalWidth > 100 && i.complete);
  document.body.append(`pictures ${pictures.filter(x => x).length} of ${pictures.length};` +
    ` wider than the window: ${page.documentElement.scrollWidth > 1250}`); };</script>
PAGE
  run timeout 120 chromium --headless=new --no-sandbox --disable-gpu --allow-file-access-from-files --user-data-dir="$work/profile" \
    --virtual-time-budget=8000 --dump-dom "file://$work/look.html"
  has out 'pictures 9 of 9;' 'wider than the window: false'
}

# The published runs, as a cases file and as files of the authors' format.
accuracy() {
  run "$scripts/accuracy.sh" --cases "$source_dir/experiments/gh200-opt-350m.toml" --output a
  has a/fig5b.md '| Sailor | 15 |' '| 32 nodes, 32 pipelines of 1 stage | 1.0259 |'
  has a/fig5a.svg 'peak memory'
  # The artifact's own numbers (ae_scripts/data/authors_accuracy.csv), where this build has its planners.
  if "$SAILOR_BIN/sailor-plan" --planner help 2>/dev/null | grep -q '^piper'; then
    has a/fig5b.md '| Piper | 15 | 13.82 % |' '| Sailor (authors) | 15 | 8.92 % |'
    has a/fig5a.md '| Varuna | 15 | 69.33 % |' '| AMP | 0 | - |'
  fi
  mkdir runs
  cat >runs/one.json <<'RUN'
{"pipeline_list": [{"num_stages": 2, "dp": [1, 1],
  "layers_per_stage": [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25]],
  "tmp_per_stage": [[[[["GH-96", 4, "us-central1-a"]], 4]], [[[["GH-96", 4, "us-central1-a"]], 4]]]}],
 "mbs": 8, "gbs": 32, "zone": "us-central1-a", "real": 0.65705, "max_mem": 26942111744, "red_grads": 0, "N": 2}
RUN
  run "$scripts/accuracy.sh" --runs runs --output b
  has b/fig5b.md '| Sailor | 1 |' '| one.json | 0.6571 |'
  mkdir empty
  ! "$scripts/accuracy.sh" --runs empty --output c >out 2>err || exit 1
  has err "there is no run file"
}

# The scripts of the GH200 runs: six arrays of fifteen plans; what they measured becomes cases.
clariden() {
  run "$scripts/clariden/validate.sh" submit --data corpus -A g123 -p normal --array-limit 2 --dry-run
  [[ $(grep -c '^#SBATCH --array=' out) == 6 && $(grep -c '^#SBATCH --account=g123' out) == 6 ]] || { cat out err; exit 1; }
  has out '#SBATCH --nodes=32' '#SBATCH --array=0-2%2' 'nodes32-pipelines32-stages1-batch8-global1024'
  [[ ! -e clariden-runs ]] || { echo "a dry run leaves files"; exit 1; }
  mkdir -p kept/nodes2-pipelines1-stages2-batch8-global32 kept/nodes1-pipelines1-stages1-batch1-global1
  touch kept/nodes{2-pipelines1-stages2-batch8-global32,1-pipelines1-stages1-batch1-global1}/plan.toml
  touch -d '2026-01-01' kept/nodes2-pipelines1-stages2-batch8-global32/run-7.h5
  touch kept/nodes2-pipelines1-stages2-batch8-global32/run-8.h5
  run python3 "$scripts/clariden/validation.py" cases kept kept/cases.toml
  has kept/cases.toml 'run-8.h5' 'name = "nodes2-pipelines1-stages2-batch8-global32"'
  has err 'no run file of nodes1-pipelines1-stages1-batch1-global1'
}

# --help of every script, and what is no option.
usage() {
  local script
  for script in "$scripts"/*.sh "$scripts"/clariden/*.sh; do
    [[ $(basename "$script") != common.sh ]] || continue
    run "$script" --help
    has out 'Usage: ae_scripts/' 'Examples:'
    if "$script" --nonsense >out 2>err; then echo "$script takes --nonsense"; exit 1; fi
    has err 'error:'
  done
  run "$scripts/fig7.sh" --help
  ! "$scripts/fig7.sh" --jobs 0 >out 2>err || exit 1
  has err '--jobs needs a number of at least 1'
}

declare -F -- "${1:-}" >/dev/null || { echo "usage: run_test.sh NAME" >&2; exit 2; }
"$1"
