#!/usr/bin/env bash
# Conversations: how they are shown and written; fine-tuning on answers alone with the same numbers
# on one rank and four; named validation sets, a blend, and a resumed run; clips beside the text.
. "$(dirname "$0")/lib/common.sh"

for i in $(seq 0 39); do
  echo "{\"messages\":[{\"role\":\"user\",\"content\":\"say $((i % 10))\"},{\"role\":\"assistant\",\"content\":\"<$((i % 10))>\"}]}"
done >train.jsonl
{ sed -n 3,8p train.jsonl; echo '{"prompt":"q","completion":""}'; } >val.jsonl

run 0 prepare chat train.jsonl --show 1 --template chatml
expect "what counts is marked" 0 "<|im_start|>assistant" "[[<0><|im_end|>]]" "train.jsonl:1: 2 turns, 4 of"
run 2 prepare chat train.jsonl --out chat/train
expect "prepare chat" 0 "template      plain" "vocabulary of 257" "conversations 40"
run 0 prepare chat val.jsonl --out chat/val
expect "what is left out is counted" 0 "1 left out: empty answer 1 (first val.jsonl:7)"
echo '{"messages":[{"role":"robot","content":"x"}]}' >bad.jsonl
run 2 prepare chat bad.jsonl --out bad
expect "a role that nobody has" 3 "bad.jsonl:1" "unknown role 'robot'" "assistant"
run 0 prepare chat train.jsonl --out chat/never --template jinja
expect "an unknown template" 2 "unknown template 'jinja'" "mistral"

# A request that is refused changes nothing: no new folder, and an older result stays as it is.
contents_of() { (cd "$1" && find . -type f | sort | xargs md5sum); }
echo '{"id":"x","conversations":[{"from":"User","value":"gone.wav","type":"audio","duration":1.0},{"from":"Assistant","value":"y","type":"text"}]}' >clip.jsonl
contents_of chat/train >chat_before
for folder in chat/train chat/new; do
  run 2 prepare chat clip.jsonl --out $folder
  expect "a clip that is not there, $folder" 3 "clip.jsonl:1: missing file" "gone.wav"
done
check "... no folder" absent chat/new
check "... and the older result" diff chat_before <(contents_of chat/train)
head -n 1 train.jsonl >single.jsonl
run 1 prepare chat single.jsonl --out chat/new --held-out 0.1
expect "nothing is left to hold out" 3 "no usable conversation"
check "... no folder either" eval 'absent chat/new && absent chat/new_held'
mkdir -p foreign && echo 1 >foreign/tokenizer.json && echo 2 >foreign/weights
run 1 prepare chat train.jsonl --out foreign
expect "a folder of another program" 3 "contains 'weights'"
check "... keeps its files" eval '[ "$(cat foreign/tokenizer.json foreign/weights)" = "1
2" ]'

cat >deck.json <<'D'
{ "model": {"n_layer": 1, "n_embd": 32, "n_head": 2, "block_size": 16},
  "data": {"input_cfg": "[{\"folder\": \"chat/train\", \"weight\": 2}, {\"folder\": \"chat/val\", \"weight\": 1}]",
           "validation": {"seen": "chat/train", "held": "chat/val"}},
  "train": {"precision": "fp64", "global_batch_size": 4, "micro_batch_size": 1, "max_steps": 12},
  "optimizer": {"learning_rate": 0.01, "warmup_steps": 2},
  "eval": {"interval": 4, "sample_tokens": 8}, "checkpoint": {"interval": 8}, "log": {"interval": 10} }
D
# Compares the numbers within 1e-12, name by name.
same_numbers() {
  paste -d: <(echo "$1") <(echo "$2") | awk -F: '{d = $2 - $4; if (d < 0) d = -d; n++; if ($1 != $3 || d > 1e-12) bad = 1}
    END {exit bad || n < 3}'
}
losses() { grep -o '"val_loss[^,]*' "$1/metrics.jsonl" | tail -n 3; }
run 1 train deck.json run.dir=one
expect "fine-tuning on answers" 0 "blend 66.67 % 'chat/train'" "validation 'held': 6 conversations" "val_loss/held"
for ranks in 4; do
  run $ranks train deck.json run.dir=ranks_$ranks
  check "the same losses on $ranks ranks" same_numbers "$(losses one)" "$(losses ranks_$ranks)"
