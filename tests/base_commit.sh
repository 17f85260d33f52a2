#!/bin/bash
# tests/base_commit.sh [COMMIT]: prints the commit that changes are compared with: where this branch left COMMIT, or main
# [default]; on main the commit before. Nothing in a clone that has neither main nor the commit before.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for known in ${1:-main origin/main}; do
  commit=$(git merge-base "$known" HEAD 2>/dev/null || true)
  [[ $# == 0 ]] || { echo "${commit:-$1}"; exit; }
  [[ -z $commit || $commit == $(git rev-parse HEAD) ]] || { echo "$commit"; exit; }
done
git rev-parse --quiet --verify HEAD~1 || true
