#!/usr/bin/env bash
# AddressSanitizer, UndefinedBehaviorSanitizer and LeakSanitizer on a separate build for a processor
# of 2015, so that the fallbacks of the kernels run, too: every unit test; every MPI test on 1, 2
# and 3 ranks; the scripts of test/run that train, resume, prepare data and transcribe. Kernels for
# GPUs are under the same sanitizers in `make test`. The estimate is an hour on two cores, a quarter
# of it for the build.
# shellcheck source=../lib/sanitizer.sh
. "$(dirname "$0")/../lib/sanitizer.sh"
sanitized=$root/build/sanitized
build_sanitized "$sanitized" address,undefined "$sanitized/choir" "$sanitized/test_unit" "$sanitized/test_mpi" || exit
libraries_stay
# The test programs replace `new` by a counter that uses malloc: mismatches are detected in the
# program only.
common=detect_leaks=1:halt_on_error=1:verify_asan_link_order=0:detect_stack_use_after_return=1:strict_string_checks=1
export ASAN_OPTIONS=$common:alloc_dealloc_mismatch=0 UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=""
export LSAN_OPTIONS=print_suppressions=0:suppressions=$root/test/run/lib/leaks.suppressions
export CHOIR_TEST_TIMEOUT=900 TEST_PATIENCE=60
tests "unit tests" 1 "$sanitized/test_unit"
for ranks in 1 2 3; do tests "MPI tests, $ranks rank(s)" "$ranks" "$sanitized/test_mpi"; done
export ASAN_OPTIONS=$common
for name in train resume async_save warm_start stop faults storage data decks plan tools layouts tensor pipeline zero offload \
  recompute precision freeze prepare_audio prepare_speech stream speech_train transcribe verify_asr report; do
  script "$name" "$sanitized"
done
