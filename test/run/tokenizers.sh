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

# Characters and bytes: a tokenizer.json is written for them, with the ids of the run.
cat >ids.pl <<'P'
use JSON::PP; use utf8;
my ($tokenizer, $line) = map { local $/; open my $f, "<:raw", $_ or die; JSON::PP->new->utf8->decode(<$f>) } @ARGV;
my %text_of = reverse %{$tokenizer->{model}{vocab}};
my $said = join "", map { $text_of{$_} // die "no id $_" } @{$line->{ids}};
if ($tokenizer->{model}{type} eq "BPE") {  # GPT-2's letters of bytes
  my @plain = (33 .. 126, 161 .. 172, 174 .. 255); my %is = map { $_ => 1 } @plain; my $n = 256;
  my %byte = map { chr($is{$_} ? $_ : $n++) => chr } 0 .. 255;
  $said = join "", map { $byte{$_} // die "no letter" } split //, $said;
  utf8::decode($said) or die "not UTF-8";
}
exit($said eq $line->{text} && length $said > 3 ? 0 : 1);
P
for kind in char byte; do
  run 1 train "$debug" 'data.train=["text"]' data.tokenizer=$kind run.dir=plain_$kind "${tiny[@]/train.max_steps=4/train.max_steps=60}" \
    optimizer.learning_rate=1e-2
  run 1 export plain_$kind --format hf --out plain_hf_$kind
  expect "a model of ${kind}s is exported" 0 "plain_hf_$kind/model.safetensors"
  check "... without leaving its tokenizer out" lacks out "left out"
  run 0 generate plain_$kind --prompt "The cat" --tokens 20 --temperature 0 --json
  check "... tokenizer.json has the ids of the run" perl ids.pl plain_hf_$kind/tokenizer.json stdout
  check "... transformers is told its class" has plain_hf_$kind/tokenizer_config.json '"tokenizer_class": "PreTrainedTokenizerFast"'
  run 1 import plain_hf_$kind --out plain_back_$kind
  expect "... and imported again" 0 "plain_back_$kind"
  run 0 generate plain_$kind --prompt "The cat" --tokens 20 --temperature 0
  cp stdout said && run 0 generate plain_back_$kind --prompt "The cat" --tokens 20 --temperature 0
  check "... with its tokenizer: it writes the same text" cmp stdout said
done
