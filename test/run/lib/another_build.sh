# shellcheck shell=bash
# Sourced in place of common.sh by the scripts that build the program once more and run tests of it:
#
#   build_another DIRECTORY ARGUMENT...   make's arguments: targets of DIRECTORY, variables
#   tests NAME RANKS PROGRAM OPTION...    runs a test program, counts its tests
#   script NAME DIRECTORY                 runs test/run/NAME.sh on that build, counts its checks
#   findings=PATTERN                      any printed line that matches is a failure, even if every test passes
#   reports                               a function that prints VARIABLE=VALUE for scripts, to write to $work/found.*

# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=outcomes.sh
. "$(dirname "${BASH_SOURCE[0]}")/outcomes.sh"
findings='nothing^'  # no line has text before its beginning
reports() { :; }

build_another() {
  local directory=${1#"$root"/}
  shift
  # Targets have the name that make gives the folder, relative to the root of the repository.
  if make -C "$root" -k -j"$(env -u OMP_NUM_THREADS nproc)" BUILD="$directory" "${@/#"$root"\//}" >make.log 2>&1; then pass "builds in $SECONDS s"
  else
    fail "builds" "$*"
    grep -aE -A 4 'error|Error|undefined' make.log | head -n 40
    return 1
  fi
}

# counted LOG CODE NAME: adds the counts of a log to the sums; a bad exit code without a failure
# counts as one. Skipped tests of GoogleTest are not counted: some need another number of ranks, or
# a GPU.
counted() {
  local counts good bad left name reason
  counts=$(counts_of "$1")
  read -r good bad left <<<"${counts:-0 0 0}"
  passed=$((passed + good)) failed=$((failed + bad))
  echo "ok $3: $good of them, $left skipped, $SECONDS s since the beginning"
  while IFS=$'\t' read -r name reason; do skip "$name" "$reason"; done < <(skips_of_script "$3" "$1")
  if [ "$bad" -gt 0 ]; then grep -aE '^not ok|^FAILED: ' "$1" | sed "s|^|$3: |"; fi
  if grep -qaE "$findings" "$1"; then fail "$3" "it says what must not be said"
  elif [ "$bad" -eq 0 ] && { [ "$2" -ne 0 ] || [ "$good" -eq 0 ]; }; then fail "$3" "exit code $2"
  else return 0
  fi
  if grep -qaE "$findings|: Failure\$" "$1"; then grep -aE -A 30 "$findings|: Failure\$" "$1" | head -n 90
  else tail -n 10 "$1"
  fi | sed 's/^/    | /'
}
# The working directory is the root of the repository, as in `make test`.
tests() {
  local name=$1 ranks=$2 log
  shift 2
  log=$work/$(basename "$1").$ranks.log
  (cd "$root" && LAUNCH_LIMIT=3600 launch "$ranks" "$@") >"$log" 2>&1 </dev/null
  counted "$log" $? "$name"
}
script() {
  local log=$work/$1.log code variables
  mapfile -t variables < <(reports)
  (cd / && env ${variables[@]+"${variables[@]}"} "$root/test/run/$1.sh" "$2") >"$log" 2>&1 </dev/null
  code=$?
  cat "$work"/found.* >>"$log" 2>/dev/null
  rm -f "$work"/found.*
  counted "$log" "$code" "run/$1"
}
