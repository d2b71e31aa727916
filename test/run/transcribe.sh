#!/usr/bin/env bash
# choir transcribe: a recogniser that was trained for a few seconds on spoken digits reads
# recordings. The text of a recording depends only on itself: not on order, batch, ranks or its
# source.
. "$(dirname "$0")/lib/common.sh"
# shellcheck source=lib/digits.sh
. "$root/test/run/lib/digits.sh"

digits_recogniser "a recogniser" '"n_layer": 1'

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
expect "in windows" 0 "long recordings are cut into windows of" "no frame sees beyond its window"
check "... of the length asked for" lacks out "the shortest of this model"
run 0 transcribe run c.wav --window 0.1
expect "in windows that are too short" 0 "(the shortest of this model; --window asks for 0.1 s)"

run 0 transcribe run --manifest digits/val.json --out out.json
expect "a manifest" 0 "WER" "CER" "insertions" "transcribed"
check "... a line for each" eval '[ "$(wc -l <out.json)" -eq "$(wc -l <digits/val.json)" ]'
check "... with what it said, and more" eval '[ "$(grep -c "\"pred_text\"" out.json)" -eq "$(grep -c "\"audio_filepath\"" out.json)" ]'
check "... whose references the model can write" lacks out "cannot write"
cp out.json out1.json
expect "... and the name of the file" 0 "written     out.json, "
run 0 transcribe run --manifest digits/val.json
expect "without --out the lines are printed" 0 "WER" "transcribed"
check "... alone on the standard output" diff stdout out1.json
run 0 transcribe run --manifest digits/val.json --out digits/val.json
expect "the manifest itself is not overwritten" 2 "is the input itself"
run 0 transcribe run --manifest digits/val.json --out a.wav
expect "... nor another file" 2 "is a file, and no manifest"

# A file for NeMo, and a run again.
values() { tensors "$1" | grep -E "^(parameters|state/running)/"; }
run 2 export run --format nemo --out digits.nemo
expect "a recogniser as a file of NeMo" 0 "format=nemo type=f32" 'ASRModel.restore_from("digits.nemo")'
run 0 export run --format nemo --out one.nemo
check "... the same on one rank" cmp digits.nemo one.nemo
run 2 import digits.nemo --out back
expect "... is imported" 0 "step_00000000"
check "... with its weights, bit for bit" same "values run" "values back"
run 0 transcribe back --manifest digits/val.json --out back.json
check "... and writes the same" diff out1.json back.json
run 0 export run --format nemo --out one.nemo
expect "a file that is there" 2 "'one.nemo' exists already"
run 1 prepare tokenizer train --out pieces --type bpe --vocab-size 24
run 1 prepare tokens train val --tokenizer pieces.model --name pieces
run 2 train digits.json run.dir=in_pieces data.labels=pieces model.conv_norm=batchnorm train.max_steps=2 train.ema=0.5 checkpoint.interval=2
expect "a recogniser of pieces of words" 0 "checkpoint"
run 2 export in_pieces --format nemo --out pieces.nemo
run 1 import pieces.nemo --out pieces_back
expect "... comes back" 0 "kept in pieces_back/tokenizer: tokenizer.model"
check "... with weights and statistics" same "values in_pieces" "values pieces_back"
check "... and its pieces" cmp pieces.model pieces_back/tokenizer/tokenizer.model
run 1 export in_pieces --ema --format nemo --type bf16 --out ema.nemo
expect "... averaged and in 16 bits" 0 "type=bf16"
run 1 import ema.nemo --out ema_back
expect "... too" 0 "step_00000000"
check "... is another one" eval '! same "values in_pieces" "values ema_back"'
for refused in "--type q8_0:--type q8_0 is not supported by --format nemo" "--merge:--merge is for models with adapters"; do
  run 2 export run --format nemo --out never.nemo ${refused%%:*}
  expect "${refused%%:*} for NeMo" 2 "${refused#*:}"
