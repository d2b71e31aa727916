#!/usr/bin/env bash
# choir prepare audio: every form of manifest, the same bytes from any number of ranks, a killed run
# that continues, and every error of speech by name. FLAC, OGG and resampling:
# test/unit/data/audio/audio_decoder_test.cpp.
. "$(dirname "$0")/lib/common.sh"

le() {  # le BYTES NUMBER: little-endian
  local i value=$2 text=
  for ((i = 0; i < $1; i++)); do
    text+=$(printf '\\x%02x' $((value & 255)))
    value=$((value >> 8))
  done
  printf '%b' "$text"
}
# wav FILE RATE CHANNELS SAMPLES SEED: 16 bits; the bytes of a text are the sound.
for ((i = 0; i < 20; i++)); do cat text.txt; done >noise
wav() {
  local bytes=$(($3 * $4 * 2))
  {
    printf 'RIFF'; le 4 $((36 + bytes)); printf 'WAVEfmt '; le 4 16; le 2 1; le 2 "$3"; le 4 "$2"
    le 4 $(($2 * $3 * 2)); le 2 $(($3 * 2)); le 2 16; printf 'data'; le 4 "$bytes"
    tail -c +$((1 + 2 * $5)) noise | head -c "$bytes"
  } >"$1"
}
sound() { tail -c +45 "$1" | head -c "${2:-1000000000}"; }  # the samples of a WAV
packed() {  # packed FOLDER FIRST SAMPLES: the contents of its first shard
  tail -c +$((65 + 2 * $2)) "$1/audio_00000.pcm" | head -c $((2 * $3))
}
is() { [ "$(cat)" = "$1" ]; }
bytes_of() { (cd "$1" && find . -type f | sort | xargs md5sum); }
equal_folders() { diff <(bytes_of "$1") <(bytes_of "$2") && [ -n "$(bytes_of "$1")" ]; }
prepare() {  # prepare RANKS ARGUMENTS...
  local ranks=$1
  shift
  run "$ranks" prepare audio "$@"
}

# A manifest of NeMo's: whole files, segments, another rate, a line left out, other keys.
mkdir -p corpus/wav
for i in 0 1 2 3 4 5 6 7; do wav corpus/wav/$i.wav 16000 1 $((8000 + 480 * i)) $((100 * i)); done
wav corpus/wav/long.wav 16000 1 64000 7
wav corpus/wav/slow.wav 8000 1 8000 3
wav corpus/wav/stereo.wav 16000 2 16000 9
{
  for i in 0 1 2 3 4 5 6 7; do
    printf '{"audio_filepath":"wav/%d.wav","duration":%s,"text":"number %d","lang":"en","speaker":{"n":%d}}\n' \
      $i "$(awk -v i=$i 'BEGIN {print (8000 + 480 * i) / 16000}')" $i $i
  done
  echo '{"audio_filepath":"wav/long.wav","offset":2.0,"duration":1.5,"text":"second part"}'
  echo '{"audio_filepath":"wav/long.wav","offset":0.25,"duration":1.0,"text":"gr\u00fc\u00df Gott"}'
  echo '{"audio_filepath":"wav/0.wav","duration":0.5,"text":"not this","_skipme":true}'
  echo ''
  echo '{"audio_filepath":"'"$work"'/corpus/wav/slow.wav","duration":1.0,"sampling_rate":8000}'
} >corpus/manifest.json

prepare 0 corpus/manifest.json --out packed
expect "a manifest of NeMo's" 0 "11 utterances" "to 1 shard" "left out    1 utterance," "1 _skipme" \
  "resampled   1 utterance" "no text     1 utterance" "times real time" "written to  packed"
check "the samples of a WAV pass as they are" diff <(sound corpus/wav/0.wav) <(packed packed 0 8000)
# 8000, 8480, 8960, ... samples are multiples of 32: no gaps. The segments follow the 8 files.
first=$((8 * 8000 + 480 * 28))
check "a segment begins at its offset" \
  diff <(sound corpus/wav/long.wav | tail -c +64001 | head -c 48000) <(packed packed $first 24000)
check "... and one before it in the recording" \
  diff <(sound corpus/wav/long.wav | tail -c +8001 | head -c 32000) <(packed packed $((first + 24000)) 16000)
check "the line keeps what its source said" has packed/manifest.jsonl \
  '{"id":"wav/3.wav","text":"number 3","duration":0.59,"lang":"en","audio_filepath":"wav/3.wav","speaker":{"n":3}}'
