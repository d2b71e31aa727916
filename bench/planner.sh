#!/usr/bin/env bash
# planner.sh [--link SPEED] [BUILD]: compares `choir plan --calibration` with `bench step` on two
# cores: three models, as one rank of two threads and in every layout of two ranks of one. The speed
# of the machine changes from minute to minute, so calibration, prediction and measurement take
# turns, ROUNDS (3) times, and in each round every layout has PASSES (3) turns, because disturbances
# that slow a step by a third last some seconds here. The error is the median of all of them. With
# --link the two ranks are on two hosts (namespaces, see nodes.sh: it takes root); calibrated with
# 250 Mbit/s between them, predicted and measured with SPEED times as much. After a pause the
# emulated link passes the bytes of a millisecond at once, which a real link does not; they must be
# an equally small part of messages at both speeds. It takes seven minutes per round.
# shellcheck disable=SC2034,SC2154  # variables of nodes.sh and common.sh
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
asked=("$@") link=""
if [ "${1:-}" = --link ]; then
  link=${2:?usage: planner.sh [--link SPEED] [BUILD]}
  shift 2
fi
build=${1:-$here/build}
if [ -n "$link" ]; then
  # shellcheck source=test/run/lib/nodes.sh
  . "$here/test/run/lib/nodes.sh"
  nodes_enclose "$0" "${asked[@]}"
fi
# shellcheck source=test/run/lib/common.sh
. "$here/test/run/lib/common.sh" "$build"
unset OMP_NUM_THREADS
limit=400
ln -s "$root/data" data
trap '[ -z "$link" ] || nodes_down; cd / && rm -rf "$work"' EXIT
invalid() { echo "INVALID: $1" >&2; exit 1; }
[ -z "${nodes_why:-}" ] || invalid "$nodes_why"

models=("" "model.n_embd=256 model.block_size=128" "model.n_embd=192 model.n_layer=6 model.block_size=96")
data="parallel.data=2 train.micro_batch_size=6" alone="parallel.data=1"
layouts=("2 $data" "2 $data parallel.zero=1" "2 $data parallel.zero=3" "2 $data parallel.zero=2 train.recompute=full"
  "2 $alone parallel.tensor=2" "2 $alone parallel.tensor=2 parallel.sequence=true"
  "2 $alone parallel.pipeline=2 train.micro_batch_size=3" "2 $alone parallel.context=2")
[ -n "$link" ] || layouts+=("1" "1 train.recompute=full" "1 train.micro_batch_size=4")

choir_of() {  # choir_of RANKS ARGUMENT...
  local ranks=$1
  shift
  export OMP_NUM_THREADS=$((2 / ranks))
  if [ -n "$link" ]; then on_nodes node0:1,node1:1 "$@"; else run "$ranks" "$@"; fi
  [ "$code" = 0 ] || { show_output >&2; invalid "exit code $code"; }
}
seconds() { sed -nE "s/.*\"$1\": ?([0-9.e+-]+).*/\1/p" "$2" | head -n 1; }
link_of() {  # link_of MBITS
  [ -z "$link" ] || nodes_up 2 "$1mbit" "$(($1 / 8))kb" || invalid "no hosts"
}

network=() counts=(1 2)
[ -z "$link" ] || { network=(--gpus-per-node 1 --network "$link"); counts=(2); }
for round in $(seq "${ROUNDS:-3}"); do
  link_of 250
  for ranks in "${counts[@]}"; do choir_of "$ranks" calibrate --out "$ranks.calibration"; done
  [ -z "$link" ] || link_of "$(awk "BEGIN {printf \"%d\", 250 * $link}")"
  for pass in $(seq "${PASSES:-3}"); do
    for model in "${models[@]}"; do
      for layout in "${layouts[@]}"; do
        ranks=${layout%% *}
        read -ra keys <<<"$model ${layout#"$ranks"}"
        OMP_NUM_THREADS=$((2 / ranks)) "$choir" plan "$root/inputs/bench_a.json" "${keys[@]}" --ranks "$ranks" --target cpu \
          ${network[@]+"${network[@]}"} --calibration "$ranks.calibration" --json plan.json >/dev/null || exit
        choir_of "$ranks" bench step "$root/inputs/bench_a.json" "${keys[@]}" --seconds 1.5 --no-ceilings --json step.json
        echo "$ranks;${keys[*]};$(seconds step_seconds plan.json);$(seconds median_seconds step.json)"
      done
    done >"$round.$pass.rows"
  done
done

echo "| ranks | bench_a with | predicted ms | measured ms | error % | measured ms, least to most |"
echo "|---|---|---|---|---|---|"
cat ./*.rows | awk -F";" '
  function sort(values, n,  i, j, swap) {
    for (i = 1; i < n; ++i) for (j = i + 1; j <= n; ++j)
      if (values[i] > values[j]) {swap = values[i]; values[i] = values[j]; values[j] = swap}
  }
  function median(values, n) {sort(values, n); return n % 2 ? values[(n + 1) / 2] : (values[n / 2] + values[n / 2 + 1]) / 2}
  {key = $1 ";" $2}
  !(key in count) {order[++rows] = key}
  {++count[key]; said[key, count[key]] = 1000 * $3; seen[key, count[key]] = 1000 * $4}
  END {
    for (r = 1; r <= rows; ++r) {
      n = count[order[r]]
      for (i = 1; i <= n; ++i) {a[i] = said[order[r], i]; b[i] = seen[order[r], i]; c[i] = 100 * (a[i] / b[i] - 1)}
      predicted = median(a, n); measured = median(b, n)
      error = median(c, n); size = error < 0 ? -error : error
      all[r] = size; if (size > worst) worst = size
      split(order[r], part, ";")
      printf "| %d | %s | %.2f | %.2f | %+.1f | %.1f to %.1f |\n", part[1], part[2], predicted, measured, error, b[1], b[n]
    }
    printf "\n%d layouts: median error %.1f %%, worst %.1f %%\n", rows, median(all, rows), worst
  }'