done
run 1 export run --format hf --out never
expect "a recogniser for transformers" 2 "cannot be exported with --format hf" "use --format nemo"
if mkdir disk && mount -t tmpfs -o size=256k tmpfs disk 2>/dev/null; then
  mounted=$work/disk
  run 2 export run --format nemo --out disk/full.nemo
  expect "a full disk" 6 "full.nemo"
  check "... keeps nothing" eval '[ -z "$(ls disk)" ]'
  umount disk && mounted=""
else skip "an export to a full disk" "a small disk cannot be mounted here"; fi

(head -c 20000 c.wav) >cut.wav
run 0 transcribe run cut.wav
expect "a recording that was cut off" 0 "cut.wav: ends after " "samples that its header promises"
mkdir -p kaldi && echo "c ../c.wav" >kaldi/wav.scp
run 0 transcribe run --manifest kaldi --out never.json
expect "a folder of Kaldi as a manifest" 3 "\`choir prepare manifest kaldi --out train.json\`"
(echo '['; head -n 1 digits/val.json; echo ']') >digits/array.json
run 0 transcribe run --manifest digits/array.json --out never.json
expect "a JSON array as a manifest" 0 "WER" "written     never.json, 1 recording"
rm never.json
run 0 transcribe run c.wav --out c.ctm
expect "times of words for sclite" 0 "written     c.ctm"
check "... name, channel, begin, duration and word" matches c.ctm '^c 1 [0-9.]+ [0-9.]+ [a-z]+$'
run 0 transcribe run c.wav --out c.srt
check "subtitles" eval 'matches c.srt "^00:00:0[0-9],[0-9]{3} --> 00:00:0[0-9],[0-9]{3}$" && matches c.srt "^[a-z ]+$"'
run 0 transcribe run c.wav c.wav --out c2.srt
expect "... of one recording" 2 "--out FILE.srt is for one recording"
run 0 transcribe run c.wav --out c.vtt
check "... of web pages" eval '[ "$(head -n 1 c.vtt)" = WEBVTT ] && [ -z "$(sed -n 2p c.vtt)" ] && matches c.vtt "^00:00:0[0-9]\.[0-9]{3} --> 00:00:0[0-9]\.[0-9]{3}$"'
run 0 transcribe run c.wav a.wav
sed -nE 's/^[ac].wav: //p' stdout >printed.txt
run 0 transcribe run c.wav a.wav --out texts.txt
check "a text per line" diff printed.txt texts.txt
check "... which is not printed, too" lacks stdout "c.wav: "
run 0 transcribe run c.wav --out c.docx
expect "another format" 2 "--out c.docx: transcripts are not written in the format '.docx'" ".vtt"
run 0 eval run --beam 8
expect "a beam search in the evaluation" 2 "choir transcribe RUN --manifest FILE --beam 8"
run 0 transcribe run digits/val.json
expect "a manifest in place of recordings" 2 "-> it is a manifest: --manifest digits/val.json"
run 0 transcribe run c.wav --out c.json
check "the lines of a file" matches c.json '"audio_filepath":"c.wav".*"pred_text":"'
run 0 transcribe c.wav run
expect "the recording before the run" 2 "the run or checkpoint comes first"
echo x >model.nemo
run 0 transcribe model.nemo c.wav
expect "a model of NeMo in place of a run" 6 "choir import model.nemo --out runs/model"
run 0 import model.nemo --out never
expect "... which is no archive" 6 "a .nemo file is a tar archive of model_config.yaml and model_weights.ckpt"
tar xf digits.nemo ./model_config.yaml && tar cf bare.nemo ./model_config.yaml
run 0 import bare.nemo --out never
expect "an archive without weights" 6 "the archive 'bare.nemo' has no 'model_weights.ckpt'" "save it again with NeMo's save_to()"
mkdir hub && mv model.nemo hub/
run 0 transcribe hub c.wav
expect "... in its folder" 6 "choir import hub/model.nemo --out runs/model"
sed 's/"text":/"transcript":/' digits/val.json >digits/other.json
run 0 transcribe run --manifest digits/other.json --out never.json
expect "references under another name" 0 'references are in "transcript", which NeMo calls "text"'
rm never.json
sed 's/"text":"[^"]*"/"text":""/' digits/val.json >digits/empty.json
run 0 transcribe run --manifest digits/empty.json --out never.json
expect "references without a word" 0 "no error rates: " "without a word"
sed 's/"text":"/&Oh, /' digits/val.json >digits/said.json
run 0 transcribe run --manifest digits/said.json --out out.json
expect "references with other characters" 0 "references have characters that the model cannot write" ", O" \
  "\`choir prepare manifest digits/said.json --lower-case --remove-punctuation --out digits/said_plain.json\`"
