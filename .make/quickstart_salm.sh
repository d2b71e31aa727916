#!/usr/bin/env bash
# quickstart_salm.sh BUILD: from text-to-speech alone to a language model with speech input: a
# corpus of spoken digits and words with questions about them, a recogniser that trains an encoder,
# and a language model that learns to answer with it. It takes nine to ten minutes on two cores. A
# second run uses existing files, and continues interrupted steps.
#   QUICKSTART_RANKS, QUICKSTART_HOURS   2 ranks; an hour of speech
#   QUICKSTART_OVERRIDES                 for tests: overrides of every deck
set -eu -o pipefail
build=${1:?usage: quickstart_salm.sh BUILD}
here=$(dirname "$0") again="make quickstart-salm"
# shellcheck source=speech_steps.sh
. "$here/speech_steps.sh"
tasks=data/spoken_tasks run=runs/salm_tutorial
begin=$SECONDS

echo "An encoder and a language model are trained on 2 ranks, in about ten minutes on two fast cores and in more than twenty on two slow ones."
echo "Ctrl-C stops at any time, and '$again' continues."
echo
echo "== 1 of 4. Digits and words that are spoken, with questions about them"
say_and_run "$choir" prepare corpus spoken-tasks --out $tasks/corpus --hours "${QUICKSTART_HOURS:-1}"
pack $tasks 16000
units $tasks char char
labels $tasks $tasks/char.json
chat $tasks chat --template plain

echo
echo "== 2 of 4. A recogniser: its encoder learns to hear"
train inputs/salm_encoder.json runs/salm_encoder

echo
echo "== 3 of 4. A language model learns to answer through it"
train inputs/salm_tutorial.json $run

echo
echo "== 4 of 4. Recordings that were never trained on; and, as a control, questions that hear the recording of another one"
answers $run $tasks/chat_shuffled
cat <<END
Try next:
  $choir generate $run --audio FILE.wav --prompt "Repeat:" --json     any sound file of a few digits
END