done
run_broken data-count-chat 2 train deck.json run.dir=miscounted
expect "an answer counted with a target too many" 4 "step 1: the model has used" "but the data announced"
run 2 train deck.json run.dir=cut train.max_steps=8 optimizer.decay_steps=12
run 1 train deck.json run.dir=cut train.max_steps=12 optimizer.decay_steps=12
expect "a run that goes on" 0 "step=12"
check "... as if it had not stopped" same_numbers "$(losses one)" "$(losses cut)"
run 2 eval one
expect "eval, set by set" 0 "val_loss/held=" "val_loss/seen="
run 2 eval one --json
expect "... as lines of JSON" 0 '"set":"held","kind":"validation","targets":' '"metrics":{"loss":'
check "... all are kept in the run" test "$(grep -c '"kind":"validation"' one/evaluations.jsonl)" = 6
run 1 report one --out one.html
check "... and shown in its report" grep -q "all validation data" one.html
run 2 eval one

# Several conversations in a row, each of which is independent of the others.
eval_loss() { grep -o 'val_loss.*targets=[0-9]*' stdout; }
alone=$(eval_loss)
run 1 eval one data.pack=true
check "... the same of rows with several" test -n "$alone" -a "$(eval_loss)" = "$alone"
run 1 train deck.json run.dir=packed data.pack=true
expect "packed rows" 0 "conversations packed in"
run 2 train deck.json run.dir=packed_2 data.pack=true train.max_steps=8 optimizer.decay_steps=12
run 1 train deck.json run.dir=packed_2 data.pack=true optimizer.decay_steps=12
check "... the same on two ranks, and gone on with" same_numbers "$(losses packed)" "$(losses packed_2)"
run 1 train deck.json run.dir=x data.pack=true data.input_cfg= data.validation={} 'data.train=["train.jsonl"]'
expect "... of conversations alone" 3 "data.pack = true requires conversations"

# A trained model answers: a single prompt, a file of prompts, over tensor ranks, and turn by turn.
cat >ask.jsonl <<'D'
{"id": "first", "prompt": "say 1"}
{"id": 2, "messages": [{"role": "user", "content": "say 2"}, {"role": "assistant", "content": "<2>"}, {"role": "user", "content": "say 3"}]}
D
sed -n 2p ask.jsonl >second.jsonl
answers() { grep -o '"id":"2".*' "$1"; }
run 0 generate one --chat --prompts ask.jsonl --samples 2 --tokens 6 --seed 5 --json
cp stdout all.jsonl
expect "answers as JSON" 0 '{"prompt":1,"id":"first","sample":1,"text":' '{"prompt":2,"id":"2","sample":2,"text":'
check "... a line for each sample" test "$(wc -l <all.jsonl)" = 4
run 0 generate one --chat --prompts second.jsonl --samples 2 --tokens 6 --seed 5 --json
check "... the same where nothing else is asked" same "answers all.jsonl" "answers stdout"
run 0 generate one --chat --prompts second.jsonl --tokens 6 --seed 6 --json
check "... a further sample has the next seed" test "$(grep -o '"ids".*' stdout)" = "$(tail -n 1 all.jsonl | grep -o '"ids".*')"
# Log-probabilities; there are none where prompt and answer are more than the positions.
run 0 generate one --chat --prompts ask.jsonl --samples 2 --tokens 6 --seed 5 --json --logprobs
expect "with log-probabilities" 0 '"logprobs":[-'
sed -E 's/,"logprobs":(null|\[[^]]*\])//' stdout >stripped
check "... the same answers" cmp all.jsonl stripped
cp stdout logs.jsonl
check "... one for each token, below 0" perl -ne 'next if /"logprobs":null/; /"ids":\[([^]]*)\],"logprobs":\[([^]]*)\]/ or die; my @i = split /,/, $1;
  my @l = split /,/, $2; die unless @i == @l; $_ < 0 or die for @l' logs.jsonl
