# shellcheck shell=bash
# Sourced in place of common.sh by the scripts that build the program once more, under a sanitizer, and run tests of it:
#
#   build_sanitized DIRECTORY SANITIZERS ARGUMENT...   make's arguments: targets of DIRECTORY, variables
#   libraries_stay                                     from here on nothing is unloaded: reports name what was there
#   tests NAME RANKS PROGRAM OPTION...                 runs a test program, counts its tests
#   script NAME DIRECTORY                              runs test/run/NAME.sh on that build, counts its checks
#   findings PATTERN                                   what a sanitizer's report begins with
#
# A report anywhere is a failure even if every test passes, and leaves its first lines.

# The shadow memory of a sanitizer has its place, and the kernel may put something else there.
if [ -z "${CHOIR_FIXED_ADDRESSES:-}" ] && setarch -R true 2>/dev/null; then
  CHOIR_FIXED_ADDRESSES=1 exec setarch -R "$0" "$@"
fi
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# The same processor for everyone, so that what it lacks is made up for by code that is tested here.
build_sanitized() {
  local directory=$1 sanitizers=$2
  shift 2
  if make -C "$root" -k -j"$(env -u OMP_NUM_THREADS nproc)" BUILD="$directory" SANITIZE="$sanitizers" MARCH=x86-64-v3 CUDA_HOME=none "$@" \
    >make.log 2>&1; then pass "builds in $SECONDS s"
  else
    fail "builds" "$sanitizers"
    grep -aE -A 4 'error|Error|undefined' make.log | head -n 40
    return 1
  fi
}

# Plugins of Open MPI are closed before anyone asks where a leak was allocated, or which library a thread was in.
libraries_stay() {
  echo 'extern "C" int dlclose(void*) { return 0; }' |
    "${MPICXX:-mpicxx}" -x c++ -shared -fPIC -o "$work/stay_loaded.so" - || exit
  export LD_PRELOAD=$work/stay_loaded.so
}

findings='ERROR: (Address|Leak)Sanitizer|runtime error: |WARNING: ThreadSanitizer'
# counted LOG CODE PATTERN NAME: adds "N passed, N failed" of a log to the sums; a bad end without a failure is one.
counted() {
  local counts
  counts=$(sed -nE "s/$3/\1 \2/p" "$1" | tail -n 1)
  counts=${counts:-0 0}
  passed=$((passed + ${counts% *})) failed=$((failed + ${counts#* }))
  echo "ok $4: ${counts% *} of them, $SECONDS s since the beginning"
  if [ "${counts#* }" -gt 0 ]; then grep -aE '^not ok|^FAILED: ' "$1" | sed "s|^|$4: |"; fi
  if grep -qaE "$findings" "$1"; then fail "$4" "the sanitizer found something"
  elif [ "${counts#* }" -eq 0 ] && { [ "$2" -ne 0 ] || [ "${counts% *}" -eq 0 ]; }; then fail "$4" "exit code $2"
  else return 0
  fi
  if grep -qaE "$findings|: Failure\$" "$1"; then grep -aE -A 30 "$findings|: Failure\$" "$1" | head -n 90
  else tail -n 10 "$1"
  fi | sed 's/^/    | /'
}
# In the root of the repository, as `make test` runs them.
tests() {
  local name=$1 ranks=$2 log
  shift 2
  log=$work/$(basename "$1").$ranks.log
  (cd "$root" && LAUNCH_LIMIT=3600 launch "$ranks" "$@") >"$log" 2>&1 </dev/null
  counted "$log" $? '^ranks=[0-9]+: ([0-9]+) passed, ([0-9]+) failed$' "$name"
}
# A report goes where the program's words go, which a script shows only when it misses others: here it has a file.
script() {
  local log=$work/$1.log code
  (cd / && ASAN_OPTIONS=$ASAN_OPTIONS:log_path=$work/found LSAN_OPTIONS=$LSAN_OPTIONS:log_path=$work/found \
    UBSAN_OPTIONS=$UBSAN_OPTIONS:log_path=$work/found TSAN_OPTIONS=$TSAN_OPTIONS:log_path=$work/found \
    "$root/test/run/$1.sh" "$2") >"$log" 2>&1 </dev/null
  code=$?
  cat "$work"/found.* >>"$log" 2>/dev/null
  rm -f "$work"/found.*
  counted "$log" "$code" '^([0-9]+) passed, ([0-9]+) failed$' "run/$1"
}
