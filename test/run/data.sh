#!/usr/bin/env bash
# Data that cannot be used: exit code 3, and the file is named. The first checks are about `choir
# prepare text`.
. "$(dirname "$0")/lib/common.sh"

run 0 prepare text text.txt --out tokens --tokenizer char
symbols=$(tr -d '\n' <text.txt | fold -w 1 | sort -u | wc -l)
characters=$(file_bytes text.txt)
grouped() { printf '%d' "$1" | sed -E ':a; s/([0-9])([0-9]{3})($|,)/\1,\2\3/; ta'; }
cut=$((characters * 9 / 10))
expect "prepare counts symbols and characters" 0 "$((symbols + 1)) entries" \
  "$(grouped "$cut") tokens in 1 file" "$(grouped $((characters - cut))) tokens in 1 file"
check "prepare writes the vocabulary" has tokens/vocab.json char
tokens=$(ls tokens/train*.tok | head -n 1)
size=$(file_bytes "$tokens")
cp -r tokens good

run 0 prepare text text.txt --out bytes --tokenizer byte
expect "prepare with bytes" 0 "256 entries"
run 0 prepare text text.txt --out shards --tokens-per-shard 20000
expect "prepare into shards" 0 "tokens in 3 files"
# The split into files changes nothing: the first set is train.txt and two more files of it.
for from in tokens shards bytes; do
  run 2 train "$debug" "data.train=[\"$from\"]" run.dir="from_$from"
  expect "training on $from" 0 "summary:"
done
check "the same batches from 1 file and 3" same_losses from_tokens from_shards
for reader in collective scatter node; do
  run 2 train "$debug" 'data.train=["shards"]' run.dir="reader_$reader" data.reader="$reader"
  expect "reader $reader" 0 "summary:"
  started "... is said" "reader_$reader" "reader $reader"
  check "the same batches from reader $reader" same_losses from_tokens "reader_$reader"
done

run 2 train "$debug" 'data.train=["shards"]' run.dir=preloaded data.preload=host train.max_steps=2
started "... preloaded" preloaded "reader own, preloaded"
run 2 train "$debug" 'data.train=["shards"]' run.dir=resident data.preload=device
started "... in the memory of the device" resident "preloaded in device memory" "training data"
check "... the same batches" same_losses from_tokens resident
run 1 train --check "$debug" 'data.train=["shards"]' data.preload=device data.on_the_fly=true
expect "... not of texts that are encoded meanwhile" 2 "data.preload = \"device\" needs all tokens before it"
run 2 train "$debug" 'data.train=["shards"]' run.dir=hinted data.hints.cb_buffer_size=65536 train.max_steps=2
expect "... a hint is echoed" 0 "data hint cb_buffer_size ="
# One reader per node has the files open, or one per N ranks.
open_files() {  # open_files RUN OVERRIDE...: ranks of a run that have a file of shards open
  local directory=$1 rank count=0
  shift
  start 2 train "$debug" 'data.train=["shards"]' run.dir="$directory" data.reader=scatter train.max_steps=1000000 \
    optimizer.decay_steps=20 eval.interval=0 checkpoint.interval=0 log.interval=5 "$@"
  wait_for out "step=5 "
  for rank in $(pgrep -P "$pid" -x choir); do
    ! ls -l "/proc/$rank/fd" 2>/dev/null | grep -q "/shards/train" || count=$((count + 1))
  done
  kill -TERM "$pid"
  end 10
  echo "$count" >ranks_that_read
}
open_files scattered
check "one reader a node has the files" test "$(cat ranks_that_read)" = 1
open_files scattered_more data.readers_every=1
check "... on every rank with one for each" test "$(cat ranks_that_read)" = 2

shakespeare=$root/data/shakespeare/input.txt
if [ -e "$shakespeare" ]; then
  run 0 prepare text "$shakespeare" --out shakespeare
  expect "prepare tiny Shakespeare" 0 "65 entries" "1,003,854 tokens" "111,540 tokens"