run 2 generate one --chat --prompts ask.jsonl --samples 2 --tokens 6 --seed 5 --json --logprobs --tensor 2
check "... the same over tensor ranks" perl -e 'open my $a, "logs.jsonl"; open my $b, "stdout"; my $n = 0;
  while (defined(my $x = <$a>)) { my $y = <$b>; my @x = $x =~ /-\d+\.[\de-]+/g; my @y = $y =~ /-\d+\.[\de-]+/g;
    @x == @y or die; for (0 .. $#x) { abs($x[$_] - $y[$_]) < 1e-9 or die; $n++ } } $n > 4 or die'
run 0 generate one --ids 104,105,32 --logits three.npy
run 0 generate one --prompt "hi " --tokens 1 --temperature 0 --json --logprobs
check "... the greedy one is that of the largest logit" perl -e 'local $/; open my $f, "<:raw", "three.npy"; my $n = <$f>;
  my @v = unpack "d<*", substr $n, 10 + unpack "v", substr $n, 8, 2; my @r = @v[@v - @v / 3 .. $#v];
  my ($m, $s) = (-1e9, 0); $m = $_ > $m ? $_ : $m for @r; $s += exp($_ - $m) for @r;
  open my $g, "stdout"; <$g> =~ /"logprobs":\[([^]]*)\]/ or die; abs($1 + log $s) < 1e-9 or die "$1 ", -log $s'
run 0 generate one --prompt q --logprobs
expect "log-probabilities of text" 2 "--logprobs"
run 2 generate one --chat --prompts ask.jsonl --samples 2 --tokens 6 --seed 5 --json --tensor 2
check "... the same over tensor ranks" same "cat all.jsonl" "cat stdout"
for together in 1 3; do
  run 0 generate one --chat --prompts ask.jsonl --samples 2 --tokens 6 --seed 5 --json --batch $together
  check "... and $together in a batch" same "cat all.jsonl" "cat stdout"
done
printf 'a\nsay 1, and 2\n<3><4>\n' >texts
loud=(generate one --prompts texts --samples 3 --tokens 40 --temperature 9)
run 0 "${loud[@]}" --batch 1
cp stdout alone
run 0 "${loud[@]}"
expect "characters of several bytes" 0 "--- prompt 3, sample 3 ---"
check "... are whole, each prompt's for itself" same "cat alone" "cat stdout"
check "... and some there are" grep -q $'[\xc2-\xf4][\x80-\xbf]' alone
printf 'a\n\nbeyond all the positions\n' >texts
run 2 generate one --prompts texts
expect "one prompt of several is too long" 3 "texts:3: a prompt of 24 tokens, but the model has 16 positions" "shorten the prompt"
run 0 generate one --prompts texts --batch 0
expect "a batch of none" 2 "--batch"
printf '{"prompt":"a"}\n{"prompt":""}\n' >empty.jsonl
run 0 generate one --prompts empty.jsonl
expect "one prompt of several is empty" 3 "empty.jsonl:2:" "or is empty"
printf 'say 1\n\nsay 2\n' | LAUNCH_LIMIT=60 launch 2 "$choir" generate one --chat --system be --tokens 4 --temperature 0 --json >out 2>&1
code=$?
expect "turn by turn" 0 '{"prompt":1,"sample":1,' '{"prompt":2,"sample":1,'
run 2 generate one --prompts ask.jsonl
expect "a conversation that nobody asked for" 3 "ask.jsonl:2: this is a conversation" "use --chat for conversations"
echo '{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]}' >bad.jsonl
run 2 generate one --chat --prompts bad.jsonl
expect "nothing is asked" 3 "bad.jsonl:1: the last turn is the assistant's"
run 0 generate one --chat --prompt q --template chatml
expect "a template that the model does not have" 3 "the model has 257 ids" "'chatml' has 258"
run 2 generate one --prompts no.jsonl
expect "prompts that are not there" 3 "--prompts: no.jsonl cannot be read"
run 0 generate one --chat --samples 2
expect "samples of a conversation" 2 "--samples is for prompts"
run 0 generate one --template plain
expect "a template without --chat" 2 "--template requires --chat"
run 1 train deck.json run.dir=x data.input_cfg= "data.train=[\"chat/train\",\"train.jsonl\"]"
expect "conversations and text in one list" 3 "mixed"
run 1 train deck.json run.dir=x model.block_size=4
expect "rows too short for any conversation" 3 "longer than 4 rows 46" "block_size"
