#!/usr/bin/env bash
# Dialogues for full-duplex models: a corpus from text-to-speech, the same on any number of ranks,
# and packed with text channels; input that does not fit is reported or refused.
. "$(dirname "$0")/lib/common.sh"

run 1 prepare corpus spoken-dialogues --out one --hours 0.02
expect "spoken dialogues" 0 "dialogues of" "train " "val "
run 2 prepare corpus spoken-dialogues --out other_corpus --hours 0.02
check "the same bytes on 2 ranks" diff -r one other_corpus
run 1 prepare corpus spoken-dialogues --out one --hours 0.02
expect "made once" 0 "The corpus exists already"
check "nobody says nothing" test "$(grep -c '"duration":0.0[,}]' one/dialogues/train.jsonl)" = 0
check "both sides are as long, in whole frames" awk -v RS='"num_samples":' \
  'NR > 1 {n = $1 + 0; bad += n % 1280 || (NR % 2 && n != last); last = n} END {exit NR < 3 || bad}' one/dialogues/train.jsonl

run 2 prepare dialogues one --out packed
expect "packed" 0 "of the agent" "tokens of units 'char'" "written to    packed/train" "written to    packed/val" \
  "choir prepare codes CODEC_RUN packed/train/agent"
check "validation has the units of training" cmp packed/train/user/tokenizer.char.json packed/val/user/tokenizer.char.json
check "words of the agent have their times" grep -q '"words":\[\["' packed/train/user.jsonl
run 1 prepare dialogues one --out alone
check "the same channels on one rank" cmp packed/train/user/labels.char.bin alone/train/user/labels.char.bin

