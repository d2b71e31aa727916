#!/usr/bin/env bash
# A small codec, trained for a few steps, speaks: recordings and codes become sound, as a whole and
# as a stream; prepared codes are the same for any number of ranks, and a file is never half
# written.
. "$(dirname "$0")/lib/common.sh"

mkdir corpus
for i in 1 2 3; do
  espeak-ng -v en-us -w "corpus/$i.wav" "seven three nine $i"
  seconds=$(wc -c <"corpus/$i.wav" | awk '{printf "%.4f", ($1 - 44) / 44100}')
  echo "{\"audio_filepath\":\"$i.wav\",\"duration\":$seconds,\"text\":\"seven three nine\"}" >>corpus/all.json
done
run 1 prepare audio corpus/all.json --out packed
expect "packed" 0
run 1 prepare tokenizer packed --type char --out chars
run 1 prepare tokens packed --tokenizer chars.json --name char
expect "labels" 0
cat >deck.json <<'D'
{ "model": {"type": "codec", "codebooks": 2, "levels": "5,5", "encoder_width": 32, "decoder_width": 48},
  "data": {"train": ["packed"], "val": ["packed"], "labels": "char", "batch_duration": 8, "buckets": 1},
  "train": {"precision": "fp32", "micro_batches": 1, "max_steps": 30},
  "optimizer": {"learning_rate": 0.004, "warmup_steps": 2}, "log": {"interval": 10}, "checkpoint": {"interval": 30} }
D
run 1 train deck.json run.dir=codec
expect "a codec" 0 "summary:"

run 1 speak codec corpus/1.wav --out out.wav
expect "a recording" 0 "corpus/1.wav -> out.wav" "L1 " "STOI 0." "x real time"
same_size() { [ "$(od -An -tu4 -j40 -N4 "$1" | tr -d ' ')" -gt 40000 ]; }
check "... is sound" same_size out.wav
run 2 speak codec corpus/1.wav corpus/2.wav corpus/3.wav --out said --json
expect "three, to a folder" 0 '"from":"corpus/1.wav","to":"said/1.wav"' '"stoi":0.' '"l1_db":'
check "... the same sound" cmp out.wav said/1.wav
run 1 speak codec corpus/1.wav --out stream.wav --stream
expect "a stream" 0 "ms a frame" "heard after"
run 1 speak codec corpus/1.wav --out corpus/1.wav
expect "over itself" 2 "would overwrite its input"
run 1 speak codec corpus/1.wav --out x.flac
expect "in another format" 2 "sound is written as WAV only" "-> --out x.wav"
run 1 speak codec corpus/1.wav corpus/2.wav --out x.wav
expect "two recordings in one file" 2 "there are 2 recordings" "-> name a folder: --out x"
run 1 speak codec no.wav --out x.wav
expect "no recording" 3 "no.wav"
echo nothing >corpus/text.wav
run 2 speak codec corpus/1.wav no.wav corpus/text.wav --out some
expect "two of three cannot be read" 3 "2 of 3 recordings are bad:" "no.wav: missing file: " "corpus/text.wav: unreadable: " \
  "--on-bad skip leaves such recordings out"
check "... and nothing is written" absent some/1.wav
run 2 speak codec corpus/1.wav no.wav corpus/text.wav --out some --on-bad skip
expect "... and are left out" 0 "no.wav: left out: missing file: " "corpus/text.wav: left out: unreadable: " "1 recording," "; 2 skipped"
check "... the first is spoken" cmp out.wav some/1.wav
run 1 speak codec --out x.wav
expect "nothing to say" 2 "give either sound files or --codes"

# A codec whose decoder makes sound.
run 1 train deck.json run.dir=sounding model.head=istft
expect "a codec that makes sound" 0 "summary:" "mel_loss=" "stft_loss=" "convergence_loss="
run 1 speak sounding corpus/1.wav --out sounding.wav --json
expect "... speaks" 0 '"l1_db":' '"stoi":0.'
l1() { sed -E 's/.*"'"$1"'":([0-9.]+).*/\1/' stdout; }
check "... L1 is that of its sound" eval '[ "$(l1 l1_db)" = "$(l1 sound_l1_db)" ]'
run 1 speak sounding corpus/1.wav --out sounding_stream.wav --stream
expect "... frame by frame" 0 "heard after 14 ms"
check "... the same sound" cmp sounding.wav sounding_stream.wav

printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' "{'descr': '<i4', 'fortran_order': False, 'shape': (3, 2), }" >codes.npy
printf '\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00\x04\x00\x00\x00\x05\x00\x00\x00\x18\x00\x00\x00' >>codes.npy
run 1 speak codec --codes codes.npy --out codes.wav
expect "codes" 0 "codes.npy -> codes.wav: 0.24 s, 3 frames"
sed 's/\x18\x00\x00\x00$/\x19\x00\x00\x00/' codes.npy >wrong.npy
run 1 speak codec --codes wrong.npy --out x.wav
expect "codes of another codec" 3 "25 in frame 2" "0 to 24"

run 1 speak codec corpus/1.wav --out direct.wav --save-codes saved.npy --json
expect "codes are saved" 0 '"codes":"saved.npy"'
check "... in 16 bits" has saved.npy "'descr': '<u2'"
run 1 speak codec --codes saved.npy --out again.wav
expect "... and spoken" 0 "saved.npy -> again.wav"
# Only the end differs: a recording need not end with a frame.
check "... the same sound" eval 'cmp -n $(($(wc -c <direct.wav) - 44)) -i 44 direct.wav again.wav'
run 2 speak codec corpus/1.wav corpus/2.wav --out said --save-codes saved
expect "... of several recordings" 0 "in saved/1.npy" "in saved/2.npy"
check "... the same codes" cmp saved.npy saved/1.npy
run 1 speak codec --codes saved.npy --out x.wav --save-codes y.npy
expect "codes of codes" 2 "--codes has them"

run 1 prepare codes codec packed
expect "codes of packed speech" 0 "packed/codes.codec.bin, 3 recordings" "2 x 25 codes"
cp packed/codes.codec.bin one.bin
run 1 prepare codes codec packed
expect "... which stay" 0 "already written, by the same codec"
rm packed/codes.codec.bin
run 2 prepare codes codec packed
check "... and are the same of 2 ranks" cmp packed/codes.codec.bin one.bin
truncate -s -2 packed/codes.codec.bin
run 2 prepare codes codec packed
check "a file that was cut is written again" cmp packed/codes.codec.bin one.bin
check "nothing is left over" test ! -e packed/codes.codec.bin.tmp
run 1 train "$debug" run.dir=text 'data.train=["text.txt"]' train.max_steps=1
run 1 prepare codes text packed
expect "a model that is no codec" 2 "codec"
run 2 prepare codes codec corpus
expect "no packed speech" 3 "prepare audio"
