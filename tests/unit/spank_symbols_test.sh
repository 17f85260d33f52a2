#!/bin/bash
# The SPANK plugin shows Slurm its hooks and nothing else, wants nothing but Slurm's own functions and the C library,
# and brings no library along.
#
# Usage: spank_symbols_test.sh PLUGIN VERSION_SCRIPT
set -euo pipefail
plugin=$1 map=$2
status=0

exported=$(nm -D --defined-only "$plugin" | awk '{ print $3 }' | sort)
listed=$(sed -n '/global:/,/local:/s/^ *\([a-z_]*\);$/\1/p' "$map" | sort)
diff <(echo "$listed") <(echo "$exported") || { echo "not ok - exported symbols differ from $map"; status=1; }
for symbol in plugin_name plugin_type plugin_version spank_plugin_version slurm_spank_init; do
  grep -qx "$symbol" <<<"$exported" || { echo "not ok - $symbol is missing"; status=1; }
done

# Undefined: versioned ones are the C library's.
foreign=$(nm -D --undefined-only "$plugin" | awk '$1 == "U" { print $2 }' | grep -v '@' |
  grep -vxE 'spank_(context|getenv|get_item|job_control_setenv|option_register|setenv|strerror)|slurm_(error|verbose)' || true)
[[ -z $foreign ]] || { printf 'not ok - symbols of others:\n%s\n' "$foreign"; status=1; }

libraries=$(readelf -d "$plugin" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
others=$(grep -vE '^(libc|libm|libpthread|libdl|ld-linux[a-z0-9_-]*)\.so\.[0-9]+$' <<<"$libraries" || true)
[[ -z $others ]] || { printf 'not ok - needs libraries:\n%s\n' "$others"; status=1; }
! readelf -d "$plugin" | grep -E 'RPATH|RUNPATH' || { echo "not ok - has a search path"; status=1; }
exit "$status"