run 0 prepare manifest digits/said.json --lower-case --remove-punctuation --out digits/said_plain.json
run 0 transcribe run --manifest digits/said_plain.json --out out.json
expect "... and the command that writes them anew" 0 "WER"
check "... so that all can be written" lacks out "cannot write"
cp out1.json out.json
run 2 transcribe run --manifest digits/val.json --out out.json
check "... the same on two ranks" cmp out1.json out.json
sed -E 's/.*"audio_filepath":"([^"]*)","offset":([0-9.]+),"duration":([0-9.]+),"text":"([^"]*)".*/{"id":"\1","start":\2,"duration":\3,"channel":0,"type":"MonoCut","supervisions":[{"id":"s","start":0,"duration":\3,"text":"\4"}],"recording":{"id":"\1","sources":[{"type":"file","channels":[0],"source":"\1"}],"sampling_rate":16000}}/' digits/val.json >digits/cuts.jsonl
gzip -k digits/cuts.jsonl
for cuts in cuts.jsonl cuts.jsonl.gz; do
  run 0 transcribe run --manifest digits/$cuts --out of_cuts.json
  expect "cuts of Lhotse, $cuts" 0 "WER" "CER" "transcribed"
  said() { grep -o '"pred_text":"[^"]*"' "$1"; }
  check "... to the same texts" same "said out1.json" "said of_cuts.json"
done

