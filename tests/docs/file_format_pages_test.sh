#!/bin/bash
# The pages of docs/reference/files are what `sailor --generate` makes of the tables in src/apps/reference.
# SAILOR_UPDATE_GOLDEN=1 rewrites them.
set -uo pipefail
made=${SAILOR_BUILD_DIR:?}/share/doc/sailor/files kept=${SAILOR_SOURCE_DIR:?}/docs/reference/files
if [[ -n ${SAILOR_UPDATE_GOLDEN:-} ]]; then
  cp "$made"/*.md "$kept"/
  exit
fi
diff -u "$kept" "$made" && exit
echo "not ok - docs/reference/files are up to date: run this test with SAILOR_UPDATE_GOLDEN=1"
exit 1
