#!/usr/bin/env bash
# quickstart_smollm2.sh BUILD MODEL: SmolLM2-135M, a real language model, learns to understand
# speech. MODEL is its GGUF, or the folder of Hugging Face. It takes half an hour on two cores; the
# corpus and the encoder of `make quickstart-salm` are used if they exist.
#   QUICKSTART_RANKS, QUICKSTART_HOURS   2 ranks; an hour of speech
#   QUICKSTART_OVERRIDES                 for tests: overrides of every deck
set -eu -o pipefail
build=${1:?usage: quickstart_smollm2.sh BUILD MODEL} model=${2:?usage: quickstart_smollm2.sh BUILD MODEL}
here=$(dirname "$0") again="make quickstart-smollm2 MODEL=$model"
# shellcheck source=speech_steps.sh
. "$here/speech_steps.sh"
tasks=data/spoken_tasks run=runs/salm_smollm2
begin=$SECONDS

echo "An encoder and adapters of the language model are trained on 2 ranks, in about half an hour on two fast cores."
echo "Ctrl-C stops at any time, and '$again' continues."
echo
echo "== 1 of 4. A language model, and questions about speech in its tokens"
[ -e runs/smollm2/deck.json ] || say_and_run "$choir" import "$model" --out runs/smollm2
say_and_run "$choir" prepare corpus spoken-tasks --out $tasks/corpus --hours "${QUICKSTART_HOURS:-1}"
pack $tasks 16000
units $tasks char char
labels $tasks $tasks/char.json
chat $tasks smollm2 --tokenizer runs/smollm2/tokenizer/tokenizer.json --template chatml

echo
echo "== 2 of 4. A recogniser: its encoder learns to hear"
train inputs/salm_encoder.json runs/salm_encoder

echo
echo "== 3 of 4. The language model learns to hear through it"
train inputs/salm_smollm2.json $run

echo
echo "== 4 of 4. Recordings that were never trained on; and, as a control, questions that hear the recording of another one"
answers $run $tasks/smollm2_shuffled