check "UTF-8 stays" has packed/manifest.jsonl 'grüß Gott'
check "an order as the manifest's" is "wav/7.wav wav/long.wav@2 wav/long.wav@0.25 $work/corpus/wav/slow.wav " \
  < <(tail -n 4 packed/manifest.jsonl | sed -E 's/.*"id":"([^"]*)".*/\1/' | tr '\n' ' ')
check "the report names what was left out" has packed/report.json "corpus/manifest.json:11"
check "nothing else remains" is "audio_00000.pcm index.bin manifest.jsonl report.json " < <(ls packed | tr '\n' ' ')
prepare 2 corpus/manifest.json --out packed
expect "a second time there is nothing to do" 0 "already prepared"
prepare 0 corpus/manifest.json --out packed --sample-rate 8000
expect "another rate into the same folder" 3 "holds packed speech of other manifests or options" "name another --out"

# Many shards: any number of ranks writes the same.
for ranks in 0 2 3; do
  prepare $ranks corpus/manifest.json --out ranks_$ranks --shard-minutes 0.03
  expect "shards on $ranks ranks" 0 "4 shards at"
done
for ranks in 2 3; do check "... the same bytes on $ranks" equal_folders ranks_0 ranks_$ranks; done
check "... the manifest is that of one shard" diff packed/manifest.jsonl ranks_0/manifest.jsonl

# Tarred, by pattern and by shard_id.
mkdir tarred
(cd corpus/wav && tar cf ../../tarred/audio_0.tar 0.wav 1.wav && tar cf ../../tarred/audio_1.tar ./3.wav ./2.wav)
line() { printf '{"audio_filepath":"%s","duration":%s,"text":"number %d","shard_id":%d}\n' "$@"; }
{ line 0.wav 0.5 0 0; line 1.wav 0.53 1 0; } >tarred/manifest_0.json
{ line 2.wav 0.56 2 1; line 3.wav 0.59 3 1; } >tarred/manifest_1.json
cat tarred/manifest_?.json >tarred/tarred_audio_manifest.json
prepare 2 'tarred/manifest__OP_0..1_CL_.json' --out tar_a
expect "tarred, a manifest for each tar" 0 "4 utterances" "left out    0"
prepare 1 tarred/tarred_audio_manifest.json --tars 'tarred/audio_{0..1}.tar' --out tar_b
expect "tarred, one manifest" 0 "4 utterances" "left out    0"
prepare 0 tarred/tarred_audio_manifest.json --out tar_c
expect "... and its tars found beside it" 0 "4 utterances"
check "members in another order than the manifest" diff <(head -c $((2 * 34880)) noise | wc -c) <(packed tar_a 0 34880 | wc -c)
for i in 0 1 2 3; do sound corpus/wav/$i.wav; done >four
check "the samples are the members'" diff four <(packed tar_a 0 34880)
check "... all the same" diff <(md5sum <tar_a/audio_00000.pcm) <(md5sum <tar_b/audio_00000.pcm)
check "... all three" diff tar_c/index.bin tar_b/index.bin

# Lhotse: cuts, joined or trimmed, and Shar.
mkdir -p lhotse/wav lhotse/shar
cp corpus/wav/long.wav corpus/wav/stereo.wav lhotse/wav
recording() {  # recording ID FILE CHANNELS SAMPLES
  printf '{"id":"%s","sources":[{"type":"file","channels":%s,"source":"wav/%s"}],"sampling_rate":16000,"num_samples":%d,"duration":%s,"channel_ids":%s}' \
    "$1" "$3" "$2" "$4" "$(awk -v n="$4" 'BEGIN {print n / 16000}')" "$3"
}
cut() {  # cut ID START DURATION CHANNEL RECORDING
  printf '{"id":"%s","start":%s,"duration":%s,"channel":%s,"supervisions":[{"id":"s1","recording_id":"r","start":1.0,"duration":0.5,"channel":0,"text":"two","language":"en","speaker":"b"},{"id":"s0","recording_id":"r","start":0.25,"duration":0.5,"channel":0,"text":"one","language":"en","speaker":"a"}],"recording":%s,"custom":{"mood":"calm"},"type":"MonoCut"}\n' "$@"
}
{ cut a 0.5 2.0 0 "$(recording r long.wav '[0]' 64000)"; cut b 0 1.0e0 1 "$(recording t stereo.wav '[0,1]' 16000)"; } \
  >lhotse/cuts.jsonl
