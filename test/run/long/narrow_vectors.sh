#!/usr/bin/env bash
# Vectors of 16 bytes: built for a processor without AVX, all operators pass their tests, and no
# code uses MMX, which would leave the x87 unit unusable.
# shellcheck source=../lib/another_build.sh
. "$(dirname "$0")/../lib/another_build.sh"
if [ "$(uname -m)" != x86_64 ]; then
  skip "vectors of 16 bytes" "the processor is not an x86-64"
  exit
fi
narrow=$root/build/narrow
build_another "$narrow" MARCH=x86-64-v2 CUDA_HOME=none ONLY=ops "$narrow/test_unit" || exit
check "no instruction of MMX" eval '! find "$narrow/obj" -name "*.o" -exec objdump -d --no-show-raw-insn {} + | grep -q "%mm[0-7]"'
tests "operators" 1 "$narrow/test_unit"
