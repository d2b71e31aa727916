#!/usr/bin/env bash
# run_all.sh BUILD [--long|--program]: runs all tests; with --long also those that take long, with
# --program only those that can differ in a program built without CUDA. Prints one line per part
# with its time, the output of failed tests, the skipped tests with their reasons, and as last line
# "N passed, N failed, N skipped". The number in a part's line counts the tests that this part
# skipped; the last line counts only tests that no part ran (run/lib/outcomes.sh);
# BUILD/test-logs/skipped lists them. The exit code is 1 if anything failed, crashed, hung or was
# missing.
# Most parts have the machine to themselves. Scripts named in `beside_others` below run
# PARTS_ABREAST (default 2) at a time, in the time that their starts and waits leave, and may take
# twice as long. Tests that depend on time run last and alone, and the line "measured: ..." of each
# shows its number beside its bound.
set -u
build=${1:?usage: run_all.sh BUILD [--long|--program]}
long=${2:-}
emulated=yes rank_counts=(3 4)
if [ "$long" = --program ]; then emulated="" rank_counts=(2); fi
# Most scripts use two ranks; three and four ranks show all that two could show of a collective.
# With two ranks only those tests run that the others leave out, as the list of skipped tests shows.
of_two="LossTerms.*:ZeroMemory.StageTwo*:DeviceTraining.*:DeviceLayouts.*:RequireEqual.TwoRanks*:DeviceMesh.KernelsOf*:DeviceMesh.MessagesOf*"
# Tests that need no more than three ranks.
of_three="ReadersTest.*:DatasetTest.*:SpeechDatasetTest.*:BenchCheckpointTest.*:BackgroundSaverTest.*"
# Tests that compare a time with a bound, or in which an event must, or must not, happen within a
# fraction of a second.
timed_unit="*.TimeGrows*:Watchdog.*:RunLockTest.*:Prefetcher.MeasuresWaiting:QueuedStep.PhasesOfTheDeviceAddUp"
timed_mpi="Pipeline.TakesTheTime*:Pipeline.ALostMessage*:Pipeline.AStageThatHangs*:QuietBarrier.*:WatchCost.*"
timed_mpi+=":Node.AMissingRank*:TwoLevel.AMissingNode*:TwoNodes.OneWatchdog*"
timed_cuda="Nccl.AnAbortDoesNotWait*:Nccl.CallsThatAreInProgress*"
timed_ranks=(2 4)
if [ "$long" = --long ]; then rank_counts=(2 3 4) timed_ranks=(2 3 4) of_three=""; fi
[ "$long" != --program ] || timed_ranks=(2)
# Grids of trainings: every entry with each precision and model (test/support/exhaustive.hpp).
[ "$long" != --long ] || export TEST_EXHAUSTIVE=1
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=../jobs/launch.sh
. "$here/../jobs/launch.sh"
# shellcheck source=run/lib/outcomes.sh
. "$here/run/lib/outcomes.sh"
logs=$build/test-logs
rm -rf "$logs"
mkdir -p "$logs"
: >"$logs/skipped"
outcomes=$(realpath "$logs")  # programs and scripts may be in other folders
passed=0 failed=0
began=$SECONDS
cores=$(nproc 2>/dev/null || echo 1)
abreast=${PARTS_ABREAST:-$((cores > 1 ? 2 : 1))}
# Threads of a team that wait for each other sleep: spinning ones take the core from the thread for
# which they wait.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
# An OpenBLAS that is older than the processor uses kernels of 2004 for it: products in fp64 at a
# sixth of the rate.
if [ -z "${OPENBLAS_CORETYPE:-}" ]; then
  if grep -qsw avx512vl /proc/cpuinfo; then export OPENBLAS_CORETYPE=SkylakeX
  elif grep -qsw avx2 /proc/cpuinfo; then export OPENBLAS_CORETYPE=Haswell; fi
fi

# At every start a rank first searches for networks, which takes a fifth of a second, and there is
# only one machine.
export OMPI_MCA_pml=${OMPI_MCA_pml:-ob1}

# Parts run in the background, each as a job with a process group of its own: signals to this script
# are handled at once, and a test that sends or receives signals has the environment of a command in
# a terminal.
set -m
family() {  # family PID: it and all its descendants
  local child
  echo "$1"
  for child in $(pgrep -P "$1"); do family "$child"; done
}
stop_all() {  # stop_all CODE: ends all processes that were started here
  local job pids=""
  trap '' INT TERM HUP
  for job in $(jobs -p); do pids+=" $(family "$job")"; done
  # shellcheck disable=SC2086
  if [ -n "$pids" ]; then
    kill -TERM $pids
    sleep 1
    for job in $(jobs -p); do pids+=" $(family "$job")"; done
    kill -KILL $pids
  fi 2>/dev/null
  echo "stopped"
  echo "$passed passed, $((failed + 1)) failed, $(wc -l <"$logs/skipped") skipped"
  exit "$1"
}
trap 'stop_all 130' INT
trap 'stop_all 143' TERM
trap 'stop_all 129' HUP