sed 's/"start":1.0,"duration":0.5/"start":0.8,"duration":0.1/' lhotse/cuts.jsonl | gzip >lhotse/cuts.jsonl.gz
prepare 0 lhotse/cuts.jsonl --out joined
expect "cuts of Lhotse's" 0 "2 utterances" "left out    0"
check "supervisions joined in order" has joined/manifest.jsonl '{"id":"a","text":"one two","duration":2.0,"lang":"en"'
check "... other keys stay" has joined/manifest.jsonl '"custom":{"mood":"calm"}'
check "a cut is its part of the recording" \
  diff <(sound lhotse/wav/long.wav | tail -c +16001 | head -c 64000) <(packed joined 0 32000)
check "a cut has its channel" diff <(sound lhotse/wav/stereo.wav | od -An -v -w4 -tx2 | awk '{print $2}') \
  <(packed joined 32000 16000 | od -An -v -w2 -tx2 | awk '{print $1}')
prepare 2 lhotse/cuts.jsonl.gz --trim-to-supervisions --out trimmed
expect "trimmed to supervisions, from gzip" 0 "4 utterances"
check "... each with its text" is "a-0 one 0.5 a-1 two 0.1 b-0 one 0.5 b-1 two 0.1 " \
  < <(sed -E 's/.*"id":"([^"]*)","text":"([^"]*)","duration":([0-9.]*).*/\1 \2 \3/' trimmed/manifest.jsonl | sort | tr '\n' ' ')
check "... and its samples" diff <(sound lhotse/wav/long.wav | tail -c +24001 | head -c 16000) <(packed trimmed 0 8000)

shar_cut() {
  printf '{"id":"%s","start":0,"duration":%s,"channel":0,"supervisions":[{"id":"x","recording_id":"x","start":0,"duration":0.5,"channel":0,"text":"%s"}],"recording":{"id":"x","sources":[{"type":"shar","channels":[0],"source":""}],"sampling_rate":16000,"num_samples":1,"duration":0.5,"channel_ids":[0]},"type":"MonoCut"}\n' "$@"
}
mkdir members
for i in 0 1 2; do cp corpus/wav/$i.wav members/cut.$i.wav; echo '{}' >members/cut.$i.json; done
{ shar_cut cut.0 0.5 zero; shar_cut cut.1 0.53 one; } | gzip >lhotse/shar/cuts.000000.jsonl.gz
shar_cut cut.2 0.56 two | gzip >lhotse/shar/cuts.000001.jsonl.gz
tar cf lhotse/shar/recording.000000.tar -C members cut.0.wav cut.0.json cut.1.wav cut.1.json
tar cf lhotse/shar/recording.000001.tar -C members cut.2.wav cut.2.json
prepare 2 lhotse/shar --out shar
expect "a folder of Shar" 0 "3 utterances" "left out    0"
check "... the samples are the members'" diff <(head -c $((2 * 25440)) four) <(packed shar 0 25440)
: >members/cut.1.nodata; : >members/cut.1.nometa
tar cf lhotse/shar/recording.000000.tar -C members cut.0.wav cut.0.json cut.1.nodata cut.1.nometa
prepare 1 lhotse/shar --out never
expect "a cut without audio" 3 "cuts.000000.jsonl.gz:2" "the cut has no audio"
prepare 1 lhotse/shar --out nodata --on-bad skip --bad-cap 0.5
expect "... left out" 0 "2 utterances" "1 missing from its archive"
rm lhotse/shar/recording.000001.tar
prepare 1 lhotse/shar --out never
expect "a Shar without its tar" 3 "recording.000001.tar" "does not exist"

# Killed, and continued: shards that were finished stay.
for ((i = 0; i < 400; i++)); do
  printf '{"audio_filepath":"wav/%d.wav","duration":%s,"text":"n %d"}\n' $((i % 8)) \
    "$(awk -v i=$((i % 8)) 'BEGIN {print (8000 + 480 * i) / 16000}')" $i
done >corpus/many.json
prepare 2 corpus/many.json --out whole --shard-minutes 0.02
expect "many shards" 0 "400 utterances"
start 2 prepare audio corpus/many.json --out broken --shard-minutes 0.02
until ls broken/audio_0000[4-9].part >/dev/null 2>&1 || ! kill -0 "$pid" 2>/dev/null; do sleep 0.002; done
stop_hard "$pid"
sleep 0.5
check "a killed run left shards" test "$(find broken -name '*.part' | wc -l)" -ge 4
check "... and nothing that opens" absent broken/index.bin
stamp=$(stat -c %Y.%y broken/audio_00001.pcm)
run 0 prepare audio corpus/many.json --out broken --shard-minutes 0.02
expect "the same command continues" 0 "was begun by an earlier run" "400 utterances"
check "... with the bytes of a run that was not killed" equal_folders whole broken
check "... and keeps what was finished" test "$stamp" = "$(stat -c %Y.%y broken/audio_00001.pcm)"

