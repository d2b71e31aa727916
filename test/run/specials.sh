#!/usr/bin/env bash
# Ids of tokens, the tokens that end generation, settings of generation and the template of chats
# pass through every pair of formats, and through training.
. "$(dirname "$0")/lib/common.sh"
. "$(dirname "$0")/lib/golden_models.sh"
. "$(dirname "$0")/lib/dense_models.sh"

gguf() { perl "$root/test/run/lib/tiny_gguf.pl" "$@"; }
# json FILE EXPRESSION: prints a value of the JSON $j, with the keys of objects in order.
json() {
  perl -MJSON::PP -e 'local $/; open my $in, "<:raw", $ARGV[0] or die; my $j = JSON::PP->new->utf8->decode(<$in>);
    my $v = eval $ARGV[1]; die $@ if $@; print ref $v || !defined $v ? JSON::PP->new->canonical->ascii->allow_nonref->encode($v) : $v, "\n"' "$1" "$2"
}
# equal COMMAND COMMAND: both print the same text, and they print something.
equal() { diff <(eval "$1") <(eval "$2") && [ -n "$(eval "$1")" ]; }
is() { test "$(json "$1" "$2" 2>&1)" = "$3"; }  # is FILE EXPRESSION VALUE
# ids FOLDER: the ids of the added tokens, where `tokenizers` looks them up.
ids() { json "$1/tokenizer.json" 'join " ", map { my $c = $_->{content}; "$c=$_->{id}=" . $j->{model}{vocab}{$c} } sort { $a->{id} <=> $b->{id} } @{$j->{added_tokens}}'; }
settings() {  # settings FOLDER: those that must not change
  ids "$1"
  json "$1/generation_config.json" '$j'
  json "$1/config.json" '[map { $j->{"${_}_token_id"} } "bos", "eos", "pad"]'
  json "$1/tokenizer_config.json" '[map { $j->{"${_}_token"} } "bos", "eos", "pad"]'
  cat "$1/chat_template.jinja"
}
keys() { gguf keys "$1" | grep -v -e '^general.name=' -e '^choir\.'; }
kept() { gguf keys "$1" | grep -v -e '^general.name=' -e context_length -e '^choir.tokenizer_config='; }

# --- from llama.cpp
gguf make tiny.gguf
run 1 import tiny.gguf --out R
expect "a GGUF whose control tokens are the first ids" 0 "tokenizer_config.json" "generation_config.json" "chat_template.jinja"
run 1 export R --format hf --out H
expect "... for transformers" 0 "H/tokenizer_config.json"
for folder in R/tokenizer H; do
  check "... ids of $folder" test "$(ids $folder)" = "<|endoftext|>=0=0 <|im_start|>=1=1 <|im_end|>=2=2"
  check "... generation" is $folder/generation_config.json '$j' '{"bos_token_id":1,"eos_token_id":2}'
  check "... tokens as text" is $folder/tokenizer_config.json '"$j->{bos_token} $j->{eos_token}"' '<|im_start|> <|im_end|>'
done
check "... ids of config.json" is H/config.json '"$j->{bos_token_id} $j->{eos_token_id}"' "1 2"
check "... the template" test "$(cat H/chat_template.jinja)" = "$(gguf keys tiny.gguf | sed -n 's/^tokenizer.chat_template=//p')"
run 1 export R --format gguf --out R.gguf
run 1 import H --out HR
run 1 export HR --format gguf --out HR.gguf
expect "... and back" 0 "HR.gguf"
for file in R.gguf HR.gguf; do
  check "... $file has all keys of the tokenizer" equal "keys tiny.gguf | grep ^tokenizer" \
    "keys $file | grep ^tokenizer | grep -v -e add_bos_token"
done

# --- from transformers, with a list of ends, padding, and settings of generation
cp -r H T
perl -0pi -e 's/"eos_token_id": 2/"eos_token_id": [2, 0, 5]/' T/config.json
echo '{"bos_token_id": 1, "eos_token_id": [2, 0, 5], "pad_token_id": 0, "do_sample": true, "temperature": 0.6, "top_k": 20,
  "top_p": 0.9, "repetition_penalty": 1.1, "max_new_tokens": 99}' >T/generation_config.json
