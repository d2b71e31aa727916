#!/usr/bin/env bash
# A language model with speech input, from a corpus of spoken tasks: it trains, answers its
# validation data, resumes bit by bit in another layout, gives the same answers on any number of
# ranks, and answers about sound files.
. "$(dirname "$0")/lib/common.sh"

run 1 prepare corpus spoken-tasks --out tasks --hours 0.02
expect "spoken tasks" 0 "conversations in tasks/conversations"
for part in train val; do run 2 prepare chat tasks/conversations/$part.jsonl --out $part --template chatml --system "be brief"; done
expect "packed" 0 "template      chatml" "clips"
packed() { cat "$1"/audio/*.pcm; }  # the sound of FOLDER
# NeMo's tarred form of the second folder: two files, each with the tar of its clips.
awk '{ match($0, /"offset":[0-9.]+/); clip = substr($0, RSTART, RLENGTH); second += NR > 5 && clip != last; last = clip
       sub(/"value":"\.\.\//, "\"value\":\""); print >("said_" (second > 0) ".jsonl") }' tasks/conversations/val.jsonl
for i in 0 1; do tar -cf clips_$i.tar -C tasks "$(sed -nE '1s/.*"value":"([^"\/]*)\/.*/\1/p' said_0.jsonl)"; done
run 2 prepare chat said__OP_0..1_CL_.jsonl --tars clips__OP_0..1_CL_.tar --out tarred --template chatml --system "be brief"
expect "packed from tars" 0 "written to    tarred"
check "... the same conversations" cmp tarred/conversations.chat val/conversations.chat
check "... and the same sound" eval 'cmp <(packed tarred) <(packed val)'
run 1 prepare chat said_0.jsonl said_1.jsonl --tars clips_0.tar --out none --template chatml
expect "files without a tar" 2 "2 files of conversations, but 1 patterns of tars"
run 1 prepare chat said__OP_0..1_CL_.jsonl --tars clips__OP_0..2_CL_.tar --out none --template chatml
expect "more tars than files" 3 "names 2 files" "3 tars"
run 1 prepare chat tasks/conversations/val_cuts.jsonl --tars clips_0.tar --out none --template chatml
expect "cuts with a tar" 3 "specifies its own audio source"

cat >deck.json <<'D'
{ "model": { "type": "salm",
    "encoder": {"n_layer": 1, "n_embd": 16, "n_head": 2, "subsampling": 8, "subsampling_channels": 8, "mels": 20, "freq_width": 6},
    "lm": {"n_layer": 1, "n_embd": 32, "n_head": 2, "block_size": 192, "position": "rope"} },
  "data": {"train": ["train"], "validation": {"held": "val", "seen": "train"}, "batch_tokens": 1024, "buckets": 2, "window": 64},
  "train": {"precision": "fp64", "micro_batches": 2, "max_steps": 8, "reproducible": true},
  "optimizer": {"learning_rate": 0.01, "warmup_steps": 2, "decay_steps": 8},
  "eval": {"interval": 4, "answers": 5, "answer_tokens": 6}, "checkpoint": {"interval": 2}, "log": {"interval": 1} }
D
parameters_of() { tensors "$1" | sed -n "s|^parameters/$2||p"; }  # parameters_of RUN PREFIX, without the prefix
validated() { grep -o '"val_[^"]*":[^,}]*' "$1/metrics.jsonl"; }
run 1 train deck.json run.dir=one
expect "trains" 0 "x real time" "validation 'held': loss" "exact match" "(0 of 5)" "WER" "BLEU" "validation all: loss" \
  "val_bleu/seen=" "reference  " "answer     "
started "what there is of data" one "conversations, " "padding" "validation 'held'"
check "samples are answers" test "$(grep -c '^answer' one/samples/step_00000008.txt)" = 3
check "the loss falls" awk '{l[NR] = $2} END {exit !(l[NR] < l[1] - 0.3)}' <(losses one)
run 2 train deck.json run.dir=two
expect "on 2 ranks" 0 "summary:"
check "the same losses, bit by bit" same_losses one two
check "the same validation" same "validated one" "validated two"
run 2 train deck.json run.dir=killed parallel.zero=3 checkpoint.async=false fault.enable=true fault.kill_rank=1 fault.kill_step=7
expect_killed "killed, with sharded parameters"
run 2 train deck.json run.dir=killed parallel.pipeline=2
expect "continues on two stages" 0 "resumed from killed/checkpoints/step_00000006" "8 (2 now)"
check "the losses of straight through, bit by bit" same_losses one killed
check "every tensor, bit by bit" same_tensors one killed
check "the same validation" same "validated one" "validated killed"
# Saved by ranks that divide the encoder, continued by ranks that share the clips, and back.
shared() { run 2 train deck.json run.dir=shared train.reproducible=false parallel.tensor=2 train.max_steps="$1" "${@:2}"; }
shared 4
expect "divided among tensor ranks" 0 "summary:"
shared 6 parallel.encoder=clips parallel.sequence=true
expect "... then with clips shared" 0 "resumed from shared/checkpoints/step_00000004" "summary:"
shared 8
expect "... and divided again" 0 "resumed from shared/checkpoints/step_00000006" "summary:"
check "the losses of one rank" close_losses one shared 1e-12

result() { grep -o ' val_[a-z_/]*=[0-9.]*' stdout; }
run 1 eval one eval.answers=0
expect "eval of all" 0 "'held': loss" "all: loss" "reference  " "val_wer/seen="
result >alone
run 3 eval one eval.answers=0
result >three
check "... the same on 3 ranks" cmp alone three

espeak-ng -v en-us -w a.wav "three seven"
espeak-ng -v en-gb -w b.wav "nine"
run 1 generate one --audio a.wav,b.wav --prompt "Repeat: <|audio|> and <|audio|>" --tokens 5 --json
expect "an answer" 0 '{"prompt":"Repeat: <|audio|> and <|audio|>","audio":["a.wav","b.wav"],"answer":"'
cp stdout answer
run 2 generate one --tensor 2 --audio a.wav,b.wav --prompt "Repeat: <|audio|> and <|audio|>" --tokens 5 --json
check "... the same of two ranks" cmp stdout answer
run 2 eval one --tensor 2 eval.answers=0 parallel.encoder=clips
result >shared_clips
check "... and of two that share the clips" cmp alone shared_clips
run 2 generate killed --audio a.wav --tokens 5
expect "a clip alone" 0
# Two channels: the second is silence.
perl -e 'local $/; open my $in, "<:raw", "a.wav"; my $w = <$in>; my $d = substr($w, 44); my $s = join "", map { pack("s<2", $_, 0) } unpack("s<*", $d);
  print substr($w, 0, 4), pack("V", 36 + length $s), substr($w, 8, 14), pack("v", 2), substr($w, 24, 4), pack("V", 4 * unpack("V", substr($w, 24, 4))),
    pack("v", 4), substr($w, 34, 6), pack("V", length $s), $s' >stereo.wav
run 1 generate one --audio stereo.wav --prompt "Repeat:" --tokens 5
expect "two channels" 0 "stereo.wav: its channels are averaged; --channel N takes one"
run 1 generate one --audio stereo.wav --channel 0 --prompt "Repeat:" --tokens 5 --json
sed 's/stereo/a/' stdout >answer
check "... one of which is asked for" lacks out "averaged"
run 1 generate one --audio a.wav --prompt "Repeat:" --tokens 5 --json
check "... and answers as if it were alone" cmp stdout answer
run 1 generate one --audio stereo.wav --channel 2 --prompt "Repeat:"
expect "a channel that is not there" 3 "stereo.wav" "but channel 2 was requested"
run 1 generate one --prompt "Repeat:" --channel 0
expect "a channel of no file" 2 "--channel" "--audio"
run 1 generate one --audio a.wav,b.wav --prompt "Add <|audio|>"
expect "more clips than tags" 2 "1 tag" "2 files"
echo no sound >c.wav
run 2 generate one --audio c.wav --prompt "Repeat:"
expect "a file that is no audio" 3 "c.wav"
espeak-ng -w d.wav -s 80 "$(seq -s ' ' 1 40)"
run 1 generate one --audio d.wav
expect "a clip longer than the model" 2 "positions" "d.wav"
run 1 generate one --prompt "Repeat:" --tokens 5 --json
expect "text alone" 0 '{"prompt":"Repeat:","audio":[],"answer":"'
cp stdout answer
run 2 generate one --tensor 2 --prompt "Repeat:" --tokens 5 --json
check "... the same of two ranks" cmp stdout answer
run 1 generate one
expect "nothing at all" 2 "the prompt is empty" "--prompt"
run 1 generate one --prompt "Repeat <|audio|>"
expect "a tag without a file" 2 "1 tag" "0 files"
run 1 generate one --chat
expect "a conversation with a model that hears" 2 "--chat is for models of text" "--audio FILE"
# Turns without sound: rows of text beside rows with clips, and a folder of text alone.
sed -E 's/\{"from":"User","type":"audio"[^}]*\},?//' tasks/conversations/val.jsonl >typed.jsonl
check "turns of text" lacks typed.jsonl '"audio"'
run 1 prepare chat typed.jsonl --out typed --template chatml --system "be brief"
expect "conversations of text" 0 "0 clips"
for ranks in 1 2; do
  run $ranks train deck.json run.dir=typed_$ranks 'data.train=["typed", "train"]' 'data.validation={"typed": "typed"}' eval.answers=2
  expect "text beside sound on $ranks ranks" 0 "validation 'typed': loss" "summary:"
done
check "... the same losses" same_losses typed_1 typed_2
run 1 train deck.json run.dir=text_only 'data.train=["typed"]' 'data.validation={"typed": "typed"}' eval.answers=2
expect "text alone trains" 0 "validation 'typed': loss" "summary:"
check "... and its loss falls" awk '{l[NR] = $2} END {exit !(l[NR] < l[1] - 0.3)}' <(losses text_only)
run 1 generate text_only --prompt "Repeat:" --tokens 5
expect "... and answers" 0
run 1 train "$debug" run.dir=text 'data.train=["text.txt"]' train.max_steps=1
run 1 generate text --audio a.wav
expect "a model of text" 2 'model.type = "gpt", which has no audio input' "salm"
# A blend: by weight, of a part of a folder, with answers distinguished by tags.
inputs() { echo "data.input_cfg=[{\"folder\": \"train\", \"weight\": $1, \"tags\": {\"set\": \"a\"}}, {\"folder\": \"val\", \"weight\": 1, \"limit\": 2}]"; }
mixed() { run "$1" train deck.json run.dir=mixed data.train=[] "$(inputs "$2")" data.shard_seed=5 train.max_steps="$3" \
  'data.validation={"held": "[{\"folder\": \"val\", \"tags\": {\"set\": \"a\"}}, \"train\"] limit=9"}' "${@:4}"; }
mixed 2 3 4 eval.answers=0
expect "a blend of conversations" 0 "drawn so far: 'train' " "(of 75.0 %)" "by tag: set=a" "validation 'held', set=a: exact match"
check "... with metrics of the tag" matches mixed/metrics.jsonl '"val_wer/set=a":'
mixed 1 1 6
expect "other weights on resume" 2 "data.input_cfg" "blend 0.75 of " "+ 0.25 of 2 conversations" "blend 0.5 of "
run 1 train deck.json run.dir=x data.shard_seed=often
expect "an order of no seed" 2 "data.shard_seed" "\"randomized\""
run 1 train deck.json run.dir=x "data.train=[]"
expect "nothing to train on" 2 "data.train is not given"
run 2 train deck.json run.dir=x "data.train=[\"tasks\"]"
expect "a folder without conversations" 3 "tasks" "prepare chat"
run 1 train deck.json run.dir=x data.batch_tokens=20
expect "micro-batches too small for any conversation" 3 "longer than 20 rows"

# Towers of other runs: parameters of a recogniser have their names, those of a language model begin
# with "lm.".
cat >asr.json <<'D'
{ "model": { "type": "fastconformer", "n_layer": 1, "n_embd": 16, "n_head": 2, "subsampling": 8, "subsampling_channels": 8,
    "mels": 20, "freq_width": 6, "vocab_size": 9 },
  "data": {"format": "synthetic"}, "train": {"precision": "fp64", "micro_batches": 2, "max_steps": 2} }
D
symbols=$(grep -oE 'vocabulary [0-9]+' one/log.txt one/start.txt | head -n 1 | grep -oE '[0-9]+$')
cat >lm.json <<D
{ "model": { "type": "gpt", "n_layer": 1, "n_embd": 32, "n_head": 2, "block_size": 192, "position": "rope",
    "vocab_size": $symbols },
  "data": {"format": "synthetic"}, "train": {"precision": "fp64", "max_steps": 2} }
D
run 1 train asr.json run.dir=asr
expect "a recogniser" 0 "summary:"
run 2 train lm.json run.dir=lm parallel.tensor=2
expect "a language model" 0 "summary:"
starts='checkpoint.init_from={"encoder.*": "asr", "lm.*": "lm"}'
run 2 train deck.json run.dir=begun "$starts" 'train.freeze=["encoder.*", "lm.*"]' parallel.pipeline=2 \
  model.adapter.layers=1 model.adapter.stack=2
expect "begins with two runs" 0 "summary:"
check "the encoder is the recogniser's" cmp <(parameters_of asr encoder.) <(parameters_of begun encoder.)
check "the language model is the other run's" cmp <(parameters_of lm "") <(parameters_of begun lm.)
run 1 generate begun --audio a.wav --prompt "Repeat:" --tokens 5
expect "... and answers through an adapter" 0
check "... nothing is compared with nothing" test "$(parameters_of begun lm. | wc -l)" -gt 9
run 1 train "$debug" run.dir=letters 'data.train=["text.txt"]' train.max_steps=1 train.precision=fp64
run 1 train deck.json run.dir=x 'checkpoint.init_from={"lm.final_norm.*": "letters"}'
expect "a language model of other words" 2 "another vocabulary" "letters"

# The largest micro-batches that a limit of memory allows; a few more rows are too many.
run 0 tune deck.json --memory 24MiB --out tuned.json --probe
expect "tuned" 0 "data.batch_tokens = " "(was 1024)" " ran, " "FITS: " "written: tuned.json"
memory=$(awk 'BEGIN { print 24 / 1024 }')
tuned=$(sed -nE 's/^data.batch_tokens = ([0-9]+) .*/\1/p' stdout)
run 0 plan --all tuned.json --ranks 1 --memory "$memory"
expect "... as the plan has it" 0 "FITS: "
run 0 plan --all tuned.json --ranks 1 --memory "$memory" data.batch_tokens=$((tuned * 11 / 10))
expect "... a tenth more is too large" 0 "TOO LARGE"
run 0 tune deck.json --memory 1MiB --out none.json
expect "no room for any" 2 "too large for 1.0 MiB per rank"
run 2 bench step deck.json --steps 3 --warmup 0 --no-ceilings
expect "a bench of steps on these conversations" 0 " s of speech with " " targets a step"
run 2 bench gemm deck.json --seconds 0.001
expect "a bench of their products" 0 "encoder.blocks.*.attention.qkv d_weight" "lm.blocks.*.attention.qkv forward" \
  "in one call" "a micro-batch makes these calls in" "VALID: "
run 1 bench attention deck.json --seconds 0.001
expect "... of their attention" 0 " full " " causal " "VALID: "
run 1 bench ops deck.json --seconds 0.001
expect "... of their ops" 0 "rope " "strided_conv_forward" "VALID: "
for kind in attention ops; do
  run 2 bench $kind "$root/inputs/verify_codec.json"
  expect "... $kind of a model that has none" 2 'model.type = "codec"' "bench gemm"
done