# Unusable input. bad NAME LINE WORDS...: the second line of a manifest; stop names it, skip leaves
# it out.
bad() {
  local name=$1 line=$2
  shift 2
  { head -n 1 corpus/manifest.json; printf '%b\n' "$line"; head -n 3 corpus/manifest.json | tail -n 1; } >corpus/bad.json
  rm -rf bad
  prepare "${bad_ranks:-0}" corpus/bad.json --out bad
  expect "$name" 3 "corpus/bad.json:2" "--on-bad skip" "$@" || return
  check "... nothing that opens" absent bad/index.bin
  prepare 1 corpus/bad.json --out bad --on-bad skip --bad-cap 0.4
  expect "... skipped" 0 "2 utterances" "left out    1" "corpus/bad.json:2" "$1"
  check "... and listed" has bad/report.json "corpus/bad.json:2"
}
entry() { printf '{"audio_filepath":"%s","duration":%s,"text":"x"%s}' "$1" "$2" "${3:-}"; }
: >corpus/wav/empty.wav
wav corpus/wav/none.wav 16000 1 0 0
head -c 1000 text.txt >corpus/wav/text.wav
{ head -c 20 corpus/wav/0.wav; le 2 3; le 2 1; le 4 16000; le 4 64000; le 2 4; le 2 32; printf 'data'; le 4 8
  printf '\x00\x00\x00\x3f\x00\x00\xc0\x7f'; } >corpus/wav/nan.wav
bad_ranks=2 bad "a line that is not JSON" '{"audio_filepath": "wav/0.wav", ' "not JSON"
bad "a line to use up the stack" "{\"audio_filepath\":\"wav/0.wav\",\"duration\":0.5,\"x\":$(printf '[%.0s' {1..65})$(printf ']%.0s' {1..65})}" \
  "bad line" "nested deeper than 64 levels"
bad "a line that is no object" '[1, 2]' "bad line" "not a JSON object"
bad "a line of another kind" '{"prompt": "x"}' "bad line" "neither a line of NeMo"
bad "another name of the audio" '{"audio_path": "wav/0.wav"}' "bad line" 'its recording is in "audio_path", which NeMo calls "audio_filepath"'
bad "a recording of Lhotse" '{"id": "a", "sources": [], "sampling_rate": 16000}' "bad line" "it is a Recording of Lhotse" "lhotse cut simple"
bad "a text that is not UTF-8" '{"audio_filepath":"wav/0.wav","duration":0.5,"text":"\xff\xfe"}' "not UTF-8"
bad "a line without duration" '{"audio_filepath":"wav/0.wav","text":"x"}' "bad line" 'no "duration"'
bad "a duration that is a word" "$(entry wav/0.wav '"long"')" "bad line" '"duration" is not a number'
bad "a duration of zero" "$(entry wav/0.wav 0)" "zero length"
bad "a negative offset" "$(entry wav/0.wav 0.5 ',"offset":-1')" "bad line" "an offset of -1 seconds"
bad_ranks=2 bad "a missing file" "$(entry wav/gone.wav 1)" "missing file" "corpus/wav/gone.wav': No such file"
bad "an empty file" "$(entry wav/empty.wav 1)" "empty file" "empty.wav' is empty"
bad "a file that is no audio" "$(entry wav/text.wav 1)" "unreadable" "cannot be read as audio"
bad "a folder" "$(entry wav 1)" "unreadable" "is not a file"
bad "audio without samples" "$(entry wav/none.wav 1)" "zero length" "holds no samples"
bad "NaN" "$(entry wav/nan.wav 0.000125)" "NaN or infinite samples" "sample 1 is nan"
bad "audio that ends too early" "$(entry wav/0.wav 1.0 ',"offset":0.25')" "ends too early" "lasts 0.500 s"
bad "an offset beyond the end" "$(entry wav/0.wav 0.05 ',"offset":0.5')" "ends too early"
bad "a wrong duration" "$(entry wav/0.wav 0.8)" "wrong duration" "lasts 0.500 s, its manifest says 0.800" \
  "\`choir prepare manifest IN --out OUT\` corrects"
