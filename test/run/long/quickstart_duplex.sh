#!/usr/bin/env bash
# make quickstart-duplex for real: the time on two cores, and the words and their times in dialogues
# that were never trained on. It takes about fifteen minutes.
. "$(dirname "$0")/../lib/common.sh"
if ! command -v espeak-ng >/dev/null || ! grep -q HAVE_SENTENCEPIECE "$build/choir_features.hpp"; then
  skip "quickstart-duplex" "espeak-ng is not installed, or the build has no SentencePiece"
  exit
fi
unset OMP_NUM_THREADS  # as a user runs it
ln -s "$root/inputs" inputs
command=quickstart_duplex.sh
begin=$SECONDS
"$root/.make/quickstart_duplex.sh" "$build" >out 2>&1 </dev/null
code=$?
expect "the whole quickstart" 0 "== Done in"
in_time "within fifteen minutes" $(((SECONDS - begin) * 1000)) $((${QUICKSTART_LIMIT:-900} * 1000))
# share NAME [SET]: of a set, or of all sets.
share() { sed -nE "s/^${2:-all}: .*$1 ([0-9.]+) %.*/\1/p" out | tail -n 1; }
check "at least 90 % of the answers are right to the letter" number_is "$(share 'text exact')" above 90
check "turns begin where they should" number_is "$(share 'turn hits')" above 95
check "... and not into what the user says" number_is "$(share 'false starts')" below 1
check "a recogniser understands the agent" number_is "$(share 'heard: WER' "'plain'")" below 5

# Its own decks on its own data, killed and continued with another layout: the same bits.
export OMP_NUM_THREADS=1
limit=300
for deck in codec duplex; do
  every=(train.reproducible=true train.max_steps=12 optimizer.warmup_steps=2 eval.interval=0 checkpoint.interval=5 checkpoint.async=false log.interval=1)
  for name in straight killed; do
    fault=()
    [ $name = straight ] || fault=(fault.enable=true fault.kill_rank=1 fault.kill_step=8)
    run 2 train "inputs/${deck}_tutorial.json" run.dir=$deck.$name "${every[@]}" ${fault[@]+"${fault[@]}"}
  done
  expect_killed "$deck: killed"
  run 2 train "inputs/${deck}_tutorial.json" run.dir=$deck.killed "${every[@]}" parallel.pipeline=2 parallel.zero=0
  expect "... continues on two stages" 0 "resumed from $deck.killed/checkpoints/step_00000005"
  check "... the losses, bit by bit" same_losses $deck.straight $deck.killed
  check "... the weights and moments, bit by bit" same_weights $deck.straight $deck.killed
done