# The same sound in other formats. convert IN OUT FORMAT HERTZ CHANNELS TIMES: the k-th channel is k
# times softer.
cat >convert.cpp <<'END'
#include <sndfile.h>
#include <cstdlib>
#include <string>
#include <vector>
int main(int, char** word) {
  SF_INFO in{}, out{};
  SNDFILE* const from = sf_open(word[1], SFM_READ, &in);
  std::vector<float> sound(static_cast<std::size_t>(in.frames)), made;
  if (sf_readf_float(from, sound.data(), in.frames) != in.frames || in.channels != 1) return 1;
  const std::string format = word[3];
  out.samplerate = std::atoi(word[4]), out.channels = std::atoi(word[5]);
  out.format = format == "flac" ? SF_FORMAT_FLAC | SF_FORMAT_PCM_16
               : format == "ogg" ? SF_FORMAT_OGG | SF_FORMAT_VORBIS
               : format == "float" || format == "loud" ? SF_FORMAT_WAV | SF_FORMAT_FLOAT : SF_FORMAT_WAV | SF_FORMAT_PCM_16;
  const auto frames = static_cast<std::size_t>(in.frames * out.samplerate / in.samplerate);
  for (int time = 0; time < std::atoi(word[6]); ++time)
    for (std::size_t i = 0; i < frames; ++i) {
      const double at = static_cast<double>(i) * in.samplerate / out.samplerate;
      const auto j = static_cast<std::size_t>(at);
      const float next = j + 1 < sound.size() ? sound[j + 1] : 0, part = static_cast<float>(at - static_cast<double>(j));
      for (int k = 1; k <= out.channels; ++k) made.push_back((sound[j] + part * (next - sound[j])) / static_cast<float>(k));
    }
  if (format == "loud")
    for (float& value : made) value *= 32768;
  if (format == "float") made[made.size() / 2] /= 0.0f, made[made.size() / 2] *= 0.0f;  // infinite, then NaN
  SNDFILE* const to = sf_open(word[2], SFM_WRITE, &out);
  const auto wanted = static_cast<sf_count_t>(made.size()) / out.channels;
  if (to == nullptr || sf_writef_float(to, made.data(), wanted) != wanted) return 1;
  return sf_close(to) + sf_close(from);
}
END
check "a converter" "${CXX:-g++}" -std=c++20 -O1 -o convert convert.cpp -lsndfile || exit
run 0 transcribe run c.wav
said=$(sed -n 's/^c.wav: //p' stdout)
text_is() { [ "$(sed -n "s/^$1: //p" stdout)" = "$said" ]; }
# as_c NAME FORMAT HERTZ CHANNELS OPTION...: the text is that of c.wav.
as_c() {
  local name=$1 format=$2 hertz=$3 channels=$4
  shift 4
  check "$name is made" ./convert c.wav "$name" "$format" "$hertz" "$channels" 1
  run 0 transcribe run "$name" "$@"
  expect "... is read" 0 "$name: " "transcribed 1 recording, 2."
}
as_c flac.flac flac 22050 1
check "... and says the same" text_is flac.flac
check "floating-point samples of integers are made" ./convert c.wav loud.wav loud 16000 1 1
run 0 transcribe run loud.wav
expect "... and are refused" 3 "loud.wav" "times full scale" "scaled to integers"
as_c vorbis.ogg ogg 22050 1
check "... and something is heard" matches stdout '^vorbis.ogg: [a-z]'
as_c low.wav wav 8000 1
as_c high.wav wav 44100 1
check "... and something is heard" matches stdout '^high.wav: [a-z]'
as_c stereo.wav wav 22050 2 --channel 0
check "... the first channel says the same" text_is stereo.wav
run 0 transcribe run stereo.wav --channel average
expect "... their mean" 0 "stereo.wav: "
run 0 transcribe run stereo.wav
expect "... and no channel chosen" 3 "stereo.wav" "has 2 channels and none was chosen" "--channel average, or --channel 0 ... 1"
run 0 transcribe run stereo.wav --channel 2
expect "... or one that is not there" 3 "has 2 channel(s), but channel 2 was requested"
run 0 transcribe run stereo.wav --channel left
expect "... or no number" 2 "left"

# A recording for which the memory has no room is divided by the plan; its text is that of the same
# windows, with any number of them in a pass, and on any number of ranks.
check "a long recording" ./convert c.wav long.wav wav 22050 1 40
run 0 transcribe run long.wav a.wav --memory 0.008
expect "... in little memory" 0 "long recordings are cut into windows of" "long.wav: " "transcribed 2 recordings"
texts >little
check "... something is heard to the end" eval '[ "$(grep "^long" little | wc -w)" -gt 20 ]'
run 0 transcribe run long.wav a.wav --memory 0.008 --batch 1
check "... window by window" eval 'texts | diff little -'
run 2 transcribe run a.wav long.wav --memory 0.008
check "... on two ranks" eval 'texts | diff little -'

# Errors are named.
check "NaN is made" ./convert a.wav nan.wav float 22050 1 1
run 0 transcribe run nan.wav a.wav
expect "a file with NaN" 3 "nan.wav" "sample " "nan"
run 0 transcribe run nan.wav a.wav --on-bad skip
expect "... may be left out" 0 "nan.wav: left out" "a.wav: " "transcribed 1 recording," "1 skipped"
# Damage behind the header of a FLAC: the survey of the headers does not see it.
check "a cut FLAC is made" eval './convert a.wav whole.flac flac 22050 1 1 && head -c $(($(stat -c %s whole.flac) / 2)) whole.flac >cut.flac'
run 0 transcribe run cut.flac
expect "a cut FLAC" 3 "cut.flac' ends after" "-> the file is damaged or was cut off: copy or encode it again from its source"
check "... has no others beside it" lacks out "--on-bad"
printf '{"audio_filepath":"%s"}\n' a.wav cut.flac >cut.json
for arguments in "a.wav cut.flac" "--manifest cut.json --out never.json"; do
  # shellcheck disable=SC2086
  run 2 transcribe run $arguments
  expect "... beside others: $arguments" 3 "encode it again from its source; --on-bad skip leaves such recordings out"
done
run 0 transcribe run a.wav cut.flac --on-bad skip
expect "... may be left out" 0 "cut.flac: left out" "1 skipped"
# Every command that reads a manifest names all of its bad lines at once, in the same words.
{
  head -n 1 digits/val.json
  echo '{"audio_filepath":"gone.wav","duration":1.0,"text":"one"}'
  echo '{"audio_filepath": 3'
  echo '{"audio_filepath":"gone.wav","duration":"long","text":"two"}'
} >digits/three.json
while read -r arguments; do
  # shellcheck disable=SC2086
  run 0 $arguments
  expect "three of four lines are bad: $arguments" 3 "3 of 4 " " are bad:" "digits/three.json:2: missing file: cannot open '" "digits/gone.wav'" \
    "digits/three.json:3: not JSON: column " 'digits/three.json:4: bad line: "duration" is not a number' "skip leaves such "
done <<END
transcribe run --manifest digits/three.json
eval run data.val=digits/three.json
prepare manifest digits/three.json --out never.json
prepare audio digits/three.json --out never
END
# Recordings in tars are named as such, with the commands that read them.
packed_tars=0
mkdir tarred shar
cp a.wav 0.wav
tar cf tarred/audio_0.tar 0.wav
echo '{"audio_filepath":"0.wav","duration":1.0,"text":"three","shard_id":0}' >tarred/manifest_0.json
tar cf shar/recording.000000.tar 0.wav
echo '{"id":"0","start":0,"duration":1.0,"type":"MonoCut","channel":0,"supervisions":[]}' >shar/cuts.000000.jsonl
for path in 'tarred/manifest__OP_0..0_CL_.json' shar; do
  for words in "transcribe run --manifest" "prepare manifest --out never.json"; do
    # shellcheck disable=SC2086
    run 0 $words "$path"
    expect "$words $path" 3 "whose recordings are in tars" "choir prepare audio $path --out FOLDER"
  done
  run 0 prepare audio "$path" --out "packed_$((packed_tars += 1))"
  expect "... which reads it" 0 "1 utterance"
done
run 0 transcribe run --manifest tarred/manifest_0.json
expect "a manifest of members" 3 "'0.wav' is a member of a tar" "unpack the tars beside the manifest"
tar xf tarred/audio_0.tar -C tarred
run 0 transcribe run --manifest tarred/manifest_0.json
expect "... unpacked" 0 "transcribed 1 recording,"
echo '{"id":"m","type":"MixedCut","duration":1.0,"tracks":[]}' >mixed.jsonl
for words in "transcribe run --manifest" "prepare manifest --out never.json" "prepare audio --out never"; do
  # shellcheck disable=SC2086
  run 0 $words mixed.jsonl
  expect "a mixture: $words" 3 "it is a MixedCut, which mixes or joins several cuts" 'save_audios("FOLDER").to_file("OUT.jsonl")'
done
# The command that `prepare manifest --no-text` prints works.
run 0 prepare manifest digits --out silent.json --no-text
expect "a manifest without texts" 0 "transcribe RUN --manifest silent.json"
# shellcheck disable=SC2046
run 0 $(sed -n 's/.*choir \(transcribe RUN [^`]*\).*/\1/p' out | sed 's/RUN/run/')
expect "... is transcribed" 0 "written     silent.texts.json"
run 0 transcribe run digits
expect "a folder" 3 "'digits' is a folder" "name its sound files: digits/*.wav"
run 0 transcribe run missing.wav
check "a single recording leaves no others" lacks out "nothing remains"
for ranks in 0 2; do
  run $ranks transcribe run nan.wav --on-bad skip
  expect "... but nothing else remains, on $ranks ranks" 3 "nan.wav: " "nothing remains"
done
run 0 transcribe run missing.wav nan.wav --on-bad skip
expect "... nor beside one that is not there" 3 "missing.wav: " "none of 2 recordings could be read"
run 2 transcribe run missing.wav a.wav
expect "a file that is not there" 3 "missing.wav"
run 0 transcribe run missing.wav a.wav --on-bad skip
expect "... may be left out" 0 "missing.wav: left out" "transcribed 1 recording," "1 skipped"
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
expect "a model of text" 2 "model.type = \"gpt\", which does not transcribe" "choir generate"
run 1 export gpt --format nemo --out never
expect "... is none for NeMo" 2 "cannot be exported with --format nemo" "use --format hf"
run 0 transcribe run a.wav --memory 0.000001
expect "too little memory" 2 "out of memory" "--memory"