entry wav/0.wav 0.8 >corpus/long.json
run 0 prepare manifest corpus/long.json --out corpus/corrected.json
expect "... which is corrected" 0 "1 corrected" "lasts 0.50 s, its line said 0.80"
prepare 1 corpus/corrected.json --out corrected
expect "... and then packed" 0 "speech      1 utterance,"
entry wav/0.wav 0.25 >corpus/limited.json
prepare 1 corpus/limited.json --out limited
expect "a duration that is shorter limits its file" 0 "speech      1 utterance,"
check "... to its beginning" has limited/manifest.jsonl '"duration":0.25'

# A folder is that of its recordings: one that was changed under the same manifest is noticed.
cp -r corpus/wav again && cp again/0.wav again/first.wav
sed 's|"wav/|"again/|' <(entry wav/first.wav 0.5) >changed.json
prepare 1 changed.json --out changed
expect "a recording" 0 "speech      1 utterance,"
prepare 1 changed.json --out changed
expect "... is packed once" 0 "already prepared"
head -c -2 again/0.wav >again/first.wav
prepare 1 changed.json --out changed
expect "... a change of it is noticed" 3 "recordings have changed since 'changed' was packed" "again/first.wav" "remove the folder"
rm again/first.wav
prepare 1 changed.json --out changed
expect "... and the folder serves without its recordings" 0 "already prepared"
bad "a wrong rate" "$(entry wav/0.wav 0.5 ',"sampling_rate":8000')" "wrong sample rate" "has 16000 hertz"
entry wav/stereo.wav 1 >corpus/stereo.json
run 1 train --check "$root/inputs/asr_tutorial.json" 'data.train=["corpus/stereo.json"]' 'data.validation={}' data.labels=char run.dir=never
expect "channels in a manifest that a deck names" 3 "has 2 channels" "data.channel=average"
bad "channels and none chosen" "$(entry wav/stereo.wav 1)" "no channel chosen" "has 2 channels and none was chosen" "--channel average"
bad "a source that is a command" "$(entry 'pipe:touch ran |' 1)" "refused kind" "is a command"
bad "a source that is a url" "$(entry https://example.org/a.wav 1)" "refused kind" "is a URL"
for kind in MultiCut MixedCut PaddingCut; do
  bad "$kind" '{"id":"c","start":0,"duration":1,"type":"'$kind'","supervisions":[]}' "refused kind" "it is a $kind"
done
for kind in command url memory; do
  bad "a recording from a $kind" "$(cut c 0 1 0 "$(recording r long.wav '[0]' 64000)" |
    sed 's/"type":"file"/"type":"'$kind'"/; s/wav\/long.wav/touch ran/')" "refused kind" "source of type '$kind'"
done
check "no command was run" absent corpus/ran
bad "a cut without recording" '{"id":"c","start":0,"duration":1,"type":"MonoCut","supervisions":[]}' 'no "recording"'
prepare 2 corpus/wav/../bad.json --out never --on-bad skip
expect "more than the cap" 3 "1 of 3 utterances are bad, more than the 1 % that --bad-cap allows"

mkdir renamed && cp tarred/audio_?.tar renamed/
for i in 0 1; do sed 's#"audio_filepath":"#&/data/#' tarred/manifest_$i.json >renamed/manifest_$i.json; done
check "a manifest with the folder of the recordings" matches renamed/manifest_0.json '"/data/0.wav"'
prepare 0 'renamed/manifest__OP_0..1_CL_.json' --out tar_moved
expect "... and a tar without it, as NeMo accepts" 0 "4 utterances" "left out    0"
prepare 0 tarred/tarred_audio_manifest.json --tars tarred/audio_0.tar --out never
expect "fewer tars than the manifest is for" 3 "missing from its archive" "a manifest of several tars needs all of them: --tars audio__OP_0..N_CL_.tar"
(cd corpus/wav && tar cf ../../tarred/audio_1.tar ./3.wav)
prepare 2 'tarred/manifest__OP_0..1_CL_.json' --out never
expect "a member missing from its archive" 3 "missing from its archive" "tarred/manifest_1.json:1" "has no member '2.wav'"
mkdir holes && truncate -s 8G holes/2.wav && tar -C holes -S -c -f tarred/audio_1.tar 2.wav
check "eight gigabytes of nothing in a few blocks" test "$(file_bytes tarred/audio_1.tar)" -lt 100000
prepare 2 'tarred/manifest__OP_0..1_CL_.json' --out never
expect "an archive that is larger inside" 3 "tarred/manifest_1.json:1" "audio_1.tar' holds more than a hundred times its own size"
head -c 9000 tarred/audio_0.tar >cut.tar && mv cut.tar tarred/audio_0.tar
prepare 2 'tarred/manifest__OP_0..1_CL_.json' --out never
expect "an archive cut short" 3 "tarred/manifest_0.json:1" "audio_0.tar' is damaged"
rm tarred/audio_1.tar
prepare 1 'tarred/manifest__OP_1..1_CL_.json' --out never2
expect "an archive that is not there" 3 "missing file" "audio_1.tar"
prepare 1 'tarred/manifest__OP_0..1_CL_.json' --tars tarred/audio_0.tar --out never
expect "fewer tars than manifests" 3 "names 2 manifests" "1 tars"

