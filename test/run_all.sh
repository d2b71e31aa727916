#!/usr/bin/env bash
# run_all.sh BUILD [--long|--program]: every test there is; with those that take long; or only those that can differ in a
# program built without CUDA. One line a part with its time, the output of what failed, and as last line "N passed, N
# failed". The exit code is 1 when anything failed, crashed, hung or was not there to be run.
set -u
build=${1:?usage: run_all.sh BUILD [--long|--program]}
long=${2:-}
emulated=yes rank_counts=(1 2 3 4)
if [ "$long" = --program ]; then emulated="" rank_counts=(2); fi
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=../jobs/launch.sh
. "$here/../jobs/launch.sh"
logs=$build/test-logs
rm -rf "$logs"
mkdir -p "$logs"
passed=0 failed=0
began=$SECONDS

# part NAME SECONDS COMMAND...: runs it and counts by the last "N passed, N failed" of its output. A part that ends
# with another exit code than 0 without naming a failure, or passes nothing, counts as one failure.
part() {
  local name=$1 limit=$2 log good=0 bad=0 code=0 start=$SECONDS counts note=""
  shift 2
  log=$logs/${name//[ \/]/_}.log
  timeout --kill-after=10 "$limit" "$@" >"$log" 2>&1 </dev/null || code=$?
  counts=$(grep -aE '(^|[ =:])[0-9]+ passed, [0-9]+ failed$' "$log" | tail -n 1)
  if [ -n "$counts" ]; then
    good=$(sed -E 's/.*(^|[^0-9])([0-9]+) passed, ([0-9]+) failed$/\2/' <<<"$counts")
    bad=$(sed -E 's/.*(^|[^0-9])([0-9]+) passed, ([0-9]+) failed$/\3/' <<<"$counts")
  fi
  if [ "$code" -eq 124 ]; then note=" (stopped after $limit s)"; bad=$((bad + 1))
  elif [ "$code" -ge 128 ]; then note=" (killed: exit code $code)"; bad=$((bad + 1))
  elif [ "$bad" -eq 0 ] && [ "$code" -ne 0 ]; then note=" (exit code $code)"; bad=1
  elif [ "$good" -eq 0 ] && [ "$bad" -eq 0 ]; then note=" (no test ran)"; bad=1
  fi
  passed=$((passed + good)) failed=$((failed + bad))
  printf '%-28s %5d passed %3d failed  %4d s%s\n' "$name" "$good" "$bad" $((SECONDS - start)) "$note"
  [ "$bad" -eq 0 ] && return
  grep -aE -A 14 '^not ok|Failure|^FAILED|ERROR: |runtime error' "$log" | head -n 60 | sed 's/^/    /'
  echo "    ... all of it: $log"
}
gtest() {  # gtest NAME RANKS PROGRAM: on N ranks, killed with them
  local name=$1 ranks=$2 program=$3
  if [ ! -x "$program" ]; then
    echo "$name: $program is missing"
    failed=$((failed + 1))
    return
  fi
  part "$name" 300 "$here/../jobs/launch.sh" "$ranks" "$program"
}

[ -x "$build/choir" ] || { echo "$build/choir is missing"; failed=$((failed + 1)); }
gtest "unit" 1 "$build/test_unit"
for ranks in "${rank_counts[@]}"; do gtest "mpi, $ranks rank(s)" "$ranks" "$build/test_mpi"; done
# Collectives on device memory, on the emulated GPU of each rank; streams take turns by the seed.
for ranks in ${emulated:+2 3 4}; do
  HOST_CUDA_SEED=$((ranks - 1)) gtest "emulated GPUs, $ranks ranks" "$ranks" "$build/test_host_cuda_mpi"
done
# The kernels on the CPU, spread over the cores: in order of the source under the memory checkers, shuffled without them,
# and the cases named for it under the race detector.
shards() {  # shards NAME VARIANT OPTION...
  local name=$1 program=$build/test_host_cuda_$2
  shift 2
  part "$name" 600 "$here/host_cuda/run_shards.sh" "$program" "$@"
}
if [ -n "$emulated" ]; then
  shards "kernels, ASan + UBSan" address
  HOST_CUDA_SEED=7 shards "kernels, shuffled" plain
  if [ "$long" = --long ]; then shards "kernels, TSan" thread
  else shards "kernels, TSan" thread --gtest_filter='*Tsan*'; fi
fi
if [ -x "$build/test_cuda" ] && nvidia-smi -L >/dev/null 2>&1; then gtest "kernels, on a GPU" 1 "$build/test_cuda"
else echo "kernels, on a GPU: not run, there is none here"; fi

# Without CUDA the program has other objects in device/, comm/ and ops/, and the same ones everywhere else: one script of
# every kind of user tells whether they work together.
scripts=("$here"/run/*.sh)
[ -n "$emulated" ] || scripts=("$here"/run/{train,resume,precision,devices,decks,plan,tools,speech_train,transcribe}.sh)
[ "$long" != --long ] || scripts+=("$here"/run/long/*.sh)
for script in "${scripts[@]}"; do
  limit=180
  case $script in */long/*) limit=7200 ;; esac
  part "run/$(basename "$script" .sh)" "$limit" "$script" "$build"
done

echo "in $((SECONDS - began)) s"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
