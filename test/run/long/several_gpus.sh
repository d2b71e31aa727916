#!/usr/bin/env bash
# Negative controls of the tests for several GPUs: each rule of test/mutants/several_gpus.txt is
# broken in turn, and the test that it names must fail. The programs are those of the emulated GPU
# with the changed sources; where no rule is broken, the same tests pass. The estimate is five
# minutes on two cores.
. "$(dirname "$0")/../lib/common.sh"
limit=120
rules=$root/test/mutants/several_gpus.txt programs=$build/several_gpus
make -C "$root" --no-print-directory -j"$(env -u OMP_NUM_THREADS nproc)" BUILD="$build" several-gpus >make.log 2>&1
check "the programs with broken rules build" test -x "$programs/libnccl_fake.so" || { tail -n 20 make.log; exit; }

tests() {  # tests PROGRAM RANKS TEST: in the environment of the caller
  command="$3 with the rule '${CHOIR_MUTANT:-}' broken" code=0
  LAUNCH_LIMIT=$((limit * patience)) launch "$2" "$programs/test_$1" --gtest_filter="$3" --gtest_fail_fast --gtest_color=no >out 2>&1 </dev/null || code=$?
}
awk '/^rule / { rule = $2; sub(":", "", rule) } /^seen by / { print rule, $3, $4, $5 }' "$rules" >seen
check "every rule names its test" test "$(grep -c '^rule ' "$rules")" = "$(wc -l <seen)"
while read -r program ranks; do
  names=$(awk -v p="$program" -v n="$ranks" '$2 == p && $3 == n { print $4 }' seen | sort -u)
  tests "$program" "$ranks" "$(tr '\n' ':' <<<"$names")"
  expect "no rule is broken: tests of $program on $ranks rank(s)" 0 "[  PASSED  ] $(wc -l <<<"$names") test"
done < <(cut -d' ' -f2,3 seen | sort -u)
while read -r rule program ranks name; do
  export CHOIR_MUTANT=$rule
  tests "$program" "$ranks" "$name"
  unset CHOIR_MUTANT
  if [ "$code" = 0 ]; then fail "$rule" "$name passes"
  else check "$rule: $name notices" grep -qE ': Failure|made no progress|host_cuda: ' out || show_output
  fi
done <seen
rm -rf "$programs"
