#!/usr/bin/env bash
# The page inputs/fine_tune.md: every command is run as it stands, on tiny models and data. Then
# rows that are mostly padding, which a deck that nobody chose for its data has.
. "$(dirname "$0")/lib/common.sh"

page=$root/inputs/fine_tune.md
mkdir -p build && ln -s "$choir" build/choir && ln -s "$root/jobs" jobs && ln -s "$root/inputs" inputs
perl "$root/test/run/lib/tiny_gguf.pl" make SmolLM2-135M-Instruct.gguf >/dev/null
for i in $(seq 0 39); do
  echo "{\"messages\": [{\"role\": \"user\", \"content\": \"hi $i\"}, {\"role\": \"assistant\", \"content\": \"yo\"}]}"
done >chats.jsonl
run 0 prepare corpus spoken-digits --out digits --hours 0.03
expect "recordings with transcripts" 0
for part in train val; do
  perl -pe 's|"audio_filepath": *"|"audio_filepath": "digits/|' "digits/$part.json" >"$part.json"
done
head -n 24 train.json >speech.json
head -n 4 val.json >speech_val.json
perl -ne 'my ($file) = /"audio_filepath": *"([^"]*)"/ or next; my ($seconds) = /"duration": *([\d.]+)/ or next;
  print "{\"conversations\": [{\"from\": \"user\", \"value\": \"$file\", \"type\": \"audio\", \"duration\": $seconds}, ",
    "{\"from\": \"user\", \"value\": \"hi\"}, {\"from\": \"assistant\", \"value\": \"yo\"}]}\n"' speech.json >questions.jsonl
espeak-ng -v en-us -w a.wav "three"
mkdir -p data/quickstart && seq -f 'hi %g yo' 4000 >data/quickstart/input.txt

own() { perl -MJSON::PP -e 'local $/; print "$_->{name}\n" for @{decode_json(<>)->{manifest}{tensors}}' \
  "$1/checkpoints/$(newest "$1")/manifest.json"; }  # own RUN: what its own file has
lines=$(grep -cE '^ +(build/choir|jobs/launch) ' "$page")
check "the page has commands" test "$lines" -ge 15
while IFS= read -r line; do
  command=$(echo "$line" | sed -E 's/^ +//; s/"Who (are you|speaks)\?"/"hi"/')
  # The recogniser of the page is a whole tutorial; a tiny one is enough to go on with.
  case $command in
    *asr_tutorial*) command+=" train.max_steps=2 model.n_layer=1 model.n_embd=16 model.n_head=2 model.subsampling_channels=8
      data.batch_duration=12 optimizer.warmup_steps=1 train.precision=fp32 eval.interval=0 checkpoint.interval=2" ;;
    # So is its base without a network.
    *gpt_quickstart*) command+=" train.max_steps=2 model.n_layer=1 model.n_embd=16 model.n_head=2 eval.interval=0" ;;
  esac
  bash -c "${command//$'\n'/ }" >stdout 2>stderr </dev/null
  code=$?
  cat stdout stderr >out
  expect "$command" 0
  case $command in
    *"prepare chat chats"*) check "... says what it chose" has stdout "rows of " ;;
    *"train data/chat/deck"*)
      check "... rows are full" eval '! grep -q "rows is padding, which" out'
      check "... the loss falls" awk '{l[NR] = $2} END {exit !(NR > 1 && l[NR] < l[1])}' <(losses runs/chat)
      check "... a checkpoint holds the adapters alone" eval 'own runs/chat | grep -q adapter && ! own runs/chat | grep "^parameters/" | grep -v adapter'
      check "... the included deck is on record" has runs/chat/deck.json "runs/smollm2/deck.json" ;;
    *"choir runs") check "... lists both" eval 'grep -q "^runs/chat  *finished" stdout && grep -q "^runs/smollm2  *imported" stdout' ;;
    *"train data/questions"*)
      check "... nothing of both runs is stored again" eval '! own runs/questions | grep "^parameters/\(lm\|encoder\)" | grep -v adapter' ;;
  esac
