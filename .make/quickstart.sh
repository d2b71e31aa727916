#!/usr/bin/env bash
# quickstart.sh --text: gets a text, to which data/quickstart/input.txt is then a link (make data-quickstart).
# quickstart.sh BUILD: gets a text, trains a small GPT on it with 2 ranks for about two minutes, evaluations included, and lets it write.
#   QUICKSTART_MINUTES                   of training, default 2
#   QUICKSTART_OVERRIDES                 for tests: overrides of the deck
set -eu
build=${1:?usage: quickstart.sh BUILD, or --text}
here=$(dirname "$0")
# shellcheck source=../jobs/launch.sh
. "$here/../jobs/launch.sh"

echo "== 1. A text to learn from"
text=data/shakespeare/input.txt prompt="ROMEO:"
if [ -s "$text" ] || "$here/data_shakespeare.sh"; then
  echo "Corpus: tiny Shakespeare ($text)."
else
  text=data/kjv/input.txt prompt="And God said"
  if [ ! -s "$text" ]; then  # each verse without its reference
    mkdir -p "${text%/*}"
    bible -f Gen1:1-Rev22:21 | sed 's/^[^ ]* //' >"$text.new" && [ -s "$text.new" ] && mv "$text.new" "$text" ||
      { echo "There is no bible-kjv to replace it either: 'make deps', or put a text at data/shakespeare/input.txt." >&2; exit 3; }
  fi
  echo "Corpus: the King James Bible of Debian's bible-kjv ($text)."
fi
# The shipped decks name this link. A file of the user's own in its place stays.
link=data/quickstart/input.txt
[ -e "$link" ] && [ ! -L "$link" ] || { mkdir -p "${link%/*}" && ln -sfn "../${text#data/}" "$link"; }
[ "$build" != --text ] || exit 0

# An interrupted run continues with the settings that it began with, which are the lines of
# `unfinished`. A complete run stays, and the next gets a number.
run=runs/quickstart number=1
while [ -d "$run" ] && [ ! -e "$run/unfinished" ]; do
  number=$((number + 1))
  run=runs/quickstart-$number
done
deck=inputs/gpt_quickstart.json minutes=${QUICKSTART_MINUTES:-2}
if [ -s "$run/unfinished" ]; then
  mapfile -t settings <"$run/unfinished"
  announced="the rest of its training (Ctrl-C saves it, and 'make quickstart' continues)"
else
  settings=("data.train=[\"$text\"]")
  # bf16 is faster if the processor multiplies it.
  if grep -qwE "amx_bf16|avx512_bf16" /proc/cpuinfo 2>/dev/null; then
    settings+=(train.precision=bf16-mixed)
    echo "This processor has instructions for products in bf16, so the run takes train.precision=bf16-mixed, not the deck's fp32."
  fi
  # For tests: a shorter run.
  [ -z "${QUICKSTART_OVERRIDES:-}" ] || { read -r -a overrides <<<"$QUICKSTART_OVERRIDES"; settings+=("${overrides[@]}"); }
  echo "Timing a step, for about ten seconds ..."
  # The minutes decide about the number of steps. Of each, 42 seconds are for steps, and the rest for evaluations,
  # samples, saves and the start.
  measured=$(launch 2 "$build/choir" bench step $deck "${settings[@]}" --warmup 1 --seconds 4 --no-ceilings 2>&1) ||
    { code=$?; printf '%s\n' "$measured" "A step could not be timed (exit code $code); the lines above say why." >&2; exit "$code"; }
  step=$(sed -nE 's/.*: median ([0-9.]+) ms.*/\1/p' <<<"$measured")
  steps=$(sed -nE 's/.*train\.max_steps=([0-9]+).*/\1/p' <<<"${settings[*]}")
  if [ -z "$steps" ]; then
    steps=$(awk -v step="$step" -v minutes="$minutes" \
      'BEGIN { n = int(minutes * 42000 / step / 10) * 10; print (n < 200 ? 200 : n > 2000 ? 2000 : n) }')
    settings+=("train.max_steps=$steps")
  fi
  announced="$steps steps of $(printf %.0f "$step") ms, about $(awk -v step="$step" -v n="$steps" 'BEGIN { printf "%.1f", n * step / 42000 }') minutes with its evaluations \
(Ctrl-C saves, and 'make quickstart' continues)"
  mkdir -p "$run"
  printf '%s\n' "${settings[@]}" >"$run/unfinished"
fi
train=("$build/choir" train $deck run.dir="$run" "${settings[@]}")

echo
echo "== 2. Training on 2 ranks: $announced"
echo "\$ mpiexec -n 2 $(launch_show "${train[@]}" | cut -c3-)"
code=0 stops=$(launch_stops "$run")
launch_run "$run" 2 "${train[@]}" || code=$?
case $code in
  0) rm "$run/unfinished" ;;
  75) echo "The run is saved; 'make quickstart' continues it."; exit 0 ;;
  *) if [ "$(launch_stops "$run")" -ne "$stops" ]; then
      echo "The run was stopped before it could be saved; 'make quickstart' continues from its last checkpoint."
      exit 0
    fi
    echo "The training ended with exit code $code; the lines above say why." >&2; exit "$code" ;;
esac

echo
echo "== 3. The model writes"
generate=("$build/choir" generate "$run" --prompt "$prompt" --tokens 400)
launch_show "${generate[@]}"
"${generate[@]}"

# "first loss" and "last loss" from the record of the run.
loss() { sed -nE 's/^\{"step":[0-9]+,"loss":([0-9.]+).*/\1/p' "$run/metrics.jsonl"; }
longer=$(($(readlink "$run/checkpoints/latest" | tr -dc 0-9 | sed 's/^0*//') + 1000))
cat <<END

== Done: the loss fell from $(printf %.4f "$(loss | head -n 1)") to $(printf %.4f "$(loss | tail -n 1)")
  run          $run (log.txt, metrics.jsonl, deck.json)
  samples      $run/samples
  checkpoint   $run/checkpoints/$(readlink "$run/checkpoints/latest")
Try next:
  $build/choir generate $run --prompt "$prompt" --temperature 0.5 --seed 7
  $build/choir eval $run
  jobs/launch -n 2 $build/choir train $run/deck.json train.max_steps=$longer      trains on; the learning rate rises to the longer schedule, unless you add optimizer.decay_steps=$((longer - 1000))
  jobs/launch -n 4 $build/choir train inputs/debug.json     any number of ranks
  $build/choir train --describe                             every key of a deck
  $build/choir report $run                       one page: curves, phases, memory, samples
END
