#!/usr/bin/env bash
# Tokens of a tokenizer.json: text is encoded with it, and it is used in training, generation,
# resuming and export.
. "$(dirname "$0")/lib/common.sh"

mkdir text
for part in 1 2 3; do
  for line in $(seq 1 150); do echo "The $line cats of part $part sat on the mat, naïve and wide; don't."; done >text/$part.txt
done
same() { cmp -s "$1/tokenizer.json" "$2/tokenizer.json" && cmp -s "$1/train_00000.tok" "$2/train_00000.tok"; }

run 1 prepare text text --out one --tokenizer bpe --vocab-size 300
expect "a vocabulary is made of text" 0 "bpe (300 entries"
run 2 prepare text text --out two --tokenizer bpe --vocab-size 300
expect "... on two ranks" 0 "bpe (300 entries"
check "... with the same merges and tokens" same one two
run 2 prepare text text --out again --tokenizer one/tokenizer.json
expect "... and used for text" 0 "bpe (300 entries"
check "... with the same tokens" same one again
run 2 prepare text text --out small --tokenizer bpe --vocab-size 256
expect "too small a size is refused" 2 "257"
run 2 prepare text text --out large --tokenizer bpe --vocab-size 100000
expect "too large a size is refused" 2 "not for 100000"
run 1 prepare text text --out odd --tokenizer byte --vocab-size 300
expect "a size without a bpe is refused" 2 "--vocab-size with --tokenizer byte"

tiny=(model.n_layer=1 model.n_embd=32 model.n_head=2 model.block_size=32 model.activation=gelu_tanh
  train.max_steps=4 log.interval=1)
run 2 train "$debug" data.train='["one"]' run.dir=run "${tiny[@]}"
expect "it is trained on" 0 "run/checkpoints/step_00000004"
run 1 inspect run/checkpoints/step_00000004
expect "... kept in the checkpoint" 0 "bpe, 300 symbols"
run 2 generate run --prompt "The naïve" --tokens 30
expect "... and text generated" 0 "The naïve"
check "... of whole characters" iconv -f UTF-8 -t UTF-8 stdout -o /dev/null
run 1 eval run
expect "... and evaluated" 0 "val_loss="
run 1 prepare text text --out other --tokenizer bpe --vocab-size 290
run 1 train "$debug" data.train='["other"]' run.dir=run "${tiny[@]/max_steps=4/max_steps=6}" \
  checkpoint.allow_changes='["data.train","model.vocab_size","train.max_steps"]'
expect "another tokenizer is refused when the run is continued" "$code" "is not that of the checkpoint"
check "... with an exit code" test "$code" -ne 0
run 1 export run --format hf --out hf
expect "a folder of transformers" 0 "hf/tokenizer.json"
check "... has the tokenizer to the byte" cmp -s one/tokenizer.json hf/tokenizer.json
run 1 import hf --out back
expect "... comes back" 0 "back"
run 1 generate back --prompt "The naïve" --tokens 5
expect "... and generates text" 0 "The naïve"
run 1 export run --format gguf --out run.gguf
expect "a GGUF with the tokenizer" 0 "run.gguf"
check "... of byte-level BPE" grep -aq "tokenizer.ggml.merges" run.gguf
run 1 import run.gguf --out from_gguf
expect "... comes back" 0 "kept in from_gguf/tokenizer: tokenizer.gguf, tokenizer.json"
printf '%s\n' '{"prompt": "naïve, 12", "completion": " as ever"}' >chat.jsonl
for of in hf from_gguf/tokenizer; do
  run 1 prepare chat chat.jsonl --tokenizer $of/tokenizer.json --template plain --show 1
  expect "... conversations in the tokens of $of" 0 "as ever"
  cp stdout "shown_$(dirname $of)"
done
check "... are the same" cmp shown_. shown_from_gguf