done < <(grep -E '^ +(build/choir|jobs/launch) ' "$page")

run 0 train runs/smollm2/deck.json run.dir=wide checkpoint.init_from=runs/smollm2 'data.train=["data/chat"]' train.max_steps=1 \
  model.lora.rank=2
expect "a deck with long rows" 0 "% of the rows is padding, which" "data.pack=true"
cure=$(grep -oE 'data.pack=true( model.block_size=[0-9]+)?' out | head -n 1)
# shellcheck disable=SC2086
run 0 train runs/smollm2/deck.json run.dir=full checkpoint.init_from=runs/smollm2 'data.train=["data/chat"]' train.max_steps=1 \
  model.lora.rank=2 $cure
expect "... with what it was told to set" 0 "summary"
check "... does not warn again" lacks out "rows is padding, which"
run 0 prepare chat chats.jsonl --for runs/asr --tokenizer runs/smollm2/tokenizer/tokenizer.json --out never
expect "a deck for a recogniser" 2 'model.type is "fastconformer" there, but it must be "gpt"'
# A recording that cannot be read: chats have no --on-bad, and the hint does not name it.
mkdir broken && echo no sound >broken/a.wav
sed -n '1s|"value": "[^"]*wav"|"value": "broken/a.wav"|p' questions.jsonl >broken.jsonl
run 0 prepare chat broken.jsonl --tokenizer byte --out never
expect "a recording that is no sound" 3 "broken/a.wav" "leave its conversation out of the file"
check "... with advice that works here" lacks out "--on-bad"
rm -rf never

# Runs that were trained here instead of imported: their checkpoints have their vocabulary.
head -n 400 data/quickstart/input.txt >text.txt
small='model.n_layer=1 model.n_embd=16 model.n_head=2 model.block_size=64 train.max_steps=2 train.global_batch_size=2 train.micro_batch_size=2
  eval.interval=0 checkpoint.interval=2'
train_small() {  # train_small RUN DATA OVERRIDE...
  # shellcheck disable=SC2086
  run 0 train "$root/inputs/gpt_quickstart.json" run.dir="$1" 'data.train=["'"$2"'"]' $small "${@:3}"
  expect "a language model of its own, $1" 0 "summary:"
}
train_small letters text.txt
run 0 prepare chat chats.jsonl --for letters --out never
symbols=$(grep -oE 'char \([0-9]+ entries' letters/log.txt | grep -oE '[0-9]+' | head -n 1)
expect "characters without a token that ends turns" 2 "the conversations have $((symbols + 1)) tokens" "of 'letters' has $symbols" \
  "model.vocab_size="
rm -rf never
train_small roomy text.txt "$(grep -oE 'model.vocab_size=[0-9]+' out | head -n 1)"
run 0 prepare text text.txt --out pieces --tokenizer bpe --vocab-size 280
train_small pieced pieces
for base in roomy pieced; do
  run 0 prepare chat chats.jsonl --for $base --out chat_$base
  expect "conversations for $base" 0 "template      plain" "train with    choir train chat_$base/deck.json"
  check "... whose deck tells what a row holds" eval '! grep -q "about eight" chat_$base/deck.json && grep -qE "holds about [0-9]+ conversation" chat_$base/deck.json'
  run 0 train chat_$base/deck.json run.dir=tuned_$base
  expect "... are learned" 0 "summary:"
  run 0 generate tuned_$base --chat --prompt "hi 3" --tokens 5
  expect "... and answered" 0
done

run 0 prepare chat questions.jsonl --for runs/smollm2 --out never
expect "recordings without an encoder" 2 "--encoder runs/asr"
run 0 prepare chat chats.jsonl --for digits --out never
expect "a deck for no run" 2 "digits"
