#!/usr/bin/env bash
# Files of other programs that this program reads as text: broken ones are refused with file, line,
# column and a plain cause, a key that is given twice with both positions, and enormous ones by
# their size, before they are read.
# shellcheck disable=SC2154
. "$(dirname "$0")/lib/common.sh"
. "$root/test/run/lib/golden_models.sh"

# Words of the parsing libraries: they name their own classes and functions, which do not help
# users.
foreign='exception|parse_error|type_error|out_of_range|invalid_iterator|json\.|basic_string|vector::|std::|sto[ilud]|filesystem error|terminate'
plain() { ! grep -nE "$foreign" out; }

# --- the files: one valid file of each kind
train 1 run
expect "a run" 0 "summary:"
checkpoint=run/checkpoints/$(newest run)
run 0 prepare text text.txt --tokenizer bpe --vocab-size 300 --out tokens
expect "token files" 0 "written to  tokens"
cp tokens/tokenizer.json tokenizer.json 2>/dev/null || cp tokens/vocab.json tokenizer.json
tiny make llama model
run 1 import model --out imported
expect "an import" 0 "largest_share="
mkdir sharded adapter
cp model/config.json sharded/
cp model/model.safetensors sharded/model-00001-of-00001.safetensors
perl -e '
  open my $file, "<:raw", "model/model.safetensors" or die; read $file, my $length, 8;
  read $file, my $header, unpack "Q<", $length;
  my @names = grep { $_ ne "__metadata__" } $header =~ /"([^"]+)":\{/g;
  print "{\"metadata\": {}, \"weight_map\": {", join(", ", map { "\"$_\": \"model-00001-of-00001.safetensors\"" } @names), "}}\n"
' >sharded/model.safetensors.index.json
run 1 import sharded --out imported_from_shards
expect "an import from shards" 0 "largest_share="
echo '{"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]}' >adapter/adapter_config.json
echo '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}' >chat.jsonl
echo '{"prompt": "the king"}' >prompts.jsonl
echo '{"audio_filepath": "a.wav", "duration": 1.0, "text": "a"}' >audio.jsonl
cp "$debug" deck.json
sed -i 's:^ *//.*::' deck.json

# attacked NAME FILE CODES ARGUMENT...: the command that reads FILE refuses every damage to it with
# one of the exit codes.
attacked() {
  local name=$1 file=$2 codes=$3 damage
  shift 3
  cp "$file" good
  for damage in cut twice list empty word bytes number none; do
    case $damage in
      cut) head -c $(($(file_bytes good) / 2)) good >"$file" ;;
      twice) sed '0,/{/s/{/{"twice": 1, "twice": 2, /' good >"$file" ;;
      list) echo '[{"a": [1, 2]}]' >"$file" ;;
      empty) echo '{}' >"$file" ;;
      word) echo 'nothing that is JSON' >"$file" ;;
      bytes) printf '{"a": "\xff\xfe"}\n' >"$file" ;;
      number) echo '{"a": 1e999}' >"$file" ;;
      none) : >"$file" ;;
    esac
    rm -rf made
    run 0 "$@"
    case " $codes " in *" $code "*) ;; *) fail "$name, $damage" "exit code $code, not one of $codes"; show_output; continue ;; esac
    if ! plain >leaks; then fail "$name, $damage" "it quotes a library: $(head -n 3 leaks)"; continue; fi
    if [ $damage = twice ] && [ "$code" != 0 ] && ! grep -q "'[a-z.]*twice' is given twice (first " out; then
      fail "$name, $damage" "the two positions are missing"; show_output; continue
    fi
    pass "$name, $damage"
  done
  cp good "$file"
}
attacked "a deck" deck.json "0 2" train deck.json "${small[@]}" --check
attacked "an imported config.json" model/config.json 2 import model --out made
attacked "an index of shards" sharded/model.safetensors.index.json 6 import sharded --out made
attacked "adapter_config.json" adapter/adapter_config.json "2 6" import model --adapter adapter --out made
attacked "tokenizer.json" tokenizer.json 3 prepare text text.txt --tokenizer tokenizer.json --out made
attacked "a line of a chat" chat.jsonl 3 prepare chat chat.jsonl --out made
attacked "a prompt" prompts.jsonl "0 3" generate run --prompts prompts.jsonl --tokens 1
attacked "a line of a manifest" audio.jsonl 3 prepare audio audio.jsonl --out made
attacked "a line of dialogues" audio.jsonl 3 prepare dialogues audio.jsonl --out made
attacked "the manifest of a checkpoint" "$checkpoint/manifest.json" "0 6" inspect "$checkpoint"
attacked "metrics.jsonl" run/metrics.jsonl "0 3" report run --out made
attacked "deck.json of a run" run/deck.json "0 3" report run --out made
mkdir sweep && echo '{"bench": "step"}' >sweep/a.json
attacked "a run of a sweep" sweep/a.json 3 bench scaling sweep

