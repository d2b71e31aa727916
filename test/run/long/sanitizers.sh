#!/usr/bin/env bash
# The unit tests, the tests on two ranks and a short training under AddressSanitizer and UBSan: a build of its own, with
# the portable vector width, so that the fallbacks of the kernels run too. About 15 minutes.
. "$(dirname "$0")/../lib/common.sh"
sanitized=$root/build/sanitized
# Open MPI and its plugins keep memory until the process ends; the tests count operator new by their own, built on malloc.
export ASAN_OPTIONS=detect_leaks=0:alloc_dealloc_mismatch=0:halt_on_error=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
make -C "$root" -j"$(nproc)" BUILD="$sanitized" SANITIZE=address,undefined MARCH=x86-64-v3 CUDA_HOME=none \
  "$sanitized/choir" "$sanitized/test_unit" "$sanitized/test_mpi" >make.log 2>&1
check "builds" test -x "$sanitized/choir" -a -x "$sanitized/test_unit" -a -x "$sanitized/test_mpi" || tail -n 20 make.log
sums() { tail -n 1 "$1" | grep -qE ' [1-9][0-9]* passed, 0 failed$'; }
LAUNCH_LIMIT=900 launch 1 "$sanitized/test_unit" >unit.log 2>&1
check "unit tests" sums unit.log || grep -aE -A 20 'Failure|ERROR: |runtime error' unit.log | head -n 60
LAUNCH_LIMIT=900 launch 2 "$sanitized/test_mpi" >mpi.log 2>&1
check "tests on two ranks" sums mpi.log || grep -aE -A 20 'Failure|ERROR: |runtime error' mpi.log | head -n 60
choir=$sanitized/choir
train 2 sanitized train.max_steps=30 checkpoint.interval=10
expect "a short training" 0 "summary:"