perl -0pi -e 's/"bos_token"/"pad_token": "<|endoftext|>",\n  "padding_side": "left",\n  "bos_token"/' T/tokenizer_config.json
printf '{%% for m in messages %%}<|im_start|>\xc3\xa9{{ m["content"] }}\n{%% endfor %%}' >T/chat_template.jinja
perl -0pi -e 's/"pad_token_id": null/"pad_token_id": 0/' T/config.json
run 2 import T --out TR
run 2 export TR --format hf --out TH
expect "from transformers to transformers" 0 "TH/model.safetensors"
run 2 export TR --format gguf --out T.gguf
expect "... to llama.cpp" 0 "T.gguf"
run 1 import T.gguf --out TG
run 1 export TG --format hf --out TGH
expect "... and back" 0 "TGH/model.safetensors"
run 1 export TG --format gguf --out TGG.gguf
for folder in TH TGH; do
  settings T >wanted
  settings $folder >found
  check "... all settings in $folder" cmp wanted found
done
check "... the same keys twice" equal "kept T.gguf" "kept TGG.gguf"
check "... llama.cpp stops at all of them" equal "keys T.gguf | grep -E 'eo[ts]_|eom_|padding_tok|sampling.t'" \
  "printf '%s\n' general.sampling.temp=0.600000023841858 general.sampling.top_k=20 general.sampling.top_p=0.899999976158142 \
     tokenizer.ggml.eom_token_id=5 tokenizer.ggml.eos_token_id=2 tokenizer.ggml.eot_token_id=0 tokenizer.ggml.padding_token_id=0"

# --- after training: the files go along; conversations decide what ends generation
for i in 0 1 2 3 4 5; do
  echo "{\"messages\": [{\"role\": \"user\", \"content\": \"hi $i\"}, {\"role\": \"assistant\", \"content\": \"yo\"}]}"
done >chat.jsonl
gguf make base.gguf tokenizer.ggml.eos_token_id=0 tokenizer.chat_template=
run 1 import base.gguf --out B
run 1 prepare chat chat.jsonl --tokenizer R/tokenizer/tokenizer.json --template chatml --out chat
steps=2
tune() {  # tune NAME FROM DATA [ARGUMENT...]: up to $steps steps
  local name=$1 from=$2 data=$3
  shift 3
  run 2 train "$from/deck.json" checkpoint.init_from="$from" run.dir="$name" "data.train=[\"$data\"]" model.block_size=32 \
    train.max_steps=$steps train.micro_batch_size=1 train.grad_accum=0 train.global_batch_size=2 device=cpu "$@"
}
tune F TR chat
expect "a run takes the tokenizer files along" 0 "tokenizer of TR: " "generation_config.json"
run 1 export F --format hf --out FH
expect "... and exports them" 0 "FH/chat_template.jinja"
settings FH >found
check "... as they were, for its turns ended as before" cmp wanted found
run 1 export F --format gguf --out F.gguf
check "... also for llama.cpp" equal "kept T.gguf" "kept F.gguf"
tune N B chat
run 1 export N --format hf --out NH
expect "conversations end with another token than the model did" 0 "generation ends with <|im_end|> (2)" "before: 0" \
  "chat template: chatml, in which the run was trained"
check "... which ends generation" is NH/generation_config.json '$j->{eos_token_id}' "[2,0]"
check "... and is the tokenizer's" is NH/tokenizer_config.json '$j->{eos_token}' "<|im_end|>"
check "... and is in config.json" is NH/config.json '$j->{eos_token_id}' 2
run 1 export N --format gguf --out N.gguf
check "... for llama.cpp" equal "keys N.gguf | grep -E 'eo[ts]_token'" "printf 'tokenizer.ggml.%s\n' eos_token_id=2 eot_token_id=0"
check "... with the same template" test "$(keys N.gguf | sed -n 's/^tokenizer.chat_template=//p')" = "$(cat NH/chat_template.jinja)"
run 1 import N.gguf --out NG
run 1 export NG --format hf --out NGH
check "... and back" equal "settings NH" "settings NGH"
steps=3
tune N B chat optimizer.decay_steps=2
expect "such a run goes on" 0 "resumed from N" "step=3"
run 2 eval N 'data.val=["chat"]'
expect "... and is evaluated" 0 "val_loss="
printf 'hi there, hello again and so on\n%.0s' $(seq 40) >text.txt
run 1 prepare text text.txt --out other --tokenizer bpe --vocab-size 258
tune O TR other model.vocab_size=260
expect "another vocabulary" 0 "left out: " "generation_config.json" "because the training data have another vocabulary"
check "... has no files of the first" absent O/tokenizer

