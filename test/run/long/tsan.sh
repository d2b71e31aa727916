#!/usr/bin/env bash
# The tests of communicators, flight recorder and watchdog under ThreadSanitizer: a build of its own of those tests.
# Open MPI is not instrumented, so that what it orders is not seen: races inside of it are left out. About 10 minutes.
. "$(dirname "$0")/../lib/common.sh"
threads=$root/build/threads
cat >suppressions <<'END'
called_from_lib:libmpi.so
called_from_lib:libopen-pal.so
called_from_lib:libopen-rte.so
called_from_lib:libpmix.so
called_from_lib:libevent
race:libmpi.so
race:libopen-pal.so
race:libopen-rte.so
race:mca_
deadlock:libopen-pal.so
END
export TSAN_OPTIONS="suppressions=$PWD/suppressions ignore_noninstrumented_modules=1 halt_on_error=0 exitcode=66"
make -C "$root" -j"$(nproc)" BUILD="$threads" SANITIZE=thread MARCH=x86-64-v3 ONLY=comm "$threads/test_unit" \
  "$threads/test_mpi" >make.log 2>&1
check "builds" test -x "$threads/test_mpi" || tail -n 20 make.log
clean() { ! grep -q 'WARNING: ThreadSanitizer' "$1" && tail -n 1 "$1" | grep -qE ' [1-9][0-9]* passed, 0 failed$'; }
LAUNCH_LIMIT=600 launch 1 "$threads/test_unit" >unit.log 2>&1
check "unit tests of comm" clean unit.log || grep -A 25 'WARNING: ThreadSanitizer' unit.log | head -n 80
LAUNCH_LIMIT=900 launch 2 "$threads/test_mpi" >mpi.log 2>&1
check "tests of comm on two ranks" clean mpi.log || grep -A 25 'WARNING: ThreadSanitizer' mpi.log | head -n 80
