#!/usr/bin/env bash
# watch_cost.sh [--ranks N] [--build DIR] [DECK [key=value...]]: what it costs a step of DECK (inputs/bench_a.json) that the
# run is watched. Calls and phases of a step, as the flight recorder counts them, times what test_mpi measures for one;
# looks of the watchdog, twice a second; and the comparison of weights, by runs with it after every step and without, in
# turns. Ends in VALID when all of it is under 1 % of a step. Two minutes; nothing else should run.
set -u
export LC_ALL=C
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
ranks=2 build=$root/build
while [ $# -gt 1 ]; do
  case $1 in
    --ranks) ranks=$2 ;;
    --build) build=$2 ;;
    *) break ;;
  esac
  shift 2
done
case ${1:-} in -*) sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;; esac
[ "$ranks" -ge 2 ] || { echo "watch_cost.sh: of one rank nothing is recorded: --ranks 2 or more" >&2; exit 2; }
deck=${1:-inputs/bench_a.json}
[ $# -eq 0 ] || shift
overrides=("$@")
# shellcheck source=../jobs/launch.sh
. "$root/jobs/launch.sh"
work=$(mktemp -d "${TMPDIR:-/tmp}/choir-watch.XXXXXX") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$root" || exit 1

steps=200 rounds=3
train() {  # train NAME KEY=VALUE...
  local name=$1
  shift
  launch "$ranks" "$build/choir" train "$deck" run.dir="$work/$name" eval.interval=0 eval.sample_tokens=0 \
    checkpoint.interval=0 log.interval=1 train.max_steps=$steps ${overrides[@]+"${overrides[@]}"} "$@" >"$work/out" 2>&1 </dev/null
}
fail() { tail -n 20 "$work/out"; echo "INVALID: $1"; exit 1; }
median() { sort -g | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }
# Seconds of the steps of a run, except the first twenty.
times() { sed -nE 's/^\{"step":([0-9]+),.*"dt":([0-9.e-]+).*/\1 \2/p' "$work/$1/metrics.jsonl" | awk '$1 > 20 { print $2 }'; }

launch "$ranks" "$build/test_mpi" --gtest_filter='WatchCost.*' >"$work/out" 2>&1 || fail "test_mpi"
read -r call phase look < <(sed -nE 's/.*watch: ([0-9]+) ns a call, ([0-9]+) ns a phase, ([0-9]+) ns a look.*/\1 \2 \3/p' "$work/out")
[ -n "${look:-}" ] || fail "test_mpi says nothing of what it costs"

# A hang keeps the counts up to then.
train counted fault.enable=true fault.hang_rank=$((ranks - 1)) fault.hang_step=$steps parallel.timeout=5 watch.start=300 \
  watch.first_step=300
[ -s "$work/counted/flight/rank_0.txt" ] || fail "nothing was counted"
read -r calls phases < <(awk -v steps=$steps '/^phases begun:/ { phases = $3 } / of [0-9]+ +[0-9]+$/ { calls += $NF }
  END { print calls / steps, phases / steps }' "$work/counted/flight/rank_0.txt")

for ((round = 1; round <= rounds; round++)); do
  for weights in 0 1; do
    train "weights_${weights}_$round" watch.weights=$weights || fail "training failed"
    times "weights_${weights}_$round" >>"$work/weights_$weights"
  done
done
awk -v deck="$deck" -v ranks="$ranks" -v call="$call" -v phase="$phase" -v look="$look" -v calls="$calls" -v phases="$phases" \
  -v step="$(median <"$work/weights_0")" -v compared="$(median <"$work/weights_1")" 'BEGIN {
    every = 1000  # steps, by default
    printf "%s on %d ranks: %.3f ms a step\n", deck, ranks, 1e3 * step
    parts[1] = 1e-9 * calls * call
    printf "  calls     %6.1f a step x %6.0f ns           %8.4f %%\n", calls, call, 100 * parts[1] / step
    parts[2] = 1e-9 * phases * phase
    printf "  phases    %6.1f a step x %6.0f ns           %8.4f %%\n", phases, phase, 100 * parts[2] / step
    parts[3] = 2e-9 * look * step
    printf "  looks        2 a second x %6.0f ns         %8.4f %%\n", look, 100 * parts[3] / step
    parts[4] = (compared > step ? compared - step : 0) / every
    printf "  weights   %6.3f ms, every %d steps         %8.4f %%\n", 1e3 * (compared - step), every, 100 * parts[4] / step
    for (i in parts) sum += parts[i]
    printf "  together                                    %8.4f %%\n%s\n", 100 * sum / step, sum < 0.01 * step ? "VALID" : "INVALID"
    exit !(sum < 0.01 * step)
  }'