# --- each template as a Jinja program
cat >compare.py <<'P'
import json, sys
from jinja2 import Environment
program, chats, shown = (open(p, encoding="utf-8").read() for p in sys.argv[1:4])
run = Environment(trim_blocks=True, lstrip_blocks=True).from_string(program)
texts = [run.render(messages=json.loads(line)["messages"]) for line in chats.splitlines()]
wanted = [block.split("\n", 1)[1] for block in ("\n" + shown).split("\n--- ")[1:]]
assert len(texts) == len(wanted) and len(texts) > 2, (len(texts), len(wanted))
for text, want in zip(texts, wanted):
    want = want.replace("[[", "").replace("]]", "")
    assert text.rstrip("\n") == want.rstrip("\n"), (text, want)
P
python=${PYTHON:-python3}
cat >many.jsonl <<'D'
{"messages": [{"role": "user", "content": " a'b "}, {"role": "assistant", "content": "one"}, {"role": "user", "content": "c\\d"}, {"role": "assistant", "content": "two"}]}
{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "q"}, {"role": "assistant", "content": "three"}]}
{"messages": [{"role": "user", "content": "z"}, {"role": "assistant", "content": "four"}]}
D
perl -0pe 's/"<\|endoftext\|>"/"<s>"/g; s/"<\|im_start\|>"/"<\/s>"/g' R/tokenizer/tokenizer.json >s.json
perl -0pe 's/"<\|endoftext\|>"/"<|begin_of_text|>"/g; s/"<\|im_start\|>"/"<|start_header_id|>"/g; s/"<\|im_end\|>"/"<|end_header_id|>"/g;
  s/"he"/"<|eot_id|>"/; s/"h e"//; s/("added_tokens":\[)/$1\{"id":259,"content":"<|eot_id|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},/' \
  R/tokenizer/tokenizer.json >llama3.json
if ! "$python" -c "import jinja2" 2>/dev/null; then skip "templates as Jinja programs" "PYTHON=... has no jinja2"
else
  for kind in chatml:R/tokenizer/tokenizer.json plain:R/tokenizer/tokenizer.json llama2:s.json mistral:s.json llama3:llama3.json; do
    for system in "" "Always\\ 'so'."; do
      chat=${kind%%:*}
      rm -rf many J J.out
      run 0 prepare chat many.jsonl --tokenizer "${kind#*:}" --template "$chat" --system "$system" --out many
      run 0 train R/deck.json run.dir=J checkpoint.init_from=R 'data.train=["many"]' model.block_size=200 train.max_steps=1
      run 0 export J --format hf --out J.out
      run 0 prepare chat many.jsonl --tokenizer "${kind#*:}" --template "$chat" --system "$system" --show 3
      cp stdout shown
      check "the Jinja program of $chat writes what the run was trained on ('$system')" \
        "$python" compare.py J.out/chat_template.jinja many.jsonl shown
    done
  done
fi

