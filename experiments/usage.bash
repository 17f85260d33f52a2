# read_usage NUMBERS ARGUMENT...: prints the comment at the script's beginning for -h and --help, and refuses options and
# whatever is no whole number among the first NUMBERS arguments.
read_usage() {
  local numbers=$1 argument
  shift
  for argument; do
    if [[ $argument == -h || $argument == --help ]]; then
      sed -n '2,/^[^#]/{/^#/!d;s/^# \{0,1\}//p}' "$0"
      exit
    fi
    if [[ $argument == -* ]] || { ((numbers-- > 0)) && ! [[ $argument =~ ^[0-9]{1,9}$ ]]; }; then
      echo "$(basename "$0"): error: '$argument' is no $([[ $argument == -* ]] && echo option || echo 'whole number') (see $(basename "$0") --help)" >&2
      exit 2
    fi
  done
}
