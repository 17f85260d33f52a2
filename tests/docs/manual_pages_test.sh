#!/bin/bash
# The manual pages as `cmake --install` leaves them: `man` finds and renders each, every option of --help stands in its
# page, and neither groff nor mandoc has anything to complain about.
set -uo pipefail
build=${SAILOR_BUILD_DIR:?} bin=${SAILOR_BIN_DIR:?}
for program in man mandb groff; do
  command -v "$program" >/dev/null || { echo "skipped: $program is not installed (apt-get install man-db groff)"; exit 77; }
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0
not_ok() { echo "not ok - $*"; failed=1; }

cmake --install "$build" --prefix "$folder/prefix" --component documentation >"$folder/log" ||
  { cat "$folder/log"; not_ok "the manual pages can be installed"; exit 1; }
pages=$folder/prefix/share/man
export MANPATH=$pages MANWIDTH=200 MANPAGER=cat LC_ALL=C.UTF-8

# page SECTION NAME: the page as a reader sees it, without bold and line breaks.
page() { man "$1" "$2" 2>"$folder/errors" | col -bx | tr -s ' \n' ' '; }

mapfile -t programs < <(cd "$bin" && ls -d sailor sailor-*)
"$bin/sailor" --help >"$folder/overview"
for program in "${programs[@]}"; do
  [[ -x $bin/$program && $program != *.* ]] || continue
  [[ $program == sailor ]] || grep -q "^  $program  " "$folder/overview" ||
    not_ok "sailor lists $program (src/apps/programs.cpp)"
  page 1 "$program" >"$folder/page"
  [[ -s $folder/page ]] || { cat "$folder/errors"; not_ok "man $program shows a page"; continue; }
  # Commands of the program, "" for the program itself.
  mapfile -t commands < <("$bin/$program" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p')
  ((${#commands[@]})) || commands=('')
  options=0
  for command in "${commands[@]}"; do
    while read -r option; do
      options=$((options + 1))
      grep -qF -- "$option" "$folder/page" || not_ok "the page of $program has $option of $command"
    done < <("$bin/$program" ${command:+"$command"} --help | sed -n 's/^  \(-[a-zA-Z], \|    \)\(--[a-z0-9-]*\).*/\2/p')
  done
  ((options > 4)) && echo "ok - the page of $program has its $options options"
done
for file in plan.toml cluster.toml sailor-site sailor-model sailor-gpus; do
  page 5 "$file" >"$folder/page"
  if grep -q "schema_version (integer; required)" "$folder/page"; then echo "ok - man 5 $file"
  else not_ok "man 5 $file shows the keys"; fi
done

mandb -q -c "$pages" 2>/dev/null
man -k sailor >"$folder/found" 2>/dev/null || true
for name in $(cd "$pages" && find . -type f -name '*.[15]' -printf '%f\n' | sed 's/\.[15]$//'); do
  grep -q "^$name (" "$folder/found" || not_ok "man -k sailor lists $name"
done
echo "ok - man -k sailor lists $(wc -l <"$folder/found") pages"

for file in "$pages"/man*/*; do
  problems=$(groff -man -ww -z -Tutf8 "$file" 2>&1)
  [[ -z $problems ]] || not_ok "groff has nothing to say of ${file##*/}: $problems"
  if command -v mandoc >/dev/null; then
    # Pages refer to each other before they are installed.
    problems=$(mandoc -T lint -W style "$file" | grep -v 'referenced manual not found')
    [[ -z $problems ]] || not_ok "mandoc has nothing to say of ${file##*/}: $problems"
  fi
done
exit "$failed"
