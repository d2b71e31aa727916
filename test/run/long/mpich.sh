#!/usr/bin/env bash
# The other MPI: choir built with Debian's MPICH (whose ABI Cray's has) passes unit tests, MPI tests on 1 to 4 ranks and the
# scripts that train, resume, stop and fail; its results are those with Open MPI, to the last bit.
# MPICH spins while it creates communicators and opens files, so if there are more ranks than cores
# the tests of 4 ranks take a quarter of an hour.
# shellcheck source=../lib/another_build.sh
. "$(dirname "$0")/../lib/another_build.sh"
if ! command -v mpicxx.mpich >/dev/null || ! command -v mpiexec.mpich >/dev/null; then
  skip "MPICH" "it is not installed (.make/deps.sh --long installs it)"
  exit
fi
mpich=$root/build/mpich
build_another "$mpich" MPICXX=mpicxx.mpich CUDA_HOME=none "$mpich/choir" "$mpich/test_unit" "$mpich/test_mpi" || exit
check "it is MPICH's" eval 'ldd "$mpich/choir" | grep -q libmpich && ! ldd "$mpich/choir" | grep -q libmpi.so.40'

train 2 open_mpi train.precision=fp64
expect "trains with Open MPI" 0 "summary:"
export MPIEXEC=mpiexec.mpich TEST_PATIENCE=20 CHOIR_TEST_TIMEOUT=900
choir=$mpich/choir patience=20
train 2 mpich train.precision=fp64
expect "trains with MPICH" 0 "summary:"
check "... to the same bits" same "weights open_mpi" "weights mpich"
run 4 verify "$root/inputs/verify_gpt.json" --layouts quick
expect "quick verify on 4 ranks" 0 "VALID"

tests "unit tests" 1 "$mpich/test_unit"
for ranks in 1 2 3 4; do tests "MPI tests, $ranks rank(s)" "$ranks" "$mpich/test_mpi"; done
for name in train decks resume stop faults data; do script "$name" "$mpich"; done

ln -s "$root/inputs" inputs
mkdir -p data/shakespeare
{ echo "ROMEO:"; cat text.txt; } >data/shakespeare/input.txt  # with the letters of the prompt
command=quickstart.sh
QUICKSTART_OVERRIDES="train.max_steps=20 eval.interval=10 optimizer.warmup_steps=2" "$root/.make/quickstart.sh" "$mpich" >out 2>&1 </dev/null
code=$?
expect "a shortened quickstart" 0 "the loss fell from"
