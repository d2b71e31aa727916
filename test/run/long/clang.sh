#!/usr/bin/env bash
# The other compiler: Clang (16 is the first version that works) builds choir without a warning, and
# its programs pass the unit tests and those of two ranks.
# shellcheck source=../lib/another_build.sh
. "$(dirname "$0")/../lib/another_build.sh"
does() { printf '#include <source_location>\nint main() { return std::source_location::current().line() != 2; }' |
  "$1" -std=c++20 -fopenmp -x c++ - -o does 2>/dev/null && ./does; }
compiler=""
for name in clang++ clang++-{16..21}; do does "$name" && compiler=$name; done
if [ -z "$compiler" ]; then
  skip "Clang" "none from 16 on with OpenMP is installed (.make/deps.sh --long installs it)"
  exit
fi
clang=$root/build/clang
OMPI_CXX=$compiler build_another "$clang" CUDA_HOME=none WERROR=1 "$clang/choir" "$clang/test_unit" "$clang/test_mpi" || exit
check "it is Clang's" grep -qa "clang version" "$clang/choir"
tests "unit tests" 1 "$clang/test_unit"
tests "MPI tests, 2 ranks" 2 "$clang/test_mpi"
