#!/usr/bin/env bash
# The other compiler: Clang builds choir without a warning, and what it built passes the unit tests and those of two ranks.
# shellcheck source=../lib/another_build.sh
. "$(dirname "$0")/../lib/another_build.sh"
if ! command -v clang++ >/dev/null; then
  pass "Clang: not installed here (.make/deps.sh --fuzz installs it)"
  exit
fi
clang=$root/build/clang
OMPI_CXX=clang++ build_another "$clang" CUDA_HOME=none WERROR=1 "$clang/choir" "$clang/test_unit" "$clang/test_mpi" || exit
check "it is Clang's" grep -qa "clang version" "$clang/choir"
tests "unit tests" 1 "$clang/test_unit"
tests "MPI tests, 2 ranks" 2 "$clang/test_mpi"