# A message about a field that is missing in a manifest names the line and quotes no library.
printf '%s\n' '{"audio_filepath": "a.wav", "duration": 1.0, "text": "a"}' '{"audio_filepath": "a.wav", "text": "a", "text": "b"}' >two.jsonl
run 0 prepare audio two.jsonl --out made
expect "a key twice in the second line" 3 "two.jsonl:2" "column 42: key 'text' is given twice (first in column 29)"
printf '%s\n' '{"prompt": "q", "completion": "a"}' '{"prompt": "q", "completion": "a", "prompt": "r"}' >two.jsonl
run 0 prepare chat two.jsonl --out made
expect "a key twice in the second chat" 3 "two.jsonl:2:36: key 'prompt' is given twice (first in column 2)"

# --- sizes: a hole of 20 GB; reading it would need that much memory, or a minute.
enormous() {  # enormous NAME FILE CODE LIMIT ARGUMENT...: the message names the limit behind `excess`
  local name=$1 file=$2 wanted=$3 most=$4
  shift 4
  [ ! -e "$file" ] || cp -r "$file" good
  truncate -s 20G "$file"
  rm -rf made
  ( ulimit -v $((8 << 20)); limit=20; run 0 "$@"; exit "$code" )
  code=$?
  cat stdout stderr >out
  expect "$name of 20 GB" "$wanted" "${excess}more than $most" "$(basename "$file")"
  rm "$file"
  [ ! -e good ] || mv good "$file"
}
rm -f good
excess="has 21474836480 bytes, "
enormous "a deck" deck.json 2 "16 MiB" train deck.json --check
enormous "config.json" model/config.json 2 "16 MiB" import model --out made
enormous "an index of shards" sharded/model.safetensors.index.json 6 100000000 import sharded --out made
enormous "adapter_config.json" adapter/adapter_config.json 6 "16 MiB" import model --adapter adapter --out made
enormous "tokenizer.json" tokenizer.json 3 "128 MiB" prepare text text.txt --tokenizer tokenizer.json --out made
enormous "tokenizer_config.json" model/tokenizer_config.json 6 "256 MiB" import model --out made
enormous "generation_config.json" model/generation_config.json 6 "256 MiB" import model --out made
enormous "prompts" prompts.jsonl 3 "256 MiB" generate run --prompts prompts.jsonl --tokens 1
excess="has " enormous "metrics.jsonl" run/metrics.jsonl 3 "4 GiB and was not read" report run --out made
enormous "the manifest of a checkpoint" "$checkpoint/manifest.json" 6 "256 MiB" inspect "$checkpoint"
enormous "a run of a sweep" sweep/a.json 3 "16 MiB" bench scaling sweep
cp tokens/meta.json good_meta
enormous "meta.json of token files" tokens/meta.json 3 "16 MiB" train deck.json 'data.train=["tokens"]' --check

# --- work: quadratic time, and a recursion as deep as the list is long
perl -e 'print "{", join(", ", map { "\"k$_\": 1" } 1 .. 400_000), ", \"prompt\": \"q\", \"completion\": \"a\"}\n"' >wide.jsonl
run 0 prepare chat wide.jsonl --out made
expect "a chat with 400,000 keys" 3 "wide.jsonl:1:" "more than 10000 keys in one object"
perl -MJSON::PP -e '
  local $/; my $all = JSON::PP->new->utf8->decode(<STDIN>);
  $all->{pre_tokenizer} = {type => "Sequence", pretokenizers => [({type => "Digits", individual_digits => \1}) x 40_000, $all->{pre_tokenizer}]};
  print JSON::PP->new->utf8->encode($all)' <tokenizer.json >splitters.json
run 0 prepare text text.txt --tokenizer splitters.json --out made
expect "40,000 splitters" 3 "splitters.json" "more than 16"

# --- decks in the forms of other programs
deck_says() {  # deck_says NAME TEXT WORDS...: a deck with this text is refused with these words
  local name=$1
  printf '%b' "$2" >form.json
  shift 2
  run 0 train form.json --check
  expect "a deck with $name" 2 "$@"
}
steps='{"train": {"max_steps": %s}}'
# shellcheck disable=SC2059
for number in '1_000' '1,000' '16k' '0x10' '+2' '.5'; do
  deck_says "the number $number" "$(printf "$steps" $number)" "form.json:1:" "a number is written in digits, without separators and units"
done
for given in '1_000; write 1000' '2,000; write 2000' '+2; write 2' '0x10; write 16' '16k; write 16000, or 16384 if 1024 is meant'; do
  run 0 train "$debug" --check "train.max_steps=${given%%;*}"
  expect "max_steps=${given%%;*}" 2 "expected an integer, not text; ${given#*; }"
