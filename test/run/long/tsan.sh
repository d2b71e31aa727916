#!/usr/bin/env bash
# ThreadSanitizer on a separate build: every MPI test on 1, 2 and 3 ranks; the unit tests of code
# with threads (communicators, flight recorder and watchdog; checkpoints; reading ahead; state on
# disk); the program, saving in the background while it trains, stopped, and resumed. Libraries are
# not instrumented, so their synchronization is not seen, and races with their threads are left out.
# It takes half an hour on two cores, six minutes of it for the build.
# shellcheck source=../lib/sanitizer.sh
. "$(dirname "$0")/../lib/sanitizer.sh"
threads=$root/build/threads
build_sanitized "$threads" thread "$threads/choir" "$threads/test_mpi" || exit
build_sanitized "$threads" thread ONLY=comm,core,checkpoint,data,optim "$threads/test_unit" || exit
libraries_stay
export TSAN_OPTIONS=suppressions=$root/test/run/lib/races.suppressions:ignore_noninstrumented_modules=1:halt_on_error=0:exitcode=66
export ASAN_OPTIONS="" LSAN_OPTIONS="" UBSAN_OPTIONS=""
export CHOIR_TEST_TIMEOUT=900 TEST_PATIENCE=8
tests "unit tests of what has threads" 1 "$threads/test_unit"
for ranks in 1 2 3; do tests "MPI tests, $ranks rank(s)" "$ranks" "$threads/test_mpi"; done
for name in async_save stop stream; do script "$name" "$threads"; done
