#!/usr/bin/env bash
# Tests how run_all.sh, run_shards.sh and .ci/run count passed, failed and skipped tests, on a small
# tree whose test programs and scripts are stand-ins with given results.
. "$(dirname "$0")/lib/common.sh"
[ -e "$root/.ci/run" ] || { skip "the counts" "the sources are not here"; exit; }
tree=$work/tree fake=$work/tree/build
mkdir -p "$tree/test/run/lib" "$tree/.ci" "$tree/bin" "$fake"
cp -r "$root/jobs" "$tree/jobs"
cp "$root"/test/{run_all,run_shards}.sh "$tree/test/"
cp "$root"/test/run/lib/{common,outcomes}.sh "$tree/test/run/lib/"
cp "$root/.ci/run" "$tree/.ci/"
mkdir -p "$tree/inputs" "$tree"/test/unit/{ops,device,comm,deck,lab} "$tree/test/mpi/comm"
echo "TEST(Ops, A) {}" >"$tree/test/unit/ops/ops_test.cpp"
echo "TEST(Mpi, A) {}" >"$tree/test/mpi/comm/mpi_test.cpp"
export PARTS_ABREAST=2 WORKERS=1 SHARDS=2
unset TEST_EXHAUSTIVE CHOIR_TEST_OUTCOMES

# A test program: prints the outcomes in PROGRAM.tests, a line per test, "TEST OUTCOME [RANKS:
# REASON]". OUTCOME is ran, fails, dies or skips; `skips 1 3: REASON` skips on 1 and 3 ranks, and
# runs on others. In shards the first runs all.
cat >"$tree/bin/program" <<'END'
#!/usr/bin/env bash
tests=$(basename "$0").tests ranks=${FAKE_RANKS:-1} good=0 bad=0 left=0
cd "$(dirname "$0")" || exit 1
chosen='*'
for word; do
  case $word in --gtest_filter=*) chosen=${word#*=} ;; --gtest_list_tests) listing=yes ;; esac
done
takes() {  # patterns of GoogleTest, then "-", then others
  local name=$1 pattern yes="" positive=${chosen%%-*} negative=""
  [[ $chosen != *-* ]] || negative=${chosen#*-}
  set -f
  for pattern in ${positive//:/ }; do [[ $name != $pattern ]] || yes=yes; done
  [ -n "${positive:-}" ] || yes=yes
  for pattern in ${negative//:/ }; do [[ $name != $pattern ]] || yes=""; done
  set +f
  [ -n "$yes" ]
}
if [ -n "${listing:-}" ]; then
  while read -r name _; do printf '%s.\n  %s\n' "${name%%.*}" "${name#*.}"; done <"$tests"
  exit
fi
[ "${GTEST_SHARD_INDEX:-0}" = 0 ] || { echo "ranks=1: 0 passed, 0 failed, 0 skipped"; exit 0; }
while read -r name outcome text; do
  takes "$name" || continue
  case " ${text%%:*} " in *" $ranks "*) ;; *) [ "$outcome" != skips ] || outcome=ran ;; esac
  case $outcome in
    ran) good=$((good + 1)); line=$(printf 'ran\t%s' "$name") ;;
    fails) bad=$((bad + 1)); line=$(printf 'ran\t%s' "$name") ;;
    skips) left=$((left + 1)); line=$(printf 'skipped\t%s\t%s' "$name" "${text#*: }") ;;
    dies) echo "ranks=$ranks: died"; exit 1 ;;
  esac
  [ -z "${CHOIR_TEST_OUTCOMES:-}" ] || echo "$line" >>"$CHOIR_TEST_OUTCOMES"