done
for given in '0,001; write 0.001' '.5; write 0.5'; do
  run 0 train "$debug" --check "optimizer.learning_rate=${given%%;*}"
  expect "learning_rate=${given%%;*}" 2 "expected a number, not text; ${given#*; }"
done
for given in yes on 1; do
  run 0 train "$debug" --check train.reproducible=$given
  expect "reproducible=$given" 2 "expected true or false" "write true without quotes"
done
deck_says "a comment of YAML" '# mine\n{}' "comments begin with //"
deck_says "None" '{"train": {"max_steps": None}}' "write null instead"
deck_says "arguments" '--num-layers 12 --lr 1e-4\n--micro-batch-size 4\n' "a list of arguments" "model.n_layer=12" \
  "optimizer.learning_rate=1e-4" "train.micro_batch_size=4"
deck_says "comments of INI" '; mine\n[model]\nn_layer = 2\n' "an INI file" "model.n_layer=2"
printf '{}' | iconv -t UTF-16 >utf16.json
run 0 train utf16.json --check
expect "a deck in UTF-16" 2 "the text is UTF-16" "iconv -f UTF-16 -t UTF-8"

# --- token files of other trainers: parts by their names, blends, patterns, and indices of Megatron
mkdir fineweb
perl -e 'print pack "l<256", 20240520, 1, 300, (0) x 253; print pack "S<300", map { $_ * 7 % 60 } 1 .. 300' >fineweb/tiny_train_000001.bin
perl -e 'print pack "l<256", 20240520, 1, 90, (0) x 253; print pack "S<90", map { $_ % 60 } 1 .. 90' >fineweb/tiny_val_000000.bin
tokens_say() {  # tokens_say NAME CODE PATHS WORDS...: a deck with these tokens
  local name=$1 wanted=$2 paths=$3
  shift 3
  run 0 train "$debug" --check model.vocab_size=64 train.global_batch_size=2 "data.train=$paths"
  expect "$name" "$wanted" "$@"
}
tokens_say "files of llm.c by their names" 0 '["fineweb"]' "train 300 tokens in 1 file" "validation 90 tokens in 1 file"
tokens_say "a pattern" 3 '["fineweb/tiny_train_*.bin"]' "patterns are not expanded: name the folder 'fineweb'"
tokens_say "a variable of the environment" 3 '["$HOME/a.bin"]' "variables of the environment are not replaced in a deck"
tokens_say "a blend of Megatron" 3 '["0.3", "fineweb/tiny_train_000001.bin"]' 'data.input_cfg=[{"folder": "PATH", "weight": 0.3}, ...]'
tokens_say "a blend of Megatron in one text" 3 '["0.3 a 0.7 b"]' 'data.input_cfg=[{"folder": "PATH", "weight": 0.3}, ...]'
printf '0.3 fineweb/tiny_train_000001\n0.7 fineweb/tiny_val_000000.bin\n' >blend.txt
tokens_say "a blend of Megatron in a file" 3 '["blend.txt"]' "'blend.txt' is a list of files, not plain text" 'data.input_cfg=[{"folder": "PATH", "weight": 0.3}, ...]'
pair() {  # pair NAME MODES: a pair of two sequences of 50 tokens, and the modes of a multimodal set
  perl -e 'print pack "S<100", map { $_ % 60 } 1 .. 100' >"$1.bin"
  perl -e 'print "MMIDIDX\0\0", pack("Q<CQ<Q<", 1, 8, 2, 3), pack("l<2", 50, 50), pack("q<5", 0, 100, 0, 1, 2), pack "c*", @ARGV' ${2:-} >"$1.idx"
}
mkdir pairs
pair pairs/texts "0 0"
tokens_say "a multimodal pair of texts alone" 0 '["pairs/texts"]' "train 100 tokens in 1 file"
pair pairs/images "0 1"
tokens_say "a multimodal pair" 3 '["pairs/images"]' "belongs to a multimodal data set: sequence 1 has mode 1"
rm pairs/texts.bin
tokens_say "an index without its tokens" 3 '["pairs/texts.idx"]' "the tokens are in 'pairs/texts.bin', which is missing"
tokens_say "... by its prefix" 3 '["pairs/texts"]' "the tokens are in 'pairs/texts.bin', which is missing"
echo '{"model": {"n_layer": 1, "n_head": 1, "n_embd": 8, "block_size": 16, "vocab_size": 64},
  "data": {"input_cfg": [{"folder": "fineweb", "weight": 2}, {"folder": "fineweb/tiny_val_000000.bin", "weight": 1}]}, "train": {"max_steps": 1}}' >blend.json
run 0 train blend.json --check
expect "a blend as a list in a deck" 0 "deck OK"