entry wav/stereo.wav 1 >corpus/stereo.json
prepare 1 corpus/stereo.json --channel 1 --out second
expect "the second channel" 0 "speech      1 utterance,"
check "... is it" diff <(packed second 0 16000) <(packed joined 32000 16000)
prepare 1 corpus/stereo.json --channel average --out mean
expect "the mean of the channels" 0 "speech      1 utterance,"
prepare 1 corpus/stereo.json --channel 2 --out never
expect "a channel that is not there" 3 "has 2 channels, but channel 2 was requested"
prepare 2 corpus/stereo.json --channel left --out never
expect "a channel of another name" 2 "invalid channel 'left'"
prepare 1 corpus/gone.json --out never
expect "a missing manifest" 3 "cannot open 'corpus/gone.json'"
: >corpus/nothing.json
prepare 1 corpus/nothing.json --out never
expect "an empty manifest" 3 "'corpus/nothing.json' is empty"
prepare 1 corpus --out never
expect "a folder that is no Shar" 3 "is not a Lhotse Shar"
prepare 1 corpus/manifest.json --out corpus
expect "a folder with other files" 3 "contains files other than packed speech"
prepare 1 corpus/manifest.json --out never --shard-minutes 0
expect "shards of no length" 2 "shards of 0 minutes"
{ le 2 32767; le 2 32767; le 2 32767; le 2 32767; } >rail
{ head -c 44 corpus/wav/0.wav; cat rail; tail -c +53 corpus/wav/0.wav; } >corpus/wav/clipped.wav
entry wav/clipped.wav 0.5 >corpus/clipped.json
prepare 1 corpus/clipped.json --out clipped
expect "clipped audio is counted and kept" 0 "speech      1 utterance," "clipped     1 utterance, kept"
check "... and named" has clipped/report.json '"wav/clipped.wav"'

# A folder of recordings becomes a manifest, and another one of recordings that are held out of it.
mkdir -p clips/ann clips/bob
for i in 0 1 2 3 4 5 6 7 8 9; do
  for who in ann bob; do
    wav clips/$who/$i.wav 16000 1 1600 "$i"
    echo "$who says $i" >clips/$who/$i.txt
  done
done
recordings_of() { grep -o '"audio_filepath":"[^"]*"' "$1" | sort; }
run 0 prepare manifest clips --out clips.json --held-out 0.2
expect "a fifth is held out" 0 "recordings  20," "held out    4 lines of 4 recordings," "in clips_held.json" \
  'data.train = ["clips.json"], data.val = ["clips_held.json"]'