# --- the tokens of each family of dense models: through all formats, and after training in its template
# letters FIRST TOKEN...: a tokenizer.json of 64 entries, with these control tokens from the id FIRST on.
letters() {
  perl -e 'my ($first, @special) = @ARGV; my @letters = ("\\u010a", "\\u0120", "a" .. "z", split(//, "<|>_.?"), 0 .. 9, "A" .. "Z");
    my @all = map { my $at = $_ - $first; $at >= 0 && $at < @special ? $special[$at] : shift @letters } 0 .. 62;
    my $vocab = join ", ", map { "\"$all[$_]\": $_" } 0 .. 62;
    my $flags = join "", map { ", \"$_\": false" } qw(single_word lstrip rstrip normalized);
    my $added = join ", ", map { "{\"id\": " . ($first + $_) . ", \"content\": \"$special[$_]\"$flags, \"special\": true}" } 0 .. $#special;
    my $bytes = q("type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true);
    print qq({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [$added], "normalizer": null,
      "pre_tokenizer": {$bytes}, "post_processor": null, "decoder": {$bytes}, "model": {"type": "BPE", "dropout": null,
      "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
      "byte_fallback": false, "ignore_merges": false, "vocab": {$vocab, "hi": 63}, "merges": ["h i"]}}\n);' "$@"
}
for i in 0 1; do echo '{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}'; done >short.jsonl
# family MODEL TEMPLATE BOS EOS PAD ENDS FIRST TOKEN...: ids of tokens, of which the list ENDS ends generation, and the
# control tokens from the id FIRST on. The first of them ends a turn.
family() {
  local model=$1 chat=$2 bos=$3 eos=$4 pad=$5 ends=$6 first=$7 end=$8
  shift 7
  rm -rf F.* && dense_model "$model" && mv "$model" F.in
  letters "$first" "$@" >F.in/tokenizer.json
  perl -MJSON::PP -e 'my ($folder, $bos, $eos, $pad, $ends, $first, @tokens) = @ARGV;
    my $json = JSON::PP->new->canonical->pretty;
    my %id = (bos => $bos, eos => $eos, pad => $pad);
    my @ends = map { 0 + $_ } split /,/, $ends;
    my $put = sub { open my $out, ">", "$folder/$_[0].json" or die; print $out $json->encode($_[1]) };
    my $config = do { local $/; open my $in, "<", "$folder/config.json" or die; $json->decode(<$in>) };
    my %ids = map { ("${_}_token_id" => 0 + $id{$_}) } keys %id;
    $put->("config", {%$config, %ids});
    $put->("generation_config", {%ids, eos_token_id => @ends > 1 ? \@ends : $ends[0]});
    $put->("tokenizer_config", {tokenizer_class => "PreTrainedTokenizerFast", clean_up_tokenization_spaces => JSON::PP::false,
      map { ("${_}_token" => $tokens[$id{$_} - $first]) } keys %id});' F.in "$bos" "$eos" "$pad" "$ends" "$first" "$@"
  printf '%s' "{% for m in messages %}{{ m['content'] + '$end' }}{% endfor %}" >F.in/chat_template.jinja
  run 1 import F.in --out F.run
  expect "$model, $chat" 0 "F.run"
  run 1 export F.run --format hf --out F.hf
  run 1 export F.run --format gguf --out F.gguf --name tiny
  run 1 import F.gguf --out F.g
  run 1 export F.g --format hf --out F.ghf
  expect "... through llama.cpp's file" 0 "F.ghf/model.safetensors"
  settings F.in >wanted
  for folder in F.hf F.ghf; do
    settings $folder >found
    check "... $folder has its tokens, ends and template" eval 'test -s wanted && cmp wanted found'
  done
  run 1 export F.g --format gguf --out F.again.gguf --name tiny
  check "... and the file has the same keys twice" equal "kept F.gguf" "kept F.again.gguf"
  check "... llama.cpp stops at each end" equal "keys F.gguf | sed -nE 's/^tokenizer.ggml.eo[mst]_token_id=//p' | sort -n" \
    "tr , '\n' <<<$ends | sort -n"
  run 0 prepare chat short.jsonl --tokenizer F.in/tokenizer.json --template "$chat" --out F.chat
  run 1 train F.run/deck.json checkpoint.init_from=F.run run.dir=F.tuned 'data.train=["F.chat"]' \
    train.max_steps=1 train.micro_batch_size=1 train.grad_accum=0 train.global_batch_size=1 device=cpu
  expect "... trained on conversations" 0 "step=1"
  run 1 export F.tuned --format hf --out F.out
  expect "... in the family's template" 0 "chat template: $chat, in which the run was trained"
  check "... whose turns end generation, as the other ends do" is F.out/generation_config.json \
    'join ",", ref $j->{eos_token_id} ? @{$j->{eos_token_id}} : $j->{eos_token_id}' \
    "$(tr , '\n' <<<"$first,$ends" | awk '!seen[$0]++' | paste -sd ,)"
  check "... and are the tokenizer's" is F.out/tokenizer_config.json '$j->{eos_token}' "$end"
}
family gemma gemma 3 2 1 2,0 0 '<end_of_turn>' '<pad>' '<eos>' '<bos>' '<start_of_turn>'
family phi3_long phi3 50 51 51 51,52,48 48 '<|end|>' '<unk>' '<s>' '<|endoftext|>' '<|assistant|>' '<|system|>' '<|user|>'
family olmo2 olmo2 50 50 51 50 50 '<|endoftext|>' '<|pad|>'
if exhaustive; then
  family gemma3 gemma 3 2 1 2,0 0 '<end_of_turn>' '<pad>' '<eos>' '<bos>' '<start_of_turn>'
  family phi3_long phi4 49 48 50 48 48 '<|im_end|>' '<|endoftext|>' '<|dummy_85|>' '<|im_start|>' '<|im_sep|>'
  family phi3_long phi4_mini 49 49 49 48,49 48 '<|end|>' '<|endoftext|>' '<|assistant|>' '<|user|>' '<|system|>' '<|tool|>' '<|/tool|>'
  family granite granite 0 0 0 0 0 '<|end_of_text|>' '<|start_of_role|>' '<|end_of_role|>' '<|tool_call|>'
fi

# --- files without names for these things say what they leave out, and types what they cannot hold
tiny_model gpt2
perl -0pi -e 's/"bos_token_id": 0/"bos_token_id": 0, "pad_token_id": 7/' gpt2/config.json
run 1 import gpt2 --out G
run 1 export G --format llmc --out G.bin
expect "llm.c has no place for them" 0 "left out: the tokenizer, ids of special tokens"
sed -i 's/"gelu_new"/"gelu"/' gpt2/config.json
run 1 import gpt2 --out P
run 1 export P --format nanogpt --out P.nano
expect "a model for nanoGPT" 0 "P.nano/generation_config.json"
run 1 import P.nano --out P.back
run 1 export P.back --format hf --out PH
check "... and back, with the ids" is PH/config.json '[@{$j}{qw(bos_token_id eos_token_id pad_token_id)}]' "[0,1,7]"
tiny_model llama
run 1 import llama --out L
run 1 export L --format gguf --out L.gguf
run 1 import L.gguf --out L.back
expect "angles of Llama 3 on two pairs are imported from our own file" 0 "step_00000000"
rope() { grep -E '"rope_' "$1/deck.json"; }
check "... with their settings" equal "rope L" "rope L.back"
run 1 export L --format gguf --type q8_0 --out L8.gguf
expect "no row is whole blocks" 0 "type=f32" "as f32, not as q8_0, because the rows are not whole blocks of 32"
check "... and the file says so" grep -qx "general.file_type=0" <(gguf keys L8.gguf)
run 1 export R --format gguf --type q8_0 --out R8.gguf
expect "some rows are" 0 "type=q8_0" "as f32, not as q8_0"
check "... and the file says so" grep -qx "general.file_type=7" <(gguf keys R8.gguf)
run 1 export R --format gguf --type q4_k --out R4.gguf
expect "rows of 32 fall back to five bits" 0 "1 matrix tensor as q5_0, not as q4_k, because the rows are not whole blocks of 256"

# --- the model's own template, with a default system turn
rm -rf D && cp -r H D
printf '%s' "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}{{ '<|im_start|>system\nab<|im_end|>\n' }}{% endif %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}" >D/chat_template.jinja
echo '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}' >own.jsonl
run 1 prepare chat own.jsonl --tokenizer D/tokenizer.json --show 1
expect "a default system turn of the model's own template" 0 "<|im_start|>system" "[[b<|im_end|>]]"
run 1 prepare chat own.jsonl --tokenizer D/tokenizer.json --template chatml --show 1
check "... which a built-in template does not have" test -z "$(grep system stdout)"
run 1 import D --out DR
run 1 generate DR --chat --prompt a --tokens 1 --timings
with=$(sed -n 's/^prompt: \([0-9]*\) tokens.*/\1/p' out)
run 1 generate DR --chat --prompt a --tokens 1 --timings --template chatml
without=$(sed -n 's/^prompt: \([0-9]*\) tokens.*/\1/p' out)
check "... is a part of the prompt of generate --chat" test "${with:-0}" -gt "${without:-1000}"
printf '{%% include "x" %%}' >D/chat_template.jinja
run 1 prepare chat own.jsonl --tokenizer D/tokenizer.json --show 1
expect "a template that is not understood" 3 "the tag 'include' in line 1" "specify a built-in template"