# run_part KEY NAME SECONDS COMMAND...: runs it and counts by the last "N passed, N failed, N
# skipped" of its output. A part counts as one failure if it ends with an exit code other than 0
# without naming a failure, or neither passes nor skips anything; so does a script that counts skips
# without giving a reason for each. The counts are written to KEY.counts at the very end.
run_part() {
  local key=$1 name=$2 limit=$3 log good bad left code=0 start=$SECONDS counts note="" text excerpt
  shift 3
  log=$logs/$key.log
  timeout --kill-after=10 "$limit" "$@" >"$log" 2>&1 </dev/null || code=$?
  counts=$(counts_of "$log")
  read -r good bad left <<<"${counts:-0 0 0}"
  case $name in run/*) skips_of_script "$name" "$log" >"$logs/$key.skips" ;; *) : >"$logs/$key.skips" ;; esac
  [ "$left" -eq 0 ] || note=" ($left skipped)"
  if [ "$code" -eq 124 ]; then note=" (stopped after $limit s)"; bad=$((bad + 1))
  elif [ "$code" -ge 128 ]; then note=" (killed: exit code $code)"; bad=$((bad + 1))
  elif [ "$bad" -eq 0 ] && [ "$code" -ne 0 ]; then note=" (exit code $code)"; bad=1
  elif [ "$good" -eq 0 ] && [ "$bad" -eq 0 ] && [ "$left" -eq 0 ]; then note=" (no test ran)"; bad=1
  elif [[ $name == run/* ]] && [ "$left" -ne "$(wc -l <"$logs/$key.skips")" ]; then
    note=" ($left skipped, $(wc -l <"$logs/$key.skips") with a reason)"
    bad=$((bad + 1))
  fi
  text=$(printf '%-28s %5d passed %3d failed  %4d s%s' "$name" "$good" "$bad" $((SECONDS - start)) "$note")
  if [ "$bad" -ne 0 ]; then
    # ": Failure" as GoogleTest ends the line of a failure: tests have the word in their names.
    excerpt=$(grep -aE -A 14 '^not ok|: Failure$|\[  FAILED  \]|^FAILED|ERROR: |runtime error' "$log" | head -n 60 | sed 's/^/    /')
    text+=${excerpt:+$'\n'$excerpt}
    text+=$'\n'"    ... all of it: $log"
  fi
  excerpt=$(grep -a '^measured: ' "$log" | sed 's/^/    /')
  text+=${excerpt:+$'\n'$excerpt}
  printf '%s\n' "$text"
  echo "$good $bad" >"$logs/$key.counts"
}
running=()  # the parts that were started and are not yet counted
start_part() {  # start_part NAME SECONDS COMMAND...
  local key=${1//[ \/]/_}
  running+=("$key")
  run_part "$key" "$@" &
}
# Waits for all running parts, and counts them. A part without counts died before it could write
# them.
settle() {
  local key good bad
  wait
  for key in ${running[@]+"${running[@]}"}; do
    good="" bad=""
    [ ! -e "$logs/$key.counts" ] || read -r good bad <"$logs/$key.counts"
    if [[ ! $good =~ ^[0-9]+$ || ! $bad =~ ^[0-9]+$ ]]; then
      echo "$key: ended without a result"
      good=0 bad=1
    fi
    passed=$((passed + good)) failed=$((failed + bad))
    [ ! -s "$logs/$key.skips" ] || cat "$logs/$key.skips" >>"$logs/skipped"
  done
  running=()
}
part() { settle; start_part "$@"; settle; }  # alone
not_run() {  # not_run NAME REASON: a part that cannot run on this machine or in this folder
  echo "$1: not run, $2"
  printf '%s\t%s\n' "$1" "$2" >>"$logs/skipped"
}
part_beside() {  # as soon as fewer than `abreast` run
  while [ "$(jobs -rp | wc -l)" -ge "$abreast" ]; do wait -n; done
  start_part "$@"
}
gtest() {  # gtest NAME RANKS PROGRAM OPTION...: on RANKS ranks, killed with them
  local name=$1 ranks=$2 program=$3
  shift 3
  if [ ! -x "$program" ]; then
    echo "$name: $program is missing"
    failed=$((failed + 1))
    return
  fi
  CHOIR_TEST_OUTCOMES=$outcomes/${name//[ \/]/_}.outcomes part "$name" 600 "$here/../jobs/launch.sh" "$ranks" "$program" "$@"
}
# Programs of one rank, distributed over the cores; one thread each.
shards() {  # shards NAME PROGRAM OPTION...
  local name=$1
  shift
  CHOIR_TEST_OUTCOMES=$outcomes/${name//[ \/]/_}.outcomes part "$name" 600 "$here/run_shards.sh" "$@"
}
# The suites in folders of tests, as a filter of GoogleTest, including those with parameters.
suites_of() {  # suites_of FOLDER...
  find "${@/#/$here/}" -name '*.cpp' -exec sed -nE 's/^(TEST|TEST_F|TEST_P|TYPED_TEST)\(([A-Za-z0-9_]+),.*/\2/p' {} + |
    sort -u | awk '{ printf "%s%s.*:*/%s.*:%s/*", (NR > 1 ? ":" : ""), $1, $1, $1 }'
}

