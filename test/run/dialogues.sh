#!/usr/bin/env bash
# Dialogues for full-duplex models: a corpus out of text-to-speech, the same on any number of ranks, and packed with
# text channels; what does not fit is told or refused.
. "$(dirname "$0")/lib/common.sh"

run 1 prepare corpus spoken-dialogues --out one --hours 0.02
expect "spoken dialogues" 0 "dialogues of" "train " "val "
run 3 prepare corpus spoken-dialogues --out three --hours 0.02
check "the same bytes on 3 ranks" diff -r one three
run 1 prepare corpus spoken-dialogues --out one --hours 0.02
expect "made once" 0 "It is there already"
check "nobody says nothing" test "$(grep -c '"duration":0.0[,}]' one/dialogues/train.jsonl)" = 0
check "both sides are as long, in whole frames" awk -v RS='"num_samples":' \
  'NR > 1 {n = $1 + 0; bad += n % 1280 || (NR % 2 && n != last); last = n} END {exit NR < 3 || bad}' one/dialogues/train.jsonl

run 2 prepare dialogues one --out packed
expect "packed" 0 "of the agent" "tokens of units 'char'" "written to    packed/train" "written to    packed/val" \
  "choir prepare codes CODEC_RUN packed/train/agent"
check "validation has the units of training" cmp packed/train/user/tokenizer.char.json packed/val/user/tokenizer.char.json
run 1 prepare dialogues one --out alone
check "the same channels on one rank" cmp packed/train/user/labels.char.bin alone/train/user/labels.char.bin

sed '2s/"speaker":"agent"/"speaker":"robot"/' one/dialogues/train.jsonl >one/dialogues/robot.jsonl
run 2 prepare dialogues one/dialogues/robot.jsonl --out robot --on-bad skip
expect "a speaker without a role" 3 "robot.jsonl:2: speaker 'robot' is neither user" "--roles"
run 1 prepare dialogues one/dialogues/robot.jsonl --out robot --roles 'user=user,agent=agent|robot'
expect "with a role" 0 "written to    robot"
run 1 prepare dialogues one/dialogues/train.jsonl --out x --roles 'user=user'
expect "no agent" 2 "does not say who user and agent are"
run 1 prepare dialogues one/dialogues/train.jsonl --out x --pad 2 --eos 2
expect "padding that ends turns" 2 "they must differ"
sed '1s/"duration":\([0-9.]*\),"channel_ids":\[0\]}},/"duration":1.0,"channel_ids":[0]}},/; 1s/\("target_audio":.*"duration":\)[0-9.]*/\11.0/' \
  one/dialogues/train.jsonl >one/dialogues/apart.jsonl
run 1 prepare dialogues one/dialogues/apart.jsonl --out apart
expect "sides of different lengths" 3 "d000000: sides of different lengths: the recording of the user has"

cat >deck.json <<'D'
{ "model": { "type": "duplex", "codebooks": 2, "codes": 50,
    "encoder": {"n_layer": 1, "n_embd": 16, "n_head": 2, "subsampling": 8, "subsampling_channels": 8, "mels": 20, "freq_width": 6},
    "lm": {"n_layer": 1, "n_embd": 32, "n_head": 2, "block_size": 512, "position": "rope"} },
  "data": {"train": ["packed/train"], "validation": {"val": "packed/val", "seen": "packed/train"}, "batch_duration": 30},
  "train": {"precision": "fp64", "micro_batches": 2, "max_steps": 4}, "eval": {"interval": 2}, "log": {"interval": 1} }
D
run 2 train deck.json run.dir=none
expect "training needs codes" 3 "choir prepare codes"