done <"$tests"
echo "ranks=$ranks: $good passed, $bad failed, $left skipped"
[ "$bad" -eq 0 ]
END
# shellcheck disable=SC2016
printf '#!/bin/sh\nFAKE_RANKS=$2; export FAKE_RANKS; shift 2; exec "$@"\n' >"$tree/bin/mpiexec"  # -n RANKS
chmod +x "$tree/bin"/*
export MPIEXEC=$tree/bin/mpiexec
programs="unit mpi host_cuda_mpi host_cuda_plain host_cuda_address host_cuda_thread"
for name in $programs; do cp "$tree/bin/program" "$fake/test_$name"; done
printf '#!/bin/sh\n' >"$fake/choir" && chmod +x "$fake/choir"

# usual: tests and scripts each of which runs in some part. The timed ones are those that run_all.sh
# names.
script() {  # script NAME LINE...
  # shellcheck disable=SC2016
  printf '%s\n' '#!/usr/bin/env bash' '. "$(dirname "$0")/lib/common.sh"' "${@:2}" >"$tree/test/run/$1.sh"
  chmod +x "$tree/test/run/$1.sh"
}
timed() { sed -nE "s/^timed_$1\+?=\":?([^\"]*)\"/\1/p" "$tree/test/run_all.sh" | tr : '\n' | sed 's/\*/X/g; s/$/ ran/'; }
usual() {
  rm -f "$tree"/test/run/*.sh
  { printf '%s\n' "Unit.A ran" "Ops.A ran"; timed unit; } >"$fake/test_unit.tests"
  { printf '%s\n' "Mpi.A ran" "Mpi.OfFour skips 1 2 3: needs 4 ranks" "Gpu.A skips 1 2 3 4: there is no GPU" "LossTerms.A ran"; timed mpi; } >"$fake/test_mpi.tests"
  { printf '%s\n' "Gpu.A ran" "LossTerms.A ran"; timed cuda; } >"$fake/test_host_cuda_mpi.tests"
  for name in plain address thread; do printf '%s\n' "Kernel.A ran" "Kernel.Tsan ran" "Kernel.ChangesNoBit ran" >"$fake/test_host_cuda_$name.tests"; done
  script train 'pass one; pass two'
  script stop 'in_time "it stops" 120 1000'
}
all() { (cd "$tree" && test/run_all.sh build "$@") >out 2>&1; code=$?; command="run_all.sh build $*"; }
last() { [ "$(tail -n 1 out)" = "$1" ] || { tail -n 1 out; return 1; }; }
skips() { diff <(printf '%b' "$*") "$fake/test-logs/skipped"; }
gpu='kernels, on a GPU\tthis build has no CUDA\n'

usual
all
check "all that runs somewhere: nothing but the GPU is skipped" skips "$gpu"
check "... the last line counts it" matches out '^[0-9]+ passed, 0 failed, 1 skipped$'
check "... and nothing comes behind" eval 'tail -n 1 out | grep -qE "^[0-9]+ passed, 0 failed, 1 skipped$"'
expect "... which is listed with its reason above, and is no failure" 0 "this build has no CUDA (1): kernels, on a GPU"
check "... a time that was measured stands beside its bound" has out "    measured: it stops: 120 ms, bound $((1000 * patience)) ms"
check "... timed parts are the last" eval 'grep -nE "passed +0 failed" out | tail -n 1 | grep -q "run/stop"'

echo "Unit.B skips 1: no such processor" >>"$fake/test_unit.tests"
echo "Unit.C skips 1: no such processor" >>"$fake/test_unit.tests"
echo "Mpi.OfFive skips 1 2 3 4: needs 5 ranks" >>"$fake/test_mpi.tests"
all
expect "tests in shards and of several ranks that no run ran" 0 "no such processor (2): Unit.B, Unit.C" "needs 5 ranks (1): Mpi.OfFive"
check "... are counted once" matches out ' passed, 0 failed, 4 skipped$'

usual
script install 'pass one' 'skip "a page: of the manual" "there is no groff: at all"'
script vendor 'skip "all of it" "there is no groff: at all"'
all
expect "scripts that skip" 0 "there is no groff: at all (2): run/vendor: all of it, run/install: a page, of the manual" "(1 skipped)"
check "... count as skipped, not as passed" matches out ' passed, 0 failed, 3 skipped$'

usual
script install 'pass one' 'echo "1 passed, 0 failed, 2 skipped"' 'trap - EXIT; exit 0'
all
expect "skips without a reason" 1 "(2 skipped, 0 with a reason)" ", 1 failed, 1 skipped"
script install 'trap - EXIT; exit 0'
all
expect "a script without a result" 1 "(no test ran)" ", 1 failed, 1 skipped"
script install 'pass one; fail two "for a reason"'
all
expect "a failure" 1 "not ok two: for a reason" ", 1 failed, 1 skipped"
usual
echo "Unit.B fails" >>"$fake/test_unit.tests"
echo "Mpi.B dies" >>"$fake/test_mpi.tests"
all
expect "a test that fails, and programs that die" 1 ", 4 failed, 1 skipped"
usual
echo "Kernel.Never ran" >>"$fake/test_host_cuda_plain.tests"
all
expect "a test that no filter takes" 0 "no part of this run selects it (1): Kernel.Never"
usual
sed -i '/^Watchdog/d' "$fake/test_unit.tests"
all
expect "a timed test that is not there" 1 "no test is called Watchdog.*"

usual
for name in train devices decks plan tools speech_train transcribe; do script $name "pass $name"; done
all --program
expect "a build without CUDA" 0 "needs 4 ranks (1): Mpi.OfFour" "run/transcribe"
check "... leaves out the rest" eval 'lacks out run/stop && lacks out "kernels, shuffled" && matches out ", 0 failed, 2 skipped$"'

# .ci/run, with a make that leaves the outcomes of a run of run_all.sh.
cat >"$tree/bin/make" <<'END'
#!/usr/bin/env bash
for word; do case $word in BUILD=*) build=${word#*=} ;; esac; done
mkdir -p "$build/test-logs"
case ${TESTS:-} in program) list=$FAKE_SECOND ;; *) list=$FAKE_FIRST ;; esac
printf '%b' "$list" >"$build/test-logs/skipped"
echo "${FAKE_LINE:-10 passed, 0 failed, $(wc -l <"$build/test-logs/skipped") skipped}"
[ -z "${FAKE_CODE:-}" ] || { echo "make: *** Error"; exit "$FAKE_CODE"; }
END
chmod +x "$tree/bin/make"
ci() {  # ci FIRST SECOND: the skipped tests of each pass
  (cd "$tree" && FAKE_FIRST=$1 FAKE_SECOND=$2 PATH=$tree/bin:$PATH .ci/run) >out 2>&1
  code=$? command=".ci/run"
}
no_gpu='kernels, on a GPU\tthere is no GPU here\n'
ci "$no_gpu" "$gpu"'Mpi.A\tneeds 4 ranks\n'
expect "CI: what its lists allow" 0
check "... the last line" last "20 passed, 0 failed, 3 skipped"
ci "$no_gpu"'Mpi.A\tneeds 4 ranks\n' "$gpu"
expect "CI: a skip of the first pass that only the second may have" 1 "which .ci/run does not allow: Mpi.A: needs 4 ranks"
check "... is a failure" last "20 passed, 1 failed, 2 skipped"
ci "$no_gpu" "$gpu"'run/train: a check\tof no use\n'
expect "CI: an unknown skip of the second pass" 1 "which .ci/run does not allow: run/train: a check: of no use"
check "... is a failure, too" last "20 passed, 1 failed, 2 skipped"
FAKE_LINE="10 passed, 0 failed, 5 skipped" ci "$no_gpu" "$gpu"
expect "CI: a number of skips without a list of them" 1 "5 tests were skipped, and build/ci/test-logs/skipped does not list as many"
FAKE_LINE="no such line" ci "" ""
check "CI: no last line" last "0 passed, 2 failed, 0 skipped"
FAKE_CODE=2 ci "" ""
check "CI: make fails, and names no failure" last "20 passed, 2 failed, 0 skipped"
FAKE_LINE="10 passed, 3 failed, 0 skipped" FAKE_CODE=2 ci "" ""
check "CI: failures of both passes" last "20 passed, 6 failed, 0 skipped"
