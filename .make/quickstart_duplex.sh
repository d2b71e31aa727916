#!/usr/bin/env bash
# quickstart_duplex.sh BUILD: from text-to-speech alone to a dialogue as sound files: a corpus of a
# user who asks and an agent who answers, a codec of the agent's voice, a recogniser that trains a
# streaming encoder, a duplex model that learns when and what to speak, and a recogniser of the
# agent, which shows if its speech is intelligible. It takes about fifteen minutes on two cores. A
# second run uses existing files, and continues interrupted steps.
#   QUICKSTART_RANKS, QUICKSTART_HOURS   2 ranks; 4 hours of dialogues
#   QUICKSTART_OVERRIDES                 for tests: overrides of every deck
set -eu -o pipefail
build=${1:?usage: quickstart_duplex.sh BUILD}
here=$(dirname "$0") again="make quickstart-duplex"
# shellcheck source=speech_steps.sh
. "$here/speech_steps.sh"
all=data/spoken_dialogues codec=runs/codec_tutorial encoder=runs/duplex_encoder run=runs/duplex_tutorial ear=runs/duplex_ear
begin=$SECONDS

echo "A codec, an encoder and a dialogue model are trained on 2 ranks, in about ten minutes on two fast cores and in more than twenty on two slow ones."
echo "Ctrl-C stops at any time, and '$again' continues."
echo
echo "== 1 of 5. Dialogues: a user of many voices asks, an agent answers"
say_and_run "$choir" prepare corpus spoken-dialogues --out $all/corpus --hours "${QUICKSTART_HOURS:-4}"
for part in train val val_barge_in; do drop_older $all/corpus $all/dialogues/$part; done
say_and_run "$choir" prepare dialogues $all/corpus --out $all/dialogues --units bpe_64

echo
echo "== 2 of 5. A codec learns the agent's voice, and writes it as codes"
pack $all/agent 16000 $all/corpus/agent
train inputs/codec_tutorial.json $codec
say_and_run "$choir" prepare codes $codec $all/dialogues/{train,val,val_barge_in}/agent

echo
echo "== 3 of 5. A recogniser: its encoder learns to hear while it is spoken to"
pack $all 16000
units $all bpe_96 bpe 96
labels $all $all/bpe_96.json
train inputs/duplex_encoder.json $encoder

echo
echo "== 4 of 5. A language model learns to listen and to speak at once"
train inputs/duplex_tutorial.json $run

echo
echo "== 5 of 5. Dialogues that were never trained on: what it says, when it begins, and whether one understands it"
units $all/agent char char
say_and_run "$choir" prepare tokens $all/dialogues/{train,val}/agent --tokenizer $all/agent/char.json
train inputs/asr_digits.json $ear "data.train=[\"$all/dialogues/train/agent\"]" "data.val=[\"$all/dialogues/val/agent\"]" \
  data.batch_duration=40 train.max_steps=600
say_and_run "$choir" eval $run eval.dialogues=-1 eval.codec=$codec eval.recogniser=$ear | tee $run/eval.txt
user=$(find $all/corpus/audio -name "$(sed -nE '1s/^\{"id":"([^"]+)".*/\1/p' $all/corpus/dialogues/val_barge_in.jsonl)_user.wav")
echo "\$ $choir talk $run $user --codec $codec --recogniser $encoder --out $run/agent.wav --json >$run/talk.jsonl"
"$choir" talk $run "$user" --codec $codec --recogniser $encoder --out $run/agent.wav --json >$run/talk.jsonl
"$choir" report $run/talk.jsonl --out $run/talk.html

echo
echo "== Done in $((SECONDS - begin)) s. A dialogue in which the user breaks in: listen to it in $run/talk.html"
cat <<END
Try next:
  $choir talk $run FILE.wav --codec $codec --out agent.wav --stream     your own questions: sums, "say four two", "count to five"
  $choir talk $run user.wav --codec $codec --recogniser $encoder --out agent.wav --live       the same with a microphone and a loudspeaker
END