check "... all are there once" test "$(cat clips.json clips_held.json | grep -o '"audio_filepath":"[^"]*"' | sort -u | wc -l)" = 20
check "... four in the second file" test "$(wc -l <clips_held.json)" = 4
cp clips_held.json held_before.json
mkdir moved && cp -r clips moved/clips
run 0 prepare manifest moved/clips --out moved/clips.json --held-out 0.2
check "... the same ones after a move" same "recordings_of held_before.json" "recordings_of moved/clips_held.json"
run 0 prepare manifest clips --out by_folder.json --held-out 0.2 --held-out-by folder
expect "one of two folders is held out" 0 "held out    10 lines of 1 folder,"
run 0 prepare manifest clips --out never.json --held-out 0.2 --held-out-by speaker
expect "speakers that nobody names" 3 "it names no speaker" "--held-out-by folder"
run 0 prepare manifest clips --out never.json --held-out-by folder
expect "a property without a share" 2 "--held-out-by requires --held-out"

# Recordings that cannot be read are named all at once, or left out.
echo nothing >clips/ann/3.wav
: >clips/bob/5.wav
run 0 prepare manifest clips --out never.json
expect "two bad recordings" 3 "2 of 20 recordings are bad" "ann/3.wav: unreadable: " "bob/5.wav: empty file: " "--on-bad skip leaves such recordings out"
check "... and no manifest" absent never.json
run 0 prepare manifest clips --out most.json --on-bad skip
expect "... are left out" 0 "recordings  18," "left out    2 recordings that cannot be read" "ann/3.wav"
sed 's,ann/4.wav,ann/40.wav,' clips.json >gone.json
run 0 prepare manifest gone.json --out never.json
expect "a line whose recording is missing" 3 "ann/40.wav" "--on-bad skip"
rm clips/*/*.txt clips/ann/3.wav clips/bob/5.wav
run 0 prepare manifest clips --out never.json --allow-missing
expect "no recording has a text" 3 "--no-text writes lines without a text"
run 0 prepare manifest clips --out silent.json --no-text
expect "... and none is wanted" 0 "recordings  18," "transcribe RUN --manifest silent.json --out silent.texts.json\` makes them"
check "... no deck can train on them" lacks out "in a deck"
check "... the texts are empty" test "$(grep -c '"text":""' silent.json)" = 18
run 0 prepare manifest corpus/wav/0.wav --out never.json
expect "a recording in place of a folder" 3 "it is a recording" "prepare manifest FOLDER"

# Recordings with several channels, and texts that are too long for CTC.
run 0 prepare manifest corpus/stereo.json --out two.json
expect "channels and none chosen, in a new manifest" 0 "channels    1 line has a recording with several and no \"channel\": data.channel in a deck" \
  "stereo.wav (2 channels)" 'data.train = ["two.json"], data.channel = "average"'
sed 's/}$/,"channel":1}/' corpus/stereo.json >corpus/chosen.json
run 0 prepare manifest corpus/chosen.json --out chosen.json
expect "... one chosen" 0 'data.train = ["chosen.json"]'
check "... of which nothing is said" lacks out "channel"
# A second has 100 frames: 50, 25 and 13 after one, two and three halvings. CTC puts a blank between equal letters.
mkdir crowd
for letters in $(printf 'abcdefg%.0s' {1..2}) $(printf 'a%.0s' {1..13}) abcdefghijklm; do
  wav "crowd/$letters.wav" 16000 1 16000 3
  echo "$letters" >"crowd/$letters.txt"
done
run 0 prepare manifest crowd --out crowd.json
expect "texts with more characters than frames" 0 "long texts  2 with model.subsampling=8, 0 with model.subsampling=4, 0 with model.subsampling=2" \
  "data.labels=bpe_256" "the first is crowd/aaaaaaaaaaaaa.wav: 13 characters, 13 frames"

# An archive of Kaldi, and the channels of its recordings.
mkdir kaldi
{ printf 'left '; cat corpus/wav/stereo.wav; printf 'mono '; cat corpus/wav/0.wav; } >kaldi/out.ark
at=$((5 + $(stat -c %s corpus/wav/stereo.wav) + 5))
printf 'two-A %s/kaldi/out.ark:5\ntwo-B %s/kaldi/out.ark:5\none kaldi/out.ark:%d\n' "$work" "$work" $at >kaldi/wav.scp
printf 'two-A a side\ntwo-B another side\none alone\n' >kaldi/text
printf 'two-A two A\ntwo-B two B\none one A\n' >kaldi/reco2file_and_channel
run 0 prepare manifest kaldi --out kaldi.json
expect "an archive of Kaldi" 0 "recordings  3,"
check "... both channels are named" matches kaldi.json '"id":"two-B".*"channel":1'
check "... the recording of one has none" lacks kaldi.json '"id":"one".*"channel"'
prepare 0 kaldi.json --out of_kaldi
expect "... and is packed" 0 "speech      3 utterances,"
check "... the second channel" diff <(packed of_kaldi 16000 16000) <(packed second 0 16000)
check "... and what follows in the archive" diff <(packed of_kaldi 32000 8000) <(sound corpus/wav/0.wav)
echo "one $work/kaldi/out.ark:9" >kaldi/wav.scp
run 0 prepare manifest kaldi --out never.json
expect "a byte where no sound begins" 3 "byte 9 of" "begins no WAV file"

# Kaldi: a segment to the end, the channel of a segment, words between tabs, and a text without a recording.
printf 'r %s\ns %s\n' "$work/corpus/wav/0.wav" "$work/corpus/wav/stereo.wav" >kaldi/wav.scp
rm kaldi/reco2file_and_channel
printf 'rest r 0.1 -1\nsecond s 0.0 0.2 1\n' >kaldi/segments
printf 'rest one\ttwo\nsecond three\nnowhere four\n' >kaldi/text
run 0 prepare manifest kaldi --out segments.json
expect "segments of Kaldi" 0 "recordings  2," "not used    1 text without a recording"
check "... to the end of the recording" matches segments.json '"offset":0.1,"text":"one two","id":"rest","duration":0.4'
check "... of a channel" matches segments.json '"id":"second","channel":1'
echo 'rest r 0.3 0.1' >kaldi/segments
run 0 prepare manifest kaldi --out never.json
expect "a segment without sound" 3 "kaldi/segments:1: zero length: the segment from 0.3 to 0.1 s has no sound" "an end of -1 is that of the recording"

# Tables: parts of recordings, and names of columns.
table() {  # table NAME CODE HEADER ROW WORDS...: a table with this header and this row
  local name=$1 wanted=$2
  printf '%s\n%s\n' "$3" "$4" >corpus/table.csv
  shift 4
  run 0 prepare manifest corpus/table.csv --out table.json
  expect "$name" "$wanted" "$@"
}
table "a part of a recording in a table" 0 "Path, WRD,offset,duration" "wav/0.wav,HI,0.1,0.2" "recordings  1, 200 ms"
check "... is that of its line" matches table.json '"text":"HI","offset":0.1,"duration":0.2'
table "a channel in a table" 0 path,text,channel wav/stereo.wav,a,1 "recordings  1,"
check "... is that of its line" matches table.json '"channel":1'
for column in start_ms begin end_time Stop; do
  table "a column $column" 3 "path,text,$column" wav/0.wav,a,100 "table.csv:1: the column '${column,,}' says which part of a recording" "columns named offset and duration"
done
table "two columns of one name" 3 path,text,text wav/0.wav,a,b "table.csv:1: two columns are called 'text'"
iconv -t UTF-16 corpus/table.csv >corpus/wide.csv
run 0 prepare manifest corpus/wide.csv --out never.json
expect "a table in UTF-16" 3 "'corpus/wide.csv' is text in UTF-16" "iconv -f UTF-16 -t UTF-8 corpus/wide.csv"

# One JSON array is read as its elements.
(echo '['; sed '$!s/$/,/' silent.json; echo ']') >array.json
prepare 0 array.json --out of_array
expect "a JSON array as a manifest" 0 "speech      18 utterances,"
run 0 prepare manifest array.json --out lines.json
check "... and written as lines" cmp lines.json silent.json

# Values that no recording has, and texts in other encodings.
odd() {  # odd NAME WORDS LINE: both commands refuse it with these words
  printf '%b\n' "$3" >odd.json
  prepare 0 odd.json --out never
  expect "$1" 3 "odd.json:1" "$2"
  run 0 prepare manifest odd.json --out never.json
  expect "... also as a manifest" 3 "$2"
}
start='{"audio_filepath":"corpus/wav/0.wav","text":"a","duration"'
for other in 'a.wav b c' '<?xml version="1.0"?>' 'audio: a.wav'; do
  odd "a manifest in another format: $other" "a manifest has lines {\"audio_filepath\": ..., \"duration\": ..., \"text\": ...}: \`choir prepare manifest\` makes one of" "$other"
done
odd "a duration in quotes" '"duration" is not a number' "$start:\"1\"}"
odd "a negative duration" "a duration of -0.5 seconds" "$start:-0.5}"
odd "a duration without end" "a duration of 1e+308 seconds" "$start:1e308}"
odd "a negative offset" "an offset of -1 seconds" "$start:0.1,\"offset\":-1}"
odd "a channel in quotes" '"channel" is not a number' "$start:0.1,\"channel\":\"0\"}"
odd "a text in Latin 1" "iconv -f LATIN1" "$start:0.5,\"lang\":\"\xe9\"}"
printf '%s\n' "$start:0.5}" | iconv -t UTF-16 >odd.json
prepare 0 odd.json --out never
expect "UTF-16" 3 "the file is UTF-16" "iconv -f UTF-16"

# Data that are refused leave no folder; a folder of finished shards is kept.
prepare 1 corpus/stereo.json --out begun
expect "a recording that is refused" 3 "none was chosen"
check "... leaves nothing" absent begun
(cat corpus/manifest.json; cat corpus/stereo.json) >corpus/late.json
prepare 1 corpus/late.json --out begun --shard-minutes 0.01
expect "... behind others" 3 "finished shards are kept in 'begun'"
check "... which are there" test -f begun/audio_00000.part
