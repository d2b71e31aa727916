#!/usr/bin/env bash
# run_shards.sh PROGRAM [GoogleTest option ...]: runs the tests of a program of one rank,
# distributed over the cores (one emulated GPU is one thread). FAIL_FAST=1: the only question is if
# any test fails. WORKERS=N: N processes at a time, for a GPU, whose first fault ends a process:
# each process then has only a few tests. Prints a line "skipped NAME: REASON" for each skipped
# test, and at last "N passed, N failed, N skipped".
set -u
# shellcheck source=run/lib/outcomes.sh
. "$(dirname "$0")/run/lib/outcomes.sh"
program=$1
shift
workers=${WORKERS:-$(env -u OMP_NUM_THREADS nproc)}
shards=${SHARDS:-$((16 * workers))}  # so that none waits long for the last one
logs=$(mktemp -d)
: >"$logs/outcomes"
trap 'rm -rf "$logs"' EXIT
if [ ! -x "$program" ]; then
  echo "FAILED: $program is missing"
  echo "0 passed, 1 failed, 0 skipped"
  exit 1
fi
# ThreadSanitizer needs certain addresses; leaks of MPI at its end are not our defects.
fixed=""
setarch -R true 2>/dev/null && fixed="setarch -R"
export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0 UBSAN_OPTIONS=print_stacktrace=1 \
  TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 OMP_NUM_THREADS=1
# Each worker takes the next shard until there is none; creating the name takes it. Files of
# different tests have different names.
worker() {
  local i code
  for ((i = 0; i < shards; ++i)); do
    [ -z "${FAIL_FAST:-}" ] || [ ! -e "$logs/failed" ] || return
    mkdir "$logs/tmp.$i" 2>/dev/null || continue
    CHOIR_TEST_OUTCOMES=$logs/outcomes TMPDIR=$logs/tmp.$i TEST_TMPDIR=$logs/tmp.$i GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i \
      $fixed "$program" --gtest_brief=1 ${FAIL_FAST:+--gtest_fail_fast} "$@" >"$logs/$i" 2>&1
    code=$?
    [ "$code" -eq 0 ] || : >"$logs/failed"
    echo "$code" >"$logs/$i.code"
  done
}
for ((w = 0; w < workers; ++w)); do worker "$@" & done
wait
passed=0 failed=0 skipped=0
for ((i = 0; i < shards; ++i)); do
  [ -e "$logs/$i.code" ] || { [ -n "${FAIL_FAST:-}" ] && [ -e "$logs/failed" ] && continue; }
  grep -av '^ranks=' "$logs/$i"
  counts=$(counts_of <(grep -a '^ranks=' "$logs/$i"))
  read -r good bad left <<<"${counts:-0 1 0}"  # without counts it died
  code=$(cat "$logs/$i.code" 2>/dev/null || echo 1)
  passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + left))
  [ "$code" -eq 0 ] || [ "$bad" -gt 0 ] || { echo "FAILED: shard $i ends with exit code $code"; failed=$((failed + 1)); }
done
[ -z "${CHOIR_TEST_OUTCOMES:-}" ] || cat "$logs/outcomes" >>"$CHOIR_TEST_OUTCOMES"
awk -F'\t' '$1 == "skipped" { print "skipped " $2 ": " $3 }' "$logs/outcomes" | sort
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