else skip "prepare tiny Shakespeare" "make data-shakespeare gets the text"; fi

# A blend of two texts with weights, and named validation sets: the same on any number of ranks,
# with the given weights.
head -n 300 text.txt >plays.txt
tail -n +301 text.txt >news.txt
sed -n 100,250p text.txt >held.txt
inputs() { echo "data.input_cfg=[{\"folder\": \"plays.txt\", \"weight\": $1}, {\"folder\": \"news.txt\", \"weight\": 1}]"; }
blended() {  # blended RANKS RUN_DIRECTORY WEIGHT OVERRIDE...
  local ranks=$1 directory=$2 weight=$3
  shift 3
  run "$ranks" train "$debug" data.train=[] "$(inputs "$weight")" run.dir="$directory" \
    'data.validation={"held": "held.txt", "news": "news.txt"}' "$@"
}
blended 1 blend 3
expect "training on a blend" 0 "blend 75.00 % 'plays.txt': " "blend 25.00 % 'news.txt': "
started "... and its validation sets" blend "validation 'held': " "validation 'news': "
check "... with a loss for each validation set" matches blend/metrics.jsonl '"val_loss":.*"val_loss/held":.*"val_loss/news":'
blended 2 blend_2 3 train.max_steps=10 optimizer.decay_steps=20
blended 2 blend_2 1 optimizer.decay_steps=20
expect "another weight on resume is refused" 2 "data.input_cfg: " "the data were: train " "blend 0.75 of " "blend 0.5 of " \
  "checkpoint.allow_changes='[\"data.input_cfg\"]'"
blended 2 blend_2 3 optimizer.decay_steps=20
expect "... the same one goes on" 0 "20 (10 now)"
check "... on another number of ranks with the same losses" close_losses blend blend_2 1e-5
run 2 eval blend
expect "eval, set by set" 0 "val_loss=" "val_loss/held=" "val_loss/news="
cat >blend.json <<'D'
{"inputs": [{"type": "txt", "paths": "plays.txt", "weight": 3, "tags": {"style": "verse"}},
            {"folder": "news.txt", "weight": 1, "limit": 2000}]}
D
run 2 train "$debug" data.train=[] data.input_cfg=blend.json run.dir=blend_4 'data.validation={"held": "held.txt limit=1000"}' \
  train.max_steps=2
expect "a blend in a file, with a limit and tags" 0 "blend 75.00 % 'plays.txt, tags style=verse': " \
  "blend 25.00 % 'news.txt': 2,000 tokens"
started "... and a limit of the validation" blend_4 " 32 windows"
sed -i 's/2000/3000/' blend.json
run 1 train "$debug" data.train=[] data.input_cfg=blend.json run.dir=blend_4 'data.validation={"held": "held.txt limit=1000"}' \
  train.max_steps=4
expect "the file changed" 2 "blend 0.75 of " "0.25 of 2000 tokens" "0.25 of 3000 tokens"
run 2 train "$debug" data.train=[] data.input_cfg=blend.yaml run.dir=blend_5
expect "a blend in YAML that is not there" 2 "'blend.yaml' is neither a list nor the name of a file"
run 1 train "$debug" 'data.validation={"held": "held.txt tag.lang=en"}' run.dir=blend_5
expect "an option of speech" 2 "data.validation.held: 'tag.lang' has no effect on this kind of model: tags group" "[limit=N]"
blended 2 blend_3 0
expect "a weight of nothing" 2 "data.input_cfg" "the weight 0 of an input is not above 0"

refused() {  # refused NAME FOLDER WORDS...: exit code 3 on 1 and 2 ranks
  local name=$1 folder=$2 ranks
  shift 2
  for ranks in 1 2; do
    run "$ranks" train "$debug" "data.train=[\"$folder\"]" run.dir=bad
    expect "$name, $ranks rank(s)" 3 "$@" || return
  done
}
broken() { rm -rf tokens; cp -r good tokens; }

