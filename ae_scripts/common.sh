# Functions that the scripts share: messages, packages, building. Sourced, not run.
# shellcheck shell=bash

# sailor_root: the source tree that this file lies in.
sailor_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

step() { printf '\n==> %s\n' "$*"; }
die() {
  printf '%s: error: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}
# The same of a wrong command line.
bad_usage() {
  (die "$@") || exit 2
}

# packages_of GROUP...: the Debian packages of these groups of debian-packages.txt.
packages_of() {
  local group
  for group in "$@"; do
    awk -v group="$group" '$1 == group { for (i = 2; i <= NF; ++i) print $i }' "$sailor_root/ae_scripts/debian-packages.txt"
  done
}

# missing_packages GROUP...: those of these groups that are not installed. On a system without dpkg, or with
# SAILOR_SKIP_PACKAGES=1, none: there CMake says what it does not find.
missing_packages() {
  (($#)) && [[ ${SAILOR_SKIP_PACKAGES:-0} != 1 ]] && command -v dpkg-query >/dev/null || return 0
  local package wanted installed
  mapfile -t wanted < <(packages_of "$@")
  installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "${wanted[@]}" 2>/dev/null || true)
  for package in "${wanted[@]}"; do
    grep -qxF "$package installed" <<<"$installed" || echo "$package"
  done
}

# run_apt ARGUMENT...: as root or by sudo without a password, without questions, and waiting for another apt that runs.
run_apt() {
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 -q -y)
  ((EUID == 0)) || apt=(sudo -n "${apt[@]}")
  "${apt[@]}" "$@"
}

# install_packages PACKAGE...
install_packages() {
  (($#)) || return 0
  local package
  step "Installing $# packages: $*"
  run_apt install --no-install-recommends "$@" | grep -E '^(Setting up|E:|Err)' || true
  for package in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
      die "package $package could not be installed"
  done
}

# ensure_packages GROUP... [beside GROUP...]: installs what is missing; otherwise, without the right to, names it and
# stops. Groups after the word "beside" are installed while the script goes on: packages_ready waits for them.
packages_pid=
ensure_packages() {
  local groups=() now later missing
  while (($#)) && [[ $1 != beside ]]; do groups+=("$1"); shift; done
  mapfile -t now < <(missing_packages "${groups[@]}")
  mapfile -t later < <(missing_packages "${@:2}")
  missing=("${now[@]}" "${later[@]}")
  ((${#missing[@]})) || return 0
  ((EUID == 0)) || { command -v sudo >/dev/null && sudo -n true 2>/dev/null; } ||
    die "these packages are missing: ${missing[*]}
Ask an administrator for:  apt-get install ${missing[*]}
or provide what they hold through CMAKE_PREFIX_PATH (modules, Spack, a uenv) and set SAILOR_SKIP_PACKAGES=1."
  run_apt update >/dev/null || die "apt-get update failed"
  install_packages "${now[@]}"
  ((${#later[@]})) || return 0
  install_packages "${later[@]}" </dev/null &
  packages_pid=$!
}
packages_ready() {
  [[ -z $packages_pid ]] || wait "$packages_pid" || exit
  packages_pid=
}

# ensure_cudnn_frontend: the headers of cuDNN's C++ frontend from PyPI, where there is a CUDA toolkit. Without them attention
# on GPUs is compiled without tensor cores.
ensure_cudnn_frontend() {
  local folder="$sailor_root/build/cudnn-frontend"
  [[ -z ${CUDNN_FRONTEND_HOME:-} ]] && command -v nvcc >/dev/null || return 0
  if [[ ! -e $folder/include/cudnn_frontend.h ]]; then
    step "Fetching the headers of cuDNN's frontend"
    python3 -m pip install --quiet --no-deps --target "$folder" 'nvidia-cudnn-frontend>=1.8' || return 0
  fi
  export CUDNN_FRONTEND_HOME=$folder
}

# build_preset PRESET TARGET [CMAKE_OPTION...]: configures and builds, showing progress. A lock on the build folder keeps
# two builds of one preset apart; the kernel releases it when a build is killed.
build_preset() {
  local preset=$1 target=$2
  shift 2
  cd "$sailor_root" || exit
  local folder="$sailor_root/build"
  [[ $preset == default ]] || folder+="-$preset"
  mkdir -p "$folder"
  (
    flock -n 9 || { echo "waiting for another build of preset $preset"; flock 9; }
    # The summary is worth reading once, and again when something is wrong.
    if ! output=$(cmake --preset "$preset" "$@" 2>&1); then
      printf '%s\n' "$output" >&2
      exit 1
    fi
    printf '%s\n' "$output" | sed -n '/^-- Sailor/,$p' | grep -v '^-- \(Configuring\|Generating\|Build files\)' || true
    NINJA_STATUS='[%f/%t, %es] ' cmake --build --preset "$preset" --target "$target"
  ) 9<"$folder"
}

# ---- The figures of the paper. A script of a figure says what it makes (figure_usage) and calls one of the functions below.

# figure_options USAGE_FUNCTION ARGUMENT...: --jobs, --output, --again and --no-build, into the variables below.
figures_folder="$sailor_root/build/figures"
jobs=
again=()
build=1
figure_options() {
  local usage=$1
  shift
  while (($#)); do
    case $1 in
      -j | --jobs)
        [[ ${2:-} =~ ^[1-9][0-9]{0,3}$ ]] || bad_usage "$1 needs a number of at least 1"
        jobs=$2
        shift
        ;;
      -o | --output)
        [[ -n ${2:-} ]] || bad_usage "$1 needs a folder"
        figures_folder=$2
        shift
        ;;
      --again) again=(--again) ;;
      --no-build) build=0 ;;
      -h | --help) "$usage"; exit 0 ;;
      *) bad_usage "unknown option '$1' (see ae_scripts/$(basename "$0") --help)" ;;
    esac
    shift
  done
  mkdir -p "$figures_folder" || die "cannot make the folder '$figures_folder'"
  figures_folder=$(cd "$figures_folder" && pwd)
}

# figure_usage NAME PURPOSE TIME: what --help says; more lines for examples come from stdin, if any.
figure_usage() {
  cat <<TEXT
ae_scripts/$1: $2

Usage: ae_scripts/$1 [--jobs N] [--output FOLDER] [--again] [--no-build]

  -j, --jobs N         points at the same time [default: one for each core]
  -o, --output FOLDER  folder for tables (.md, .csv, .h5) and pictures (.svg, .png) [$figures_folder]
  --again              do points again that were finished by an earlier call
  --no-build           use the programs as they are (SAILOR_BIN, default build/bin)
  -h, --help           this text

Takes about $3 on two cores; an interrupted call goes on where it was.

Examples:
  ae_scripts/$1
  ae_scripts/$1 --output /tmp/figures --jobs 8
TEXT
}

# figure_programs: builds what figures need, unless --no-build or SAILOR_BIN says that it is there.
sailor_bin=${SAILOR_BIN:-$sailor_root/build/bin}
figure_programs() {
  if ((build)) && [[ -z ${SAILOR_BIN:-} ]]; then
    ensure_packages build run
    step "Building sailor-sweep, sailor-plan and sailor-simulate"
    build_preset default sailor-sweep
    build_preset default sailor-simulate
  fi
  local program
  for program in sailor-sweep sailor-plan sailor-simulate; do
    [[ -x $sailor_bin/$program ]] || die "there is no program '$sailor_bin/$program'; leave out --no-build, or set SAILOR_BIN"
  done
  command -v gnuplot >/dev/null || die "there is no program 'gnuplot'; install Debian's package gnuplot-nox"
}

# experiment_title NAME: of experiments/NAME.toml.
experiment_title() { sed -n 's/^title = "\(.*\)"$/\1/p' "$sailor_root/experiments/$1.toml"; }

# make_figure KIND NAME: runs experiments/NAME.toml and makes its tables and pictures. Points that fail are shown as such,
# and make the status 1 in the end.
failed_points=0
make_figure() {
  local kind=$1 name=$2 title status=0
  title=$(experiment_title "$name")
  step "$title"
  "$sailor_bin/sailor-sweep" "$sailor_root/experiments/$name.toml" --output "$figures_folder/sweeps/$name" \
    ${jobs:+--jobs "$jobs"} "${again[@]}" || status=$?
  # 1: a point failed; 3: no point has a plan. Both leave tables; anything else has said what is wrong.
  ((status == 0 || status == 1 || status == 3)) || exit "$status"
  [[ -e $figures_folder/sweeps/$name/$name.csv ]] || die "sailor-sweep left no table of $name"
  ((status == 0)) || failed_points=1
  python3 "$sailor_root/ae_scripts/figures" "$kind" "$name" --title "$title" --sweep "$figures_folder/sweeps/$name" \
    --output "$figures_folder" || die "the figure of $name could not be made"
  printf 'table %s, pictures beside it\n' "$figures_folder/$name.md"
}

# make_accuracy FIGURE [OPTION...]: figure 5a or 5b (or "" for both), of the published runs unless the options name others.
make_accuracy() {
  local figure=$1
  shift
  (($#)) || set -- --cases "$sailor_root/experiments/gh200-opt-350m.toml"
  step "Estimates of measured runs"
  python3 "$sailor_root/ae_scripts/figures" accuracy --sailor-simulate "$sailor_bin/sailor-simulate" ${figure:+--figure "$figure"} \
    "$@" --output "$figures_folder" || die "the figure could not be made"
  printf 'tables and pictures in %s\n' "$figures_folder"
}

# figure_end: the status of a script: 1 when a point failed.
figure_end() { exit "$failed_points"; }