[ -x "$build/choir" ] || { echo "$build/choir is missing"; failed=$((failed + 1)); }
# One thread per test, unless the test sets up a team of its own; and the operators on a team of all
# cores, on which the tests of one rank below also train whole models. Without CUDA: the code that
# chooses and reports devices, transports and launchers. The other objects are the same.
if [ -n "$emulated" ]; then shards "unit" "$build/test_unit" --gtest_filter="-$timed_unit"
else shards "unit" "$build/test_unit" --gtest_filter="$(suites_of unit/{device,comm,deck,lab,ops})-$timed_unit"; fi
if [ -z "$emulated" ]; then :  # the same objects
elif [ -d "$here/unit/ops" ]; then gtest "unit, ops on all cores" 1 "$build/test_unit" --gtest_filter="$(suites_of unit/ops)"
else not_run "unit, ops on all cores" "its sources are not here"; fi
# A single rank would get a team of threads, which wait for each other longer than these small
# models compute. Several ranks without CUDA: transports, and one training of every kind in the
# scripts below.
filter="*"
if [ -n "$emulated" ]; then shards "mpi, 1 rank" "$build/test_mpi" --gtest_filter="-$timed_mpi"
else filter=$(suites_of mpi/comm); fi
[ -z "$emulated" ] || [ "$long" = --long ] || OMP_NUM_THREADS=1 gtest "mpi, 2 ranks" 2 "$build/test_mpi" --gtest_filter="$of_two"
for ranks in "${rank_counts[@]}"; do
  OMP_NUM_THREADS=1 gtest "mpi, $ranks ranks" "$ranks" "$build/test_mpi" \
    --gtest_filter="$filter-$timed_mpi$([ "$ranks" -lt 4 ] || echo "${of_three:+:$of_three}")"
done
# Collectives on device memory, on the emulated GPU of each rank; the seed decides the order of
# streams.
[ -z "$emulated" ] || [ "$long" = --long ] ||
  HOST_CUDA_SEED=1 gtest "emulated GPUs, 2 ranks" 2 "$build/test_host_cuda_mpi" --gtest_filter="$of_two"
for ranks in ${emulated:+"${rank_counts[@]}"}; do
  HOST_CUDA_SEED=$((ranks - 1)) gtest "emulated GPUs, $ranks ranks" "$ranks" "$build/test_host_cuda_mpi" \
    --gtest_filter="-$timed_cuda"
done
# The kernels on the CPU, distributed over the cores: with shuffled blocks and threads, under the
# memory checkers, and with the tests named for it under the race detector; in long tests also in
# order of the source. Trainings that are compared in every form take minutes under the checkers,
# and call the same kernels as the others. The plain program also runs the death tests, because one
# of them exists only there: the host must not write to device memory, which the programs under the
# checkers take from malloc.
if [ -n "$emulated" ]; then
  trainings='*ChangesNoBit*:*OfAnyZeroStage*:*ComeAgain:*GivesTheBitsOfAQueuedOne'
  if [ "$long" = --long ]; then
    shards "kernels, ASan + UBSan" "$build/test_host_cuda_address"
    HOST_CUDA_SEED=7 shards "kernels, shuffled" "$build/test_host_cuda_plain"
    # A timeout for the race detector, which is larger than the usual one because some of its tests
    # take longer.
    CHOIR_TEST_TIMEOUT=1800 shards "kernels, TSan" "$build/test_host_cuda_thread"
  else
    HOST_CUDA_SEED=7 shards "kernels, ASan + UBSan" "$build/test_host_cuda_address" --gtest_filter="-$trainings"
    HOST_CUDA_SEED=7 shards "kernels, shuffled" "$build/test_host_cuda_plain" --gtest_filter="$trainings:*DeathTest.*"
    shards "kernels, TSan" "$build/test_host_cuda_thread" --gtest_filter='*Tsan*'
  fi
