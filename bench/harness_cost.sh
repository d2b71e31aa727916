#!/usr/bin/env bash
# harness_cost.sh [BUILD]: the time that measuring adds to a step. Shape a on one rank of one
# thread, in ROUNDS (7) rounds in turn: by `choir train` (no evaluation, no checkpoints), `choir
# bench step` alone, and bench/scaling.sh. Prints medians of the rounds' medians in ms, and ratios.
# The exit code is 1 if the harness adds 1 % or more to the step alone. It takes a minute.
set -eu
cd "$(dirname "$0")/.."
build=${1:-build}
# shellcheck source=../jobs/launch.sh
. jobs/launch.sh
export OMP_NUM_THREADS=1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
deck=inputs/bench_a.json
median() { sort -g "$@" | awk '{v[NR] = $1} END {print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2}'; }
of_run() { grep -o '"median_seconds":[0-9.e+-]*' "$1" | sed 's/.*://'; }
for _ in $(seq "${ROUNDS:-7}"); do
  launch 1 "$build/choir" bench step "$deck" --warmup 0.2 --seconds 2 --no-ceilings --json "$work/alone.json" >"$work/out" 2>&1
  of_run "$work/alone.json" >>"$work/alone"
  CHOIR=$build/choir SCALING_WORK=$work/sweep bench/scaling.sh --strong --ranks 1 --repeats 1 --warmup 0.2 --seconds 2 \
    --no-plots --fresh --results "$work" --name cost "$deck" >"$work/out" 2>&1
  of_run "$(echo "$work"/sweep/cost/strong.*.1.json)" >>"$work/harness"
  launch 1 "$build/choir" train "$deck" run.dir="$work/run" train.max_steps=60 eval.interval=0 checkpoint.interval=0 \
    log.interval=1 >"$work/out" 2>&1
  grep '^{"step":' "$work/run/metrics.jsonl" | tail -n 50 | sed -nE 's/.*"dt":([0-9.e+-]+).*/\1/p' >"$work/steps"
  median "$work/steps" >>"$work/train"
  rm -rf "$work/run"
done
alone=$(median "$work/alone")
for name in train alone harness; do
  awk -v name=$name -v t="$(median "$work/$name")" -v a="$alone" 'BEGIN {printf "%-8s %8.3f ms  %.4f of bench step alone\n", name, 1e3 * t, t / a}'
done
awk -v t="$(median "$work/harness")" -v a="$alone" 'BEGIN {exit !(t < 1.01 * a)}'
