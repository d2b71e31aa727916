#!/usr/bin/env bash
# quickstart_salm.sh BUILD: from nothing but text-to-speech to a language model that hears: a corpus of spoken digits and
# words with questions about them, a recogniser that teaches an encoder to hear them, and a language model that learns to
# answer through it. About twelve minutes on two cores. A second run finds what is there, and continues what was interrupted.
#   QUICKSTART_RANKS, QUICKSTART_HOURS   2 ranks; an hour of speech
#   QUICKSTART_OVERRIDES                 for tests: of every deck
set -eu -o pipefail
build=${1:?usage: quickstart_salm.sh BUILD}
here=$(dirname "$0")
# shellcheck source=speech_steps.sh
. "$here/speech_steps.sh"
tasks=data/spoken_tasks run=runs/salm_tutorial
begin=$SECONDS

echo "== 1. Digits and words that are spoken, with questions about them"
say_and_run "$choir" prepare corpus spoken-tasks --out $tasks/corpus --hours "${QUICKSTART_HOURS:-1}"
pack $tasks 16000
units $tasks char char
labels $tasks $tasks/char.json
for part in train val val_voices; do
  drop_older $tasks/corpus $tasks/chat_$part
  say_and_run "$choir" prepare chat $tasks/corpus/conversations/$part.jsonl --out $tasks/chat_$part --template plain
done

echo
echo "== 2. A recogniser: its encoder learns to hear"
train inputs/salm_encoder.json runs/salm_encoder

echo
echo "== 3. A language model learns to answer through it (Ctrl-C, and 'make quickstart-salm' continues)"
train inputs/salm_tutorial.json $run

echo
echo "== 4. Recordings that were never trained on; and, as a control, questions that hear the recording of another one"
say_and_run "$choir" eval $run eval.answers=0 | tee $run/eval.txt
# Conversation n gets the clip of conversation n + 7.
awk '
  { line[NR] = $0; match($0, /{"from":"User","type":"audio"[^}]*}/); clip[NR] = substr($0, RSTART, RLENGTH) }
  END { for (n = 1; n <= NR; ++n) { other = clip[(n + 6) % NR + 1]; at = index(line[n], clip[n])
          print substr(line[n], 1, at - 1) other substr(line[n], at + length(clip[n])) } }
' $tasks/corpus/conversations/val.jsonl >$tasks/corpus/conversations/shuffled.jsonl
rm -rf $tasks/chat_shuffled
say_and_run "$choir" prepare chat $tasks/corpus/conversations/shuffled.jsonl --out $tasks/chat_shuffled --template plain
say_and_run "$choir" eval $run eval.answers=0 'data.validation={"shuffled": "'$tasks/chat_shuffled'"}' | tee $run/control.txt

matches() { sed -nE "s/.*'$1': .*exact match ([0-9.]+ %).*/\1/p" "$2" | head -n 1; }
echo
echo "== Done in $((SECONDS - begin)) s. Answers that are right to the letter:"
echo "new words                        $(matches words $run/eval.txt)"
echo "new words of new voices          $(matches voices $run/eval.txt)"
echo "control: the clip of another one $(matches shuffled $run/control.txt)"
cat <<END
Try next:
  $choir generate $run --audio FILE.wav --prompt "Repeat:" --json     any sound file of a few digits
END
