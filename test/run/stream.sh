#!/usr/bin/env bash
# choir transcribe --stream: the text of a stream in chunks is that of the whole recording, at any
# length; a recogniser that needs the whole is refused, and the settings that make it one are named.
. "$(dirname "$0")/lib/common.sh"
# shellcheck source=lib/digits.sh
. "$root/test/run/lib/digits.sh"

digits_recogniser "a recogniser of streams" \
  '"n_layer": 2, "causal": true, "context_style": "chunked", "left_context": 20, "right_context": 9, "normalise": false'

# One recording at the rate of the model, shorter than a chunk and of several minutes, and one with
# another rate.
sources=$(sed -nE 's/.*"audio_filepath": ?"([^"]*)".*/\1/p' digits/val.json | head -n 3)
names=""
n=0
for source in $sources; do
  n=$((n + 1))
  case $source in /*) ;; *) source=digits/$source ;; esac
  cp "$source" "$n.wav"
  names="$names $n.wav"
done
espeak-ng -v en-us -w other.wav "three seven one"
# 44 bytes of header, then the samples of 1.wav again and again.
{
  head -c 44 1.wav
  for _ in 1 2 3; do tail -c +45 1.wav; tail -c +45 2.wav; done
} >long.wav
bytes=$(($(file_bytes long.wav) - 44))
le32() { printf "\\x$(printf %02x $(($1 & 255)))\\x$(printf %02x $(($1 >> 8 & 255)))\\x$(printf %02x $(($1 >> 16 & 255)))\\x$(printf %02x $(($1 >> 24)))"; }
le32 $((bytes + 36)) | dd of=long.wav bs=1 seek=4 conv=notrunc status=none
le32 "$bytes" | dd of=long.wav bs=1 seek=40 conv=notrunc status=none

texts() { grep -aE '^[a-z0-9]+\.wav: ' stdout | sort; }
# shellcheck disable=SC2086
run 0 transcribe run $names long.wav other.wav
expect "the whole" 0 "transcribed 5 recordings" "the result is exact"
texts >whole
check "... something was heard" matches whole '^long.wav: .{40}'
# shellcheck disable=SC2086
run 0 transcribe run $names long.wav other.wav --stream
expect "chunk by chunk" 0 "chunks of 400 ms with 800 ms of left context; algorithmic latency at most 376 ms" \
  " chunks, median " "at most" "real-time factor"
check "... is the whole" eval 'texts | diff whole -'
check "... and shows no parts in a file" eval '[ "$(grep -c "wav" stdout)" -eq 5 ]'
head -c 40000 other.wav >cut.wav
run 0 transcribe run cut.wav --stream
expect "a recording that was cut off" 0 "cut.wav: ends after 19978 of the " "samples that its header promises"
# shellcheck disable=SC2086
run 2 transcribe run $names long.wav other.wav --stream
check "on two ranks" eval 'texts | diff whole -'
run 2 transcribe run long.wav --stream --tensor 2
check "on two ranks that share each layer" eval 'texts | diff <(grep "^long" whole) -'
# Beams are pruned by comparison: in fp32 the last bit of a probability may decide.
run 0 transcribe run 1.wav long.wav --beam 4 --precision fp64
texts >beam
run 0 transcribe run 1.wav long.wav --beam 4 --precision fp64 --stream
check "by beam search" eval 'texts | diff beam -'
run 0 transcribe run 1.wav --stream --partial
expect "a line a chunk" 0 "1.wav 0.40 s: " "1.wav: "
run 0 transcribe run 1.wav --stream --json
expect "as JSON" 0 '"chunk_ms":[' '"words":'
run 0 transcribe run --manifest digits/val.json --out a.json
run 0 transcribe run --manifest digits/val.json --out b.json --stream
expect "a manifest" 0 "WER" "stream: "
check "... with the same lines" cmp a.json b.json

# Impossible requests are refused.
run 2 transcribe run missing.wav 1.wav --stream
expect "a file that is not there" 3 "missing.wav"
run 0 transcribe run missing.wav 1.wav --stream --on-bad skip
expect "... may be left out" 0 "missing.wav: left out" "transcribed 1 recording,"
run 0 transcribe run 1.wav --stream --window 5
expect "windows of a stream" 2 "--window" "--stream"
run 0 transcribe run 1.wav --stream --batch 2
expect "batches of a stream" 2 "--batch" "--stream"
run 0 transcribe run 1.wav --partial
expect "parts of no stream" 2 "--partial" "--stream"
run 0 transcribe run 1.wav --stream --memory 0.000001
expect "too little memory" 2 "out of memory: a stream needs"
whole_model() { run 1 train digits.json run.dir=offline train.max_steps=1 checkpoint.interval=1 checkpoint.resume=none "$@"; }
whole_model model.causal=false model.context_style=regular model.left_context=-1 model.right_context=-1 \
  model.normalise=true model.conv_norm=batchnorm
expect "a recogniser of whole recordings" 0
for ranks in 1 2; do
  run "$ranks" transcribe offline 1.wav --stream
  expect "... is refused, $ranks rank(s)" 2 "can only transcribe whole recordings" "model.causal = false" \
    'model.context_style = "regular"' "model.left_context = -1" "model.normalise = true" \
    'model.conv_norm = "batchnorm"' "inputs/asr_streaming.json"
done
