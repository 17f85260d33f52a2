#!/bin/bash
# tests/lint.sh --changed: which files it has clang-tidy look at, on branches, on main and in shallow clones, and what it
# says when there is no time for all. clang-format and clang-tidy are played by scripts.
set -uo pipefail
source=${SAILOR_SOURCE_DIR:?}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
not_ok() { echo "not ok - $*"; cat "$folder/log"; exit 1; }
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
export GIT_AUTHOR_NAME=test GIT_AUTHOR_EMAIL=test@localhost GIT_COMMITTER_NAME=test GIT_COMMITTER_EMAIL=test@localhost

mkdir -p "$folder/bin" "$folder/tree/tests" "$folder/tree/src" "$folder/tree/build"
cat >"$folder/bin/clang-format" <<'TEXT'
#!/bin/bash
[[ $1 != --version ]] || echo "clang-format version 14.0.6"
TEXT
# Finds something in files that contain "wrong", and takes long over those that contain "slow". Keeps its compile commands.
cat >"$folder/bin/clang-tidy" <<'TEXT'
#!/bin/bash
file=${*: -1}
echo "looked at $file"
cp "$2/compile_commands.json" build/seen.json
! grep -q slow "$file" || exec sleep 60
! grep -q wrong "$file"
TEXT
chmod +x "$folder"/bin/*
export PATH=$folder/bin:$PATH
cd "$folder/tree" || exit 1
cp "$source"/tests/{lint.sh,base_commit.sh,compile_commands.py} tests/
echo "# none" >tests/unformatted_files.txt
echo build >.gitignore
echo "[]" >build/compile_commands.json
commit() { git add . && git commit -qm "$1"; }
lint() { tests/lint.sh "$@" >"$folder/log" 2>&1; }
# expect STATUS FILES [OPTION...]: what --changed makes of the work tree.
expect() {
  local status=$1 files=$2 found
  shift 2
  lint --changed "$@"
  found=$?
  [[ $found == "$status" ]] || not_ok "$what: status $found, not $status"
  [[ $(sed -n 's/^looked at //p' "$folder/log" | sort | paste -sd ' ') == "$files" ]] ||
    not_ok "$what: clang-tidy looks at '$files'"
}

git init -q -b main
echo one >src/a.cpp
commit first
what="the first commit of all"
expect 0 ""
grep -q "^skipped: clang-tidy: this clone has no main branch" "$folder/log" || not_ok "$what: says that nothing is compared"
echo two >src/b.cpp
commit second
what="on main" && expect 0 src/b.cpp
echo header >src/a.hpp
commit header
what="a header" && expect 0 src/a.cpp
git checkout -qb work
echo three >src/c.cpp
commit third
echo more >>src/a.cpp
echo four >src/d.cpp
what="on a branch, with changes and a new file in the work tree" && expect 0 "src/a.cpp src/c.cpp src/d.cpp"
what="with --base" && expect 0 "src/a.cpp src/b.cpp src/c.cpp src/d.cpp" --base main~2
what="a base that there is not" && expect 2 "" --base nothing
grep -q "there is no commit 'nothing'" "$folder/log" || not_ok "$what: is named"
echo wrong >src/d.cpp
what="a file with a fault" && expect 1 "src/a.cpp src/c.cpp src/d.cpp"
echo slow >src/d.cpp
what="a file that takes too long" && expect 0 "src/a.cpp src/c.cpp src/d.cpp" --seconds 2
grep -q "^skipped: after 2 seconds, clang-tidy did not look at: .*src/d.cpp" "$folder/log" ||
  not_ok "$what: is named"
commit fourth
echo "ok - --changed looks at what a branch changed"

mkdir -p build/x.dir/Unity
for file in a b; do echo "#include \"$folder/tree/src/$file.cpp\""; done >build/x.dir/Unity/unity_0_cxx.cxx
cat >build/compile_commands.json <<TEXT
[
{
  "directory": "$folder/tree/build",
  "command": "c++ -DBATCH -include $folder/cmake_pch.hxx -o x.o -c $folder/tree/build/x.dir/Unity/unity_0_cxx.cxx",
  "file": "$folder/tree/build/x.dir/Unity/unity_0_cxx.cxx"
},
{
  "directory": "$folder/tree/build",
  "command": "c++ -DALONE -o b.o -c $folder/tree/src/b.cpp",
  "file": "$folder/tree/src/b.cpp"
}
]
TEXT
what="sources of a unity build" && expect 0 "src/a.cpp src/c.cpp src/d.cpp" --seconds 2
# command_of FILE: how clang-tidy is told to read it.
command_of() { grep -B 1 -F "\"file\": \"$folder/tree/$1\"" build/seen.json | sed -n 's/^ *"command": "\(.*\)",$/\1/p'; }
[[ $(command_of src/a.cpp) == "c++ -DBATCH -o x.o -c $folder/tree/src/a.cpp" ]] ||
  not_ok "$what: read as '$(command_of src/a.cpp)'"
[[ $(command_of src/b.cpp) == "c++ -DALONE -o b.o -c $folder/tree/src/b.cpp" ]] ||
  not_ok "$what: one that is compiled alone is read as '$(command_of src/b.cpp)'"
echo "ok - each source is read with the command that the build compiles it with"

git clone -q --depth 1 --branch work "file://$folder/tree" "$folder/shallow" 2>/dev/null
mkdir "$folder/shallow/build" && cp build/compile_commands.json "$folder/shallow/build/"
cd "$folder/shallow" || exit 1
what="in a shallow clone without main" && expect 0 ""
grep -q "^skipped: clang-tidy: this clone has no main branch and no earlier commit" "$folder/log" ||
  not_ok "$what: says why it looks at nothing"
echo "ok - a shallow clone is no failure"