refused "missing token file" nowhere.tok "nowhere.tok"
broken; : >"$tokens"
refused "empty token file" tokens "$tokens" "is empty" "prepare the data again"
broken; truncate -s $((size - 101)) "$tokens"
refused "truncated token file" tokens "$tokens" "is truncated" "tokens"
broken; truncate -s 20 "$tokens"
refused "truncated header" tokens "$tokens" "is truncated: 20 bytes"
broken; flip_byte "$tokens" 24
refused "corrupt header" tokens "$tokens" "has a corrupt header"
broken; flip_byte "$tokens" $((size / 2))
refused "corrupt tokens" tokens "$tokens"
broken; flip_byte "$tokens" 0
refused "foreign token file" tokens "$tokens" "no CHOIRTOK at its start"
refused "missing text" nowhere.txt "nowhere.txt"
: >empty.txt
refused "empty text" empty.txt "empty.txt"
printf 'good text \xff\xfe bad\n' >latin.txt
refused "text that is not UTF-8" latin.txt "latin.txt" "UTF-8" "10"
run 0 prepare text latin.txt --out never
expect "preparing what is not UTF-8" 3 "latin.txt" "UTF-8"
printf 'short\n' >short.txt
refused "text shorter than a window" short.txt "short.txt"

# A vocabulary that differs from that of the checkpoint.
broken
run 2 train "$debug" 'data.train=["tokens"]' run.dir=trained train.max_steps=10 optimizer.decay_steps=20
expect "a checkpoint to compare with" 0 "step_00000010"
tr q Q <text.txt >other.txt       # as many symbols, but one of them differs
tr q e <text.txt >fewer.txt       # one symbol fewer
run 0 prepare text other.txt --out other
run 0 prepare text fewer.txt --out fewer
tac text.txt >turned.txt
run 0 prepare text turned.txt --out turned
for ranks in 1 2; do
  run "$ranks" train "$debug" 'data.train=["turned"]' run.dir=trained optimizer.decay_steps=20
  expect "resume on other data of the same letters, $ranks rank(s)" 2 "data.train: [\"tokens\"] -> [\"turned\"]" \
    "checkpoint.allow_changes='[\"data.train\"]'"
  for data in other fewer; do
    run "$ranks" train "$debug" "data.train=[\"$data\"]" run.dir=trained optimizer.decay_steps=20
    expect "resume on $data, $ranks rank(s)" 3 "the vocabulary of the training data" "is not that of the checkpoint"
  done
  run "$ranks" eval trained 'data.train=["other"]'
  expect "eval with another vocabulary, $ranks rank(s)" 3 "vocabulary"
  run "$ranks" generate trained --prompt "the Queen" --tokens 3
  expect "prompt with an unknown character, $ranks rank(s)" 3 "'Q'" "--prompt"
done
run 0 generate trained --prompt "" --tokens 3
expect "empty prompt" 3 "the prompt is empty"

echo "too short to be a sample" >brief.txt
run 2 train "$debug" 'data.train=["brief.txt"]' run.dir=brief
expect "a text shorter than a sample" 3 "fewer than the 33 of one sample" "use more text"
check "... is said once" test "$(grep -c 'fewer than the 33' out)" = 1
for ahead in 0 1 64; do
  train 2 "ahead_$ahead" data.prefetch="$ahead" train.max_steps=5
  expect "data.prefetch=$ahead" 0 "summary:"
  check "... reads the same" same "losses ahead_0" "losses ahead_$ahead"
done
folder=$(ls -d data/.prepared/brief-*)
rm "$folder/meta.json"
run 2 train "$debug" 'data.train=["brief.txt"]' run.dir=brief
expect "a prepared text that somebody has been at" 3 "'$folder' exists and is not the prepared text" "remove it"