# The same dialogues as a Shar of two parts: cuts without files, and a tar for each field.
mkdir -p shar members/recording members/target_audio
split -n l/2 -d -a 6 one/dialogues/train.jsonl shar_lines.
for lines in shar_lines.*; do
  part=${lines#shar_lines.}
  while IFS= read -r line; do
    id=$(sed -E 's/^\{"id":"([^"]*)".*/\1/' <<<"$line")
    mapfile -t files < <(grep -oE '"source":"[^"]*"' <<<"$line" | sed -E 's/.*:"(.*)"/\1/')
    for field in recording target_audio; do
      wav=${files[0]}
      [ $field = recording ] || wav=${files[1]}
      cp "$(realpath -m --relative-to . "one/dialogues/$wav")" "members/$field/$id.wav"
      echo '{}' >"members/$field/$id.json"
      tar rf "shar/$field.$part.tar" -C members/$field "$id.wav" "$id.json"
    done
  done <"$lines"
  sed -E 's/"source":"[^"]*"/"source":""/g; s/"type":"file"/"type":"shar"/g' "$lines" | gzip >"shar/cuts.$part.jsonl.gz"
done
run 2 prepare dialogues shar --out of_shar
expect "a folder of Lhotse's Shar" 0 "written to    of_shar"
check "... of two parts" test -e shar/target_audio.000001.tar
check "... the same channels" cmp packed/train/user/labels.char.bin of_shar/user/labels.char.bin
for side in user agent; do
  check "... the same sound of the $side" cmp packed/train/$side/audio_00000.pcm of_shar/$side/audio_00000.pcm
done
rm shar/target_audio.000001.tar
run 2 prepare dialogues shar --out no_target
expect "a part without its targets" 3 "cuts.000001.jsonl.gz:1" "target_audio.000001.tar' does not exist"
run 1 prepare dialogues members --out nothing
expect "a folder that is neither" 3 "'members' is a folder" "Lhotse Shar"

sed '2s/"speaker":"agent"/"speaker":"robot"/' one/dialogues/train.jsonl >one/dialogues/robot.jsonl
run 2 prepare dialogues one/dialogues/robot.jsonl --out robot --on-bad skip
expect "a speaker without a role" 3 "robot.jsonl:2: speaker 'robot' is neither user" "--roles"
run 1 prepare dialogues one/dialogues/robot.jsonl --out robot --roles 'user=user,agent=agent|robot'
expect "with a role" 0 "written to    robot"
run 1 prepare dialogues one/dialogues/train.jsonl --out x --roles 'user=user'
expect "no agent" 2 "does not name both user and agent"
run 1 prepare dialogues one/dialogues/train.jsonl --out x --pad 2 --eos 2
expect "padding that ends turns" 2 "they must differ"
sed '1s/"duration":\([0-9.]*\),"channel_ids":\[0\]}},/"duration":1.0,"channel_ids":[0]}},/; 1s/\("target_audio":.*"duration":\)[0-9.]*/\11.0/' \
  one/dialogues/train.jsonl >one/dialogues/apart.jsonl
run 1 prepare dialogues one/dialogues/apart.jsonl --out apart
expect "sides of different lengths" 3 "d000000: sides of different lengths: the recording of the user has"

cat >deck.json <<'D'
{ "model": { "type": "duplex", "codebooks": 4, "codes": 1000,
    "encoder": {"n_layer": 1, "n_embd": 16, "n_head": 2, "subsampling": 8, "subsampling_channels": 8, "mels": 20, "freq_width": 6},
    "lm": {"n_layer": 1, "n_embd": 32, "n_head": 2, "block_size": 512, "position": "rope"} },
  "data": {"train": ["packed/train"], "validation": {"val": "packed/val", "seen": "packed/train"}, "batch_duration": 30, "window": 8},
  "train": {"precision": "fp64", "micro_batches": 2, "max_steps": 4, "reproducible": true},
  "optimizer": {"learning_rate": 0.01, "warmup_steps": 1, "decay_steps": 4},
  "eval": {"interval": 2}, "checkpoint": {"interval": 2}, "log": {"interval": 1} }
D
run 2 train deck.json run.dir=none
expect "training needs codes" 3 "choir prepare codes"

run 2 train "$root/inputs/codec_tutorial.json" 'data.train=["packed/train/agent"]' 'data.val=[]' train.max_steps=4 \
  checkpoint.interval=4 run.dir=codec
expect "a codec of the agent's voice, which needs no labels" 0 "summary:"
run 2 prepare codes codec packed/train/agent packed/val/agent
expect "codes" 0 "4 x 1000 codes"
run 1 train deck.json run.dir=one_rank
expect "trains" 0 "x real time" "text_loss=" "codes_loss=" "val_text_loss/seen="
check "the loss falls" awk '{l[NR] = $2} END {exit !(l[NR] < l[1] - 0.3)}' <(losses one_rank)
run 2 train deck.json run.dir=two_ranks train.max_steps=2
run 2 train deck.json run.dir=two_ranks parallel.pipeline=2
expect "resumed on 2 stages" 0 "summary:"
check "the same losses, bit by bit" same_losses one_rank two_ranks
check "dialogues are held alike" test "$(grep -c ' dialogues held: ' one_rank/log.txt)" -gt 0
run 1 eval one_rank
expect "eval" 0 "val_codes_loss/val=" "'val': 1 dialogues held: text exact" "val_turn_hits/seen=" "val_false_starts="
metrics() { grep -o 'val_loss=.* seconds' stdout; }
metrics >of_one_rank
run 3 eval one_rank parallel.zero=3
check "... the same on 3 ranks that share the parameters" cmp of_one_rank <(metrics)
run 2 eval one_rank 'data.validation={"val":"packed/val dialogues=0","seen":"packed/train dialogues=2 tag.voice=any"}'
expect "sets with their own numbers of dialogues" 0 "'seen': 2 dialogues held" "all, voice=any: 2 dialogues held" "val_turn_hits/voice=any="
check "... none of the first" lacks stdout "'val': 1 dialogues held"
run 1 eval one_rank 'data.validation={"val":"packed/val temperature=1"}'
expect "an option of answers" 2 "data.validation.val: 'temperature' has no effect on this kind of model"
run 1 train deck.json run.dir=other model.codebooks=3
expect "codes of another codec" 3 "has 4 codebooks of 1000, but the model 3"
run 1 train deck.json run.dir=other model.encoder.subsampling=4
expect "frames of another length" 2 "a frame of the encoder is 640 samples"
run 1 train deck.json run.dir=other model.lm.block_size=50
expect "too long for the model" 2 "a dialogue has" "model.lm.block_size = 50"

run 1 talk one_rank one/audio/d000000_user.wav --codec codec --out agent.wav --json
expect "talks" 0 '"agent":"agent.wav"' '"frame":0,' "frames of 80 ms"
cp stdout talk.jsonl
check "the agent's file is as long as the user's" test "$(file_bytes agent.wav)" = "$(file_bytes one/audio/d000000_user.wav)"
run 2 talk one_rank one/audio/d000000_user.wav --codec codec --out again.wav --stream
expect "... frame by frame, on two ranks" 0 "listens  user" "again.wav"
check "... the same sound" cmp agent.wav again.wav
# All turns of users one after the other: more frames than the model has positions.
byte() { printf "\\x$(printf %02x $(($1 >> $2 & 255)))"; }
word() { for shift in 0 8 16 24; do byte "$1" $shift; done; }
for user in one/audio/*_user.wav; do tail -c +45 "$user"; done >users.raw
{ printf RIFF; word $(($(file_bytes users.raw) + 36)); head -c 40 one/audio/d000000_user.wav | tail -c +9; word "$(file_bytes users.raw)"; cat users.raw; } >users.wav
check "more than 512 frames" test "$(file_bytes users.raw)" -gt $((512 * 2560))
run 1 talk one_rank users.wav --codec codec --out users.wav
expect "the sound of the user is not overwritten" 2 "would overwrite the sound of the user"
run 1 talk one_rank users.wav --codec codec --out all.wav
expect "talks without end" 0 "frames of 80 ms"
check "... to all of them" test "$(file_bytes all.wav)" = "$(file_bytes users.wav)"
run 1 report talk.jsonl --out talk.html
expect "a page of it" 0 "talk.html"
# A microphone and a loudspeaker that are files.
if grep -q HAVE_ALSA "$build/choir_features.hpp"; then
  tail -c +45 one/audio/d000000_user.wav >user.raw
  cat >asound.conf <<D
</usr/share/alsa/alsa.conf>
pcm.ear { type file slave.pcm null file /dev/null infile "$PWD/user.raw" format raw }
pcm.mouth { type file slave.pcm null file "$PWD/said.raw" format raw }
D
  export ALSA_CONFIG_PATH=$PWD/asound.conf
  run 1 talk one_rank heard.wav --codec codec --out said.wav --live --microphone ear --loudspeaker mouth --seconds 2.5
  expect "talks to a microphone" 0 "listening to 'ear' for 3 s" "32 frames of 80 ms"
  check "... which heard the user" cmp <(tail -c +45 heard.wav) <(head -c 81920 user.raw)
  check "... and the loudspeaker what is in the file" cmp <(tail -c +45 said.wav) said.raw
  run 1 talk one_rank heard.wav --codec codec --out replayed.wav
  check "... as for the recording" cmp said.wav replayed.wav
  run 1 talk one_rank heard.wav --codec codec --out x.wav --live --microphone nobody
  expect "no such microphone" 6 "sound device 'nobody' cannot be recorded from" "arecord -L"
  unset ALSA_CONFIG_PATH
else
  run 1 talk one_rank heard.wav --codec codec --out x.wav --live
  expect "no ALSA" 6 "this build has no ALSA"
fi
run 1 talk one_rank one/audio/d000000_user.wav --codec codec --out x.wav --seconds 3
expect "no microphone without --live" 2 "--live"
run 1 talk one_rank one/audio/d000000_user.wav --codec one_rank --out x.wav
expect "no codec" 2 'model.type = "duplex" has no codes'
run 1 talk codec one/audio/d000000_user.wav --codec codec --out x.wav
expect "no talker" 2 "is not a model that talks"
run 1 train "$root/inputs/verify_duplex.json" run.dir=of_noise train.precision=fp32 train.max_steps=1 checkpoint.interval=1
run 1 talk of_noise one/audio/d000000_user.wav --codec codec --out x.wav
expect "a talker without words" 3 "has no tokenizer and no codec"
run 1 train "$root/inputs/codec_tutorial.json" 'data.train=["packed/train/agent"]' 'data.val=[]' train.max_steps=1 \
  checkpoint.interval=1 run.dir=stranger
run 1 talk one_rank one/audio/d000000_user.wav --codec stranger --out x.wav
expect "another codec" 3 "was trained on codes of codec"
run 1 prepare codes stranger packed/val/agent --name stranger
run 1 eval one_rank data.codes=stranger 'data.validation={"val":"packed/val"}'
expect "dialogues in its codes" 3 "has codes of codec" "the model was trained with codec"

# A recogniser of another run transcribes the words of the agent.
run 1 prepare tokens packed/train/agent --tokenizer packed/train/user/tokenizer.char.json --name char
cat >asr.json <<'D'
{ "model": {"type": "fastconformer", "n_layer": 1, "n_embd": 16, "n_head": 2, "subsampling": 8, "subsampling_channels": 8, "mels": 20, "freq_width": 6},
  "data": {"train": ["packed/train/agent"], "labels": "char", "batch_duration": 30, "window": 8},
  "train": {"micro_batches": 1, "max_steps": 1}, "checkpoint": {"interval": 1} }
D
run 1 train asr.json run.dir=asr
expect "a recogniser of the agent's voice" 0 "summary:"
run 1 eval one_rank eval.codec=codec eval.recogniser=asr
expect "the agent is heard" 0 "; heard: WER" "val_asr_wer/val=" "val_asr_bleu="
metrics >of_one_rank
run 2 eval one_rank eval.codec=codec eval.recogniser=asr
check "... alike on two ranks" cmp of_one_rank <(metrics)
run 4 eval one_rank eval.codec=codec eval.recogniser=asr train.reproducible=false parallel.tensor=2 parallel.sequence=true \
  parallel.context=2
check "... and on four that share layers and frames" cmp of_one_rank <(metrics)
# The models that score are in the memory plan, on the device that the deck says.
scored=(eval.codec=codec eval.recogniser=asr)
run 1 train deck.json run.dir=scored train.max_steps=2 "${scored[@]}"
expect "the agent is heard in training" 0 "eval.codec and eval.recogniser compute on " "; heard: WER"
started "... by models that have their place in the memory plan" scored "codec (eval.codec)" "recogniser (eval.recogniser)"
bytes_of() { sed -nE 's/^memory: ([0-9.]+) MiB for rank 0.*/\1/p' stdout; }
run 1 train deck.json run.dir=new --check
without=$(bytes_of)
run 1 train deck.json run.dir=new --check "${scored[@]}"
check "... and of --check" awk -v with="$(bytes_of)" -v without="$without" 'BEGIN { exit !(without > 0 && with > without + 0.1) }'
run 0 plan --all deck.json train.precision=fp32 --target h100 --ranks 1 "${scored[@]}" eval.scorer_device=shared
expect "a plan for a card that they share" 0 "codec (eval.codec) " "recogniser (eval.recogniser) "
check "... in its memory" matches stdout 'recogniser \(eval\.recogniser\) +[0-9.]+ MiB$'
run 0 plan --all deck.json train.precision=fp32 --target h100 --ranks 1 "${scored[@]}"
check "... or beside it" matches stdout 'recogniser \(eval\.recogniser\) .* MiB  host memory'
run 1 eval one_rank eval.scorer_device=shared
expect "a device of no scorer" 2 'eval.scorer_device = "shared" has no effect'
if [ -x "$build/choir_host_cuda" ]; then
  on_card() { choir=$build/choir_host_cuda run 1 eval one_rank train.precision=fp32 device=cuda 'data.validation={"val":"packed/val"}' "${scored[@]}" "$@"; }
  on_card
  expect "a model on a card is heard by the CPU" 0 "eval.codec and eval.recogniser compute on cpu (" "; heard: WER"
  metrics >heard_by_cpu
  on_card eval.scorer_device=shared
  expect "... by the card" 0 "eval.codec and eval.recogniser compute on cuda 0 (host execution" "; heard: WER"
  check "... with the same scores" cmp heard_by_cpu <(metrics)
fi
run 1 train deck.json run.dir=new --check eval.codec=stranger eval.recogniser=asr
expect "... not by another codec" 3 "eval.codec: the dialogues have codes of codec"
run 2 eval one_rank eval.codec=codec eval.recogniser=codec
expect "... nor by what is no recogniser" 2 'eval.recogniser: codec/checkpoints/' 'model.type = "codec"'
run 1 eval one_rank eval.recogniser=asr
expect "... nor without a codec" 2 'eval.recogniser = "asr" has no effect without eval.codec'
# Words of the user, as a streaming recogniser transcribes them from the recording.
run 1 train asr.json run.dir=ear model.causal=true model.context_style=chunked model.left_context=8 model.right_context=1 \
  model.normalise=false model.conv_norm=layernorm model.dropout=0
run 0 transcribe ear one/audio/d000000_user.wav --stream --json
expect "a recogniser that streams" 0 '"text":"'
words=$(sed -nE 's/.*"text":"([^"]*)".*/\1/p' stdout | tr -d ' ')
run 2 talk one_rank one/audio/d000000_user.wav --codec codec --recogniser ear --out again.wav --json
expect "talks, and tells what it hears" 0 '"heard":"'
check "... what is said" test -n "$words" -a "$(sed -nE 's/.*"heard":"([^"]*)".*/\1/p' stdout | tr -d ' \n')" = "$words"
check "... and answers as ever" cmp agent.wav again.wav
run 1 talk one_rank one/audio/d000000_user.wav --codec codec --recogniser asr --out again.wav
expect "... not by one that hears recordings whole" 2 "--recogniser: asr/checkpoints/" "cannot stream"
run 1 talk one_rank one/audio/d000000_user.wav --codec codec --recogniser codec --out again.wav
expect "... nor by what is none" 2 "--recogniser: codec/checkpoints/" 'model.type = "codec"'
