#!/usr/bin/env bash
# choir transcribe: a recogniser trained for a few seconds on spoken digits reads recordings. The text of a recording
# depends on nothing but itself: not on order, batch, ranks or where it comes from.
. "$(dirname "$0")/lib/common.sh"
if ! grep -q HAVE_SNDFILE "$build/choir_features.hpp"; then
  pass "transcribe: this build has no libsndfile"
  exit
fi

run 1 prepare corpus spoken-digits --out digits --hours 0.03
for part in train val; do run 1 prepare audio "digits/$part.json" --out "$part"; done
run 1 prepare tokenizer train --out char --type char
run 1 prepare tokens train val --tokenizer char.json --name char
cat >digits.json <<'END'
{
  "model": {
    "type": "fastconformer", "n_layer": 1, "n_embd": 64, "n_head": 2, "subsampling": 4, "subsampling_channels": 16,
    "mels": 40, "dropout": 0, "freq_masks": 0, "time_masks": 0
  },
  "data": { "train": ["train"], "val": ["val"], "batch_duration": 12, "buckets": 4, "window": 64 },
  "train": { "micro_batches": 1, "max_steps": 150 },
  "optimizer": { "learning_rate": 5e-3, "warmup_steps": 10, "beta2": 0.98 },
  "eval": { "interval": 0 }, "checkpoint": { "interval": 0 }, "log": { "interval": 50 }
}
END
run 1 train digits.json run.dir=run checkpoint.interval=150
expect "a recogniser" 0 "step=150" "checkpoint"

# Recordings of other rates: espeak-ng speaks at 22,050 Hz.
espeak-ng -v en-us -w a.wav "three seven one"
espeak-ng -v en-gb -w b.wav "nine"
espeak-ng -v en-us+f3 -w c.wav "four zero two eight five six"
texts() { grep -aE '^[a-z]+\.wav: ' stdout | sort; }
run 0 transcribe run a.wav b.wav c.wav
expect "three files" 0 "a.wav: " "c.wav: " "transcribed 3 recordings" "real-time factor"
texts >one
check "... something was heard" eval 'grep -qE "^c.wav: [a-z]" one'
run 0 transcribe run c.wav a.wav b.wav --batch 1
check "another order, one at a time" eval 'texts | diff one -'
check "... in the order asked for" eval 'grep -aoE "^[abc]\.wav" stdout | tr "\n" " " | grep -q "c.wav a.wav b.wav"'
run 2 transcribe run b.wav c.wav a.wav
check "on two ranks" eval 'texts | diff one -'
run 2 transcribe run b.wav c.wav a.wav --tensor 2
check "on two ranks that share each layer" eval 'texts | diff one -'
run 0 transcribe run a.wav --json
expect "as JSON" 0 '"text":' '"words":' '"start":' '"duration":'
run 0 transcribe run a.wav b.wav --beam 8
expect "by beam search" 0 "transcribed 2 recordings"
run 0 transcribe run c.wav --window 1
expect "in windows" 0 "long recordings in windows of" "no frame sees beyond its window"

run 0 transcribe run --manifest digits/val.json --out out.json
expect "a manifest" 0 "WER" "CER" "insertions" "transcribed"
check "... a line for each" eval '[ "$(wc -l <out.json)" -eq "$(wc -l <digits/val.json)" ]'
check "... with what it said, and more" eval '[ "$(grep -c "\"pred_text\"" out.json)" -eq "$(grep -c "\"audio_filepath\"" out.json)" ]'
cp out.json out1.json
run 2 transcribe run --manifest digits/val.json --out out.json
check "... the same on two ranks" cmp out1.json out.json

# What is wrong is named.
run 2 transcribe run missing.wav a.wav
expect "a file that is not there" 3 "missing.wav"
run 0 transcribe run missing.wav a.wav --on-bad skip
expect "... may be left out" 0 "missing.wav: left out" "transcribed 1 recordings" "1 left out"
: >empty.wav
run 0 transcribe run empty.wav
expect "an empty file" 3 "empty.wav"
head -c 100 a.wav >short.wav
run 0 transcribe run short.wav a.wav --on-bad skip
expect "a few samples" 0 "short.wav"
run 0 transcribe nowhere a.wav
expect "no checkpoint" 6 "nowhere"
run 0 transcribe run
expect "nothing to read" 2
run 0 transcribe run a.wav --beam 0
expect "a beam of nothing" 2 "--beam"
run 1 train "$root/inputs/verify_gpt.json" run.dir=gpt train.precision=fp32 train.max_steps=1 checkpoint.interval=1
expect "a checkpoint of a text model" 0
run 0 transcribe gpt a.wav
expect "a model of text" 2 "which hears nothing"
run 0 transcribe run a.wav --memory 0.000001
expect "too little memory" 2 "out of memory" "--memory"
