#!/usr/bin/env bash
# hopper_mutations.sh BUILD: negative controls of the code for sm_90a. Breaks one descriptor, phase
# of a barrier, wait or arrival at a time (test/host_cuda/hopper_mutants.txt). All are built into
# one program that is told which one to break; a test must fail and name the reason. The last line
# is "N passed, N failed".
set -u
build=$(realpath "$1")
cd "$(dirname "$0")/../.." || exit 1
build=$(realpath --relative-to=. "$build")  # by the name that make uses
mutants=$build/hopper_mutants tests='CudaAttention.WarpGroupsTsan'
passed=0 failed=0
rm -rf "$mutants" && mkdir -p "$mutants"
printf '%s\n' '#pragma once' '// Which rule is asked to be broken.' '#include <cstdlib>' 'inline bool hopper_mutant(int k) {' \
  '  const char* which = std::getenv("HOPPER_MUTANT");' '  return which && std::atoi(which) == k;' '}' >"$mutants/hopper_mutant.hpp"
number=0 words=()
while IFS='|' read -r file find put why; do
  case $file in '#'* | '') continue ;; esac
  file=${file% } number=$((number + 1)) words[number]=${why# }
  mkdir -p "$mutants/$(dirname "$file")"
  [ -e "$mutants/$file" ] || sed 's/^#pragma once$/&\n#include "hopper_mutant.hpp"/' "$file" >"$mutants/$file"
  if ! FIND=$(sed 's/^ //; s/ $//; s/@/\n/g' <<<"$find") PUT=$(sed "s/^ //; s/ \$//; s/@/\n/g; s/BROKEN/hopper_mutant($number)/" <<<"$put") \
    perl -0pi -e '$n = s/\Q$ENV{FIND}\E/$ENV{PUT}/g; END { exit($n == 1 ? 0 : 1) }' "$mutants/$file"; then
    echo "not ok rule $number: $file does not contain exactly once:$find"; failed=$((failed + 1))
  fi
done <test/host_cuda/hopper_mutants.txt
if [ "$failed" -eq 0 ] && ! make --no-print-directory BUILD="$build" mutant VARIANT=plain MUTANTS="$mutants" \
  MUTATED="kernels/attention/cuda/attention_hopper_forward_bf16.cu kernels/attention/cuda/attention_hopper_backward_bf16.cu" >"$mutants/log" 2>&1; then
  echo "not ok the mutants do not build"; tail -n 20 "$mutants/log"; failed=$((failed + 1))
fi
[ "$failed" -eq 0 ] || number=-1
# Rule 0 breaks nothing.
for ((k = 0; k <= number; ++k)); do
  if HOPPER_MUTANT=$k timeout 60 "$mutants/program" --gtest_filter="$tests" --gtest_fail_fast >"$mutants/log" 2>&1; then
    noticed=no
  else
    noticed=$(grep -m1 -aoE "${words[k]:-.*}" "$mutants/log")
  fi
  if [ "$k" -eq 0 ]; then expected=no what="nothing broken"; else expected=$noticed what="rule $k"; fi
  if { [ "$k" -eq 0 ] && [ "$noticed" = no ]; } || { [ "$k" -gt 0 ] && [ "$noticed" != no ] && [ -n "$noticed" ]; }; then
    echo "ok $what: $expected"; passed=$((passed + 1))
  else
    echo "not ok $what: ${noticed:-it fails, but says nothing of ${words[k]}}"; tail -n 3 "$mutants/log"; failed=$((failed + 1))
  fi
done
[ -n "${KEEP_MUTANTS:-}" ] || rm -rf "$mutants"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
