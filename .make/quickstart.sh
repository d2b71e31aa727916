#!/usr/bin/env bash
# quickstart.sh BUILD: gets a text, trains a small GPT on it with 2 ranks for about two minutes, and lets it write.
set -eu
build=${1:?usage: quickstart.sh BUILD}
here=$(dirname "$0")
# shellcheck source=../jobs/launch.sh
. "$here/../jobs/launch.sh"

echo "== 1. A text to learn from"
if [ -s data/shakespeare/input.txt ] || "$here/data_shakespeare.sh"; then
  echo "Corpus: tiny Shakespeare (data/shakespeare/input.txt)."
  prompt="ROMEO:"
else
  echo "Corpus: the King James Bible of Debian's bible-kjv."
  prompt="And God said"
fi

# An interrupted run continues. A complete run stays, and the next gets a number.
run=runs/quickstart number=1
while [ -d "$run" ] && [ ! -e "$run/unfinished" ]; do
  number=$((number + 1))
  run=runs/quickstart-$number
done
mkdir -p "$run"
touch "$run/unfinished"
train=("$build/choir" train inputs/gpt_quickstart.json run.dir="$run")
# bf16 is faster if the processor multiplies it. An existing run keeps the precision with which it
# started.
precision=""
if [ ! -e "$run/deck.json" ] && grep -qwE "amx_bf16|avx512_bf16" /proc/cpuinfo 2>/dev/null; then precision=bf16-mixed; fi
if [ -e "$run/deck.json" ] && grep -q '"precision": "bf16-mixed"' "$run/deck.json"; then precision=bf16-mixed; fi
[ -z "$precision" ] || train+=(train.precision=$precision)
# For tests: a shorter run.
[ -z "${QUICKSTART_OVERRIDES:-}" ] || read -r -a overrides <<<"$QUICKSTART_OVERRIDES"
train+=(${overrides[@]+"${overrides[@]}"})

echo
echo "== 2. Training on 2 ranks, about two minutes (Ctrl-C, and 'make quickstart' continues)"
echo "\$ mpiexec -n 2 ${train[*]}"
code=0
launch 2 "${train[@]}" || code=$?
if [ "$code" -ne 0 ]; then
  echo "The training ended with exit code $code; the lines above say why." >&2
  exit "$code"
fi
rm -f "$run/unfinished"

echo
echo "== 3. The model writes"
generate=("$build/choir" generate "$run" --prompt "$prompt" --tokens 400)
launch_show "${generate[@]}"
"${generate[@]}"

# "first loss" and "last loss" from the record of the run.
loss() { sed -nE 's/^\{"step":[0-9]+,"loss":([0-9]+\.[0-9]{1,3}).*/\1/p' "$run/metrics.jsonl"; }
cat <<END

== Done: the loss fell from $(loss | head -n 1) to $(loss | tail -n 1)
  run          $run (log.txt, metrics.jsonl, deck.json)
  samples      $run/samples
  checkpoint   $run/checkpoints/$(readlink "$run/checkpoints/latest")
Try next:
  $build/choir generate $run --prompt "To be" --temperature 0.5 --seed 7
  $build/choir eval $run
  jobs/launch -n 4 $build/choir train inputs/debug.json     the same program, any number of ranks
  $build/choir train --describe                             every key of a deck
  $build/choir report $run                       one page: curves, phases, memory, samples
END
