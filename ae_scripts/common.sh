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

# ensure_packages GROUP...: installs what is missing, as root or by sudo without a password; otherwise names it and stops.
# On a system without dpkg, or with SAILOR_SKIP_PACKAGES=1, it does nothing: there CMake says what it does not find.
ensure_packages() {
  [[ ${SAILOR_SKIP_PACKAGES:-0} != 1 ]] && command -v dpkg-query >/dev/null || return 0
  local package missing=()
  while read -r package; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
  done < <(packages_of "$@")
  ((${#missing[@]})) || return 0
  local prefix=()
  if ((EUID != 0)); then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
      prefix=(sudo -n)
    else
      die "these packages are missing: ${missing[*]}
Ask an administrator for:  apt-get install ${missing[*]}
or provide what they hold through CMAKE_PREFIX_PATH (modules, Spack, a uenv) and set SAILOR_SKIP_PACKAGES=1."
    fi
  fi
  step "Installing ${#missing[@]} packages: ${missing[*]}"
  # Without a terminal, without questions, and waiting for another apt that runs just now.
  local apt=("${prefix[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 -q -y)
  "${apt[@]}" update >/dev/null || die "apt-get update failed"
  "${apt[@]}" install --no-install-recommends "${missing[@]}" | grep -E '^(Setting up|E:|Err)' || true
  for package in "${missing[@]}"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] ||
      die "package $package could not be installed"
  done
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

# build_preset PRESET TARGET [CMAKE_OPTION...]: configures and builds, showing progress. A lock keeps two builds of one
# preset apart; the kernel releases it when a build is killed.
build_preset() {
  local preset=$1 target=$2
  shift 2
  cd "$sailor_root" || exit
  local lock="$sailor_root/.build-$preset.lock"
  (
    flock -n 9 || { echo "waiting for another build of preset $preset"; flock 9; }
    # The summary is worth reading once, and again when something is wrong.
    if ! output=$(cmake --preset "$preset" "$@" 2>&1); then
      printf '%s\n' "$output" >&2
      exit 1
    fi
    printf '%s\n' "$output" | sed -n '/^-- Sailor/,$p' | grep -v '^-- \(Configuring\|Generating\|Build files\)' || true
    NINJA_STATUS='[%f/%t, %es] ' cmake --build --preset "$preset" --target "$target"
  ) 9>"$lock"
}
