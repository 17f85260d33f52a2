#!/bin/bash
# The README's main job: runs to its last screen; killed at any moment it leaves no process and nothing that the next
# run trips over. Prints "ok - ..." lines and fails at the first "not ok".
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

# Everything the quickstart starts inherits this TMPDIR: that is how we recognise what it left.
TMPDIR=$(mktemp -d /tmp/sq.XXXXXX)
export TMPDIR
not_ok() {
  printf 'not ok - %s\n' "$*"
  [[ -e $TMPDIR/log ]] && tail -40 "$TMPDIR/log"
  exit 1
}
trap 'rm -rf "$TMPDIR"' EXIT

# left_over: processes whose environment or command line names our TMPDIR, but for this script's own.
left_over() {
  local file pid
  for file in /proc/[0-9]*/environ; do
    pid=${file#/proc/} pid=${pid%/environ}
    [[ $pid == "$$" || $pid == "$BASHPID" || $pid == "${PPID:-0}" ]] && continue
    if grep -qzxF "TMPDIR=$TMPDIR" "$file" || grep -qzF "$TMPDIR" "/proc/$pid/cmdline"; then
      # Ours, unless it is a child of this shell (the pipeline that looks).
      [[ $(awk '/^PPid:/ { print $2 }' "/proc/$pid/status") == "$BASHPID" ]] || printf '%s ' "$pid"
    fi
  done 2>/dev/null
}

# expect_nothing_left WHEN: within 15 s no process and no cluster directory is left.
expect_nothing_left() {
  local i left=""
  for ((i = 0; i < 75; ++i)); do
    left=$(left_over)
    [[ -z $left ]] && break
    sleep 0.2
  done
  if [[ -n $left ]]; then
    for pid in $left; do printf '%s: ' "$pid"; tr '\0' ' ' <"/proc/$pid/cmdline"; echo; done
    not_ok "$1 leaves processes: $left"
  fi
  echo "ok - $1 leaves no process"
}

for moment in "$@"; do
  "$root/ae_scripts/quickstart.sh" --iterations 2000 >"$TMPDIR/log" 2>&1 &
  quickstart=$!
  sleep "$moment"
  kill -KILL "$quickstart" 2>/dev/null || not_ok "the quickstart ended before it could be killed after $moment s"
  wait "$quickstart" 2>/dev/null
  expect_nothing_left "quickstart killed after $moment s"
done

"$root/ae_scripts/quickstart.sh" --iterations 21 >"$TMPDIR/log" 2>&1 || not_ok "the quickstart failed"
for word in 'plan       ' 'job        ' 'loss       ' 'iteration time' 'peak memory'; do
  sed -n '/^=====/,$p' "$TMPDIR/log" | grep -q "^$word" || not_ok "the last screen lacks '$word'"
done
echo "ok - the quickstart runs to its last screen"
awk '/^loss / { exit !($12 < $2) }' "$TMPDIR/log" || not_ok "the loss does not fall"
echo "ok - the loss falls"
expect_nothing_left "a finished quickstart"
