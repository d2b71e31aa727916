#!/usr/bin/env bash
# quickstart_salm.sh BUILD: from nothing but text-to-speech to a language model that hears: a corpus of spoken digits and
# words with questions about them, a recogniser that teaches an encoder to hear them, and a language model that learns to
# answer through it. Nine to ten minutes on two cores. A second run finds what is there, and continues what was interrupted.
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
chat $tasks chat --template plain

echo
echo "== 2. A recogniser: its encoder learns to hear"
train inputs/salm_encoder.json runs/salm_encoder

echo
echo "== 3. A language model learns to answer through it (Ctrl-C, and 'make quickstart-salm' continues)"
train inputs/salm_tutorial.json $run

echo
echo "== 4. Recordings that were never trained on; and, as a control, questions that hear the recording of another one"
answers $run $tasks/chat_shuffled
cat <<END
Try next:
  $choir generate $run --audio FILE.wav --prompt "Repeat:" --json     any sound file of a few digits
END