fi
if [ -x "$build/test_cuda" ] && nvidia-smi -L >/dev/null 2>&1; then gtest "kernels, on a GPU" 1 "$build/test_cuda"
elif [ -x "$build/test_cuda" ]; then not_run "kernels, on a GPU" "there is no GPU here"
else not_run "kernels, on a GPU" "this build has no CUDA"; fi

# Without CUDA the program has other objects in device/, comm/ and ops/, and the same ones
# everywhere else: one script for every kind of use shows that they work together.
scripts=("$here"/run/*.sh)
[ -n "$emulated" ] || scripts=("$here"/run/{train,devices,decks,plan,tools,speech_train,transcribe}.sh)
[ "$long" != --long ] || scripts+=("$here"/run/long/*.sh)
# Scripts without time limits: they check words, codes and bits, which another script beside them
# does not change. The longest come first. A script that is not named here runs alone, and so do
# those with more ranks than cores: beside others `verify` on 8 ranks takes 156 s, alone 24.
beside_others=" host_cuda plan train cudnn_plans kernel_mutations vendor dialogues speech_train tune salm scaling
  resume attacked report data import dense_models gpu_report cuda_flags reproducible precision tensor freeze prepare_audio zero
  prepare_speech decks storage transcribe recompute devices speak chat bundle warm_start layouts offload library install tools
  terminal counts tokenizers specials links kernel_instructions kernel_resources kernel_occupancy "
# Scripts that depend on the time at which something happens, or on its duration.
timed_scripts=" jobs async_save nodes run_lock signals pipeline_faults watchdog stop rehearse timings
  long/nodes long/signals long/rehearse long/slurm long/quickstart_speech long/quickstart_salm long/quickstart_duplex long/hands_on "
limit_of() { case $1 in */long/*) echo 7200 ;; *) echo 180 ;; esac; }
is_in() { case " ${2//$'\n'/ } " in *" $1 "*) ;; *) return 1 ;; esac; }  # is_in WORD LIST
name_of() { local name=${1#"$here"/run/}; echo "${name%.sh}"; }
# Waiting ranks yield the core here, too; and every limit is doubled (lib/common.sh).
together=1 environment=()
if [ "$abreast" -gt 1 ]; then together=2 environment=(OMPI_MCA_mpi_yield_when_idle=1 TEST_PATIENCE=2); fi
settle
for name in $beside_others; do  # the longest first
  for script in "${scripts[@]}"; do
    [ "$script" = "$here/run/$name.sh" ] || continue
    part_beside "run/$name" $(($(limit_of "$script") * together)) env ${environment[@]+"${environment[@]}"} "$script" "$build"
  done
done
settle
for script in "${scripts[@]}"; do
  name=$(name_of "$script")
  is_in "$name" "$beside_others $timed_scripts" || part "run/$name" "$(limit_of "$script")" "$script" "$build"
done

# Tests that depend on time run alone.
OMP_NUM_THREADS=1 gtest "timed, unit" 1 "$build/test_unit" --gtest_filter="$timed_unit"
for ranks in "${timed_ranks[@]}"; do
  OMP_NUM_THREADS=1 gtest "timed, mpi, $ranks ranks" "$ranks" "$build/test_mpi" --gtest_filter="$timed_mpi"
done
[ -z "$emulated" ] ||
  HOST_CUDA_SEED=1 gtest "timed, emulated GPUs" 2 "$build/test_host_cuda_mpi" --gtest_filter="$timed_cuda"
for name in $timed_scripts; do
  for script in "${scripts[@]}"; do
    [ "$script" != "$here/run/$name.sh" ] || part "run/$name" "$(limit_of "$script")" "$script" "$build"
  done
done

cat "$logs"/*.outcomes 2>/dev/null >"$logs/outcomes"
skips_of_tests <"$logs/outcomes" >>"$logs/skipped"
# A test that no filter above selects is not run either. After a failure there may be many of these,
# for another reason.
if [ -n "$emulated" ] && [ "$failed" -eq 0 ]; then
  for program in unit mpi host_cuda_mpi host_cuda_plain; do tests_of "$build/test_$program"; done >"$logs/tests"
  never_selected "$logs/tests" <"$logs/outcomes" >>"$logs/skipped"
  IFS=: read -r -a patterns <<<"$timed_unit:$timed_mpi:$timed_cuda"
  for pattern in "${patterns[@]}"; do
    grep -qE "^${pattern//\*/.*}\$" "$logs/tests" && continue
    echo "run_all.sh: no test is called $pattern"
    failed=$((failed + 1))
  done
fi
skipped=$(wc -l <"$logs/skipped")
if [ "$skipped" -gt 0 ]; then
  echo "skipped, and run by no part of this:"
  by_reason <"$logs/skipped"
fi
echo "in $((SECONDS - began)) s"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
