#!/usr/bin/env bash
# run_shards.sh PROGRAM [GoogleTest option ...]: the tests of a host-execution program, spread over the cores (one
# emulated GPU is one thread). Last line "N passed, N failed".
set -u
program=$1
shift
cores=$(nproc)
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
# ThreadSanitizer wants addresses where it expects them; leaks of MPI at its end are not ours to find.
fixed=""
setarch -R true 2>/dev/null && fixed="setarch -R"
export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0 UBSAN_OPTIONS=print_stacktrace=1 \
  TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1 OMP_NUM_THREADS=1
for ((i = 0; i < cores; ++i)); do
  (
    GTEST_TOTAL_SHARDS=$cores GTEST_SHARD_INDEX=$i $fixed "$program" --gtest_brief=1 "$@" >"$logs/$i" 2>&1
    echo "$?" >"$logs/$i.code"
  ) &
done
wait
passed=0 failed=0
for ((i = 0; i < cores; ++i)); do
  grep -v '^ranks=' "$logs/$i"
  counts=$(sed -nE 's/^ranks=.*: ([0-9]+) passed, ([0-9]+) failed$/\1 \2/p' "$logs/$i")
  [ -n "$counts" ] || counts="0 1"  # it died
  code=$(cat "$logs/$i.code")
  passed=$((passed + ${counts% *})) failed=$((failed + ${counts#* }))
  [ "$code" -eq 0 ] || [ "${counts#* }" -gt 0 ] || { echo "FAILED: shard $i ends with exit code $code"; failed=$((failed + 1)); }
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
