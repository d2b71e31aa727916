#!/usr/bin/env bash
# quickstart_speech.sh BUILD: corpora of speech are synthesized, packed and encoded; recognisers are
# trained on them with 2 ranks, and transcribe recordings. It takes seven minutes on two cores with AMX. On slower ones
# the trainings have fewer steps. A second run uses existing files, continues interrupted steps and repeats the end.
#   QUICKSTART_MINUTES                   of all trainings together, without evaluations; default 10
#   QUICKSTART_RANKS, QUICKSTART_HOURS, QUICKSTART_DIGITS_HOURS   2 ranks; a book of 4 hours, digits of 0.5
#   QUICKSTART_OVERRIDES                 for tests: overrides of every deck
set -eu -o pipefail
build=${1:?usage: quickstart_speech.sh BUILD}
here=$(dirname "$0") again="make quickstart-speech"
# shellcheck source=speech_steps.sh
. "$here/speech_steps.sh"
digits=data/spoken_digits book=data/spoken_book prompts=data/asterisk
begin=$SECONDS minutes=${QUICKSTART_MINUTES:-10}
# The decks train in bf16, which is slower than fp32 if the processor does not multiply it.
precision=()
grep -qwE "amx_bf16|avx512_bf16" /proc/cpuinfo 2>/dev/null || precision=(train.precision=fp32)
# learn PERCENT DECK RUN OVERRIDE...: a training that may take this part of the minutes.
learn() {
  local percent=$1 deck=$2 run=$3
  shift 3
  fit "$deck" "$run" "$percent" ${precision[@]+"${precision[@]}"}
  train_fitted "$deck" "$run" "$@"
}

# hear RUN FOLDER PART: writes the texts of recordings that were never trained on to RUN/PART.json.
hear() { say_and_run "$choir" transcribe "$1" --manifest "$2/corpus/$3.json" --out "$1/$3.json" | tee "$1/$3.txt"; }
rates() { sed -nE 's/^(WER|CER) ([0-9.]+ %).*/\1 \2/p' "$1" | paste -sd, | sed 's/,/, /'; }  # rates RUN/PART.txt
# field NAME: prints that field of the manifest's line on stdin; the texts have no quotes.
field() { sed -nE "s/.*\"$1\":\"([^\"]*)\".*/\1/p"; }
pair() {  # pair RUN/PART.json: prints the first text of three words or more, beside its reference
  local line
  line=$(awk -F'"text":"' '{ t = $2; sub(/".*/, "", t); if (split(t, words, " ") >= 3) { print; exit } }' "$1")
  echo "  reference   $(field text <<<"$line")"
  echo "  hypothesis  $(field pred_text <<<"$line")"
}

# Recorded speech, if it is installed.
recorded='' parts_in_all=3
if [ -d /usr/share/asterisk/sounds/en_US_f_Allison ]; then recorded=yes parts_in_all=4; fi
if [ -d runs/asr_digits ]; then
  echo "An earlier quickstart is continued on $ranks ranks: its corpora and finished runs are kept. All trainings together may take $minutes minutes."
  kept runs/asr_digits runs/asr_tutorial runs/asr_asterisk_scratch runs/asr_asterisk
else
  echo "Recognisers are trained on $ranks ranks, for about $minutes minutes in all; a fast machine needs less."
fi
[ -z "${precision[*]-}" ] || echo "This processor has no instructions for products in bf16, so the trainings take train.precision=fp32, not the decks' bf16-mixed."
echo "Ctrl-C stops at any time, and '$again' continues."
echo
echo "== 1 of $parts_in_all. Ten spoken digits (half an hour of speech): made, and a small recogniser of characters trained"
say_and_run "$choir" prepare corpus spoken-digits --out $digits/corpus --hours "${QUICKSTART_DIGITS_HOURS:-0.5}"
pack $digits 16000
units $digits char char
labels $digits $digits/char.json
learn 10 inputs/asr_digits.json runs/asr_digits
hear runs/asr_digits $digits val

echo
echo "== 2 of $parts_in_all. A spoken book (${QUICKSTART_HOURS:-4} hours of speech)"
say_and_run "$choir" prepare corpus spoken-book --out $book/corpus --hours "${QUICKSTART_HOURS:-4}"
pack $book 16000
units $book bpe_256 bpe 256
labels $book $book/bpe_256.json

echo
echo "== 3 of $parts_in_all. The tutorial: its log shows how much time is left"
learn 60 inputs/asr_tutorial.json runs/asr_tutorial
hear runs/asr_tutorial $book val
hear runs/asr_tutorial $book val_voices

if [ -n "$recorded" ]; then
  echo
  echo "== 4 of 4. Recorded prompts (24 minutes of one speaker, 8 kHz): from nothing, and from the tutorial's weights"
  say_and_run "$choir" prepare corpus asterisk --out $prompts/corpus
  pack $prompts 8000
  labels $prompts $book/bpe_256.json
  learn 15 inputs/asr_asterisk.json runs/asr_asterisk_scratch
  hear runs/asr_asterisk_scratch $prompts val
  learn 15 inputs/asr_asterisk.json runs/asr_asterisk checkpoint.init_from=runs/asr_tutorial
  hear runs/asr_asterisk $prompts val
fi

echo
echo "== Done in $((SECONDS - begin)) s. Recordings that were never trained on:"
echo "digits                         $(rates runs/asr_digits/val.txt)"
pair runs/asr_digits/val.json
echo "book, new sentences            $(rates runs/asr_tutorial/val.txt)"
pair runs/asr_tutorial/val.json
echo "book, new sentences and voices $(rates runs/asr_tutorial/val_voices.txt)"
pair runs/asr_tutorial/val_voices.json
if [ -n "$recorded" ]; then
  echo "prompts, from nothing          $(rates runs/asr_asterisk_scratch/val.txt)"
  pair runs/asr_asterisk_scratch/val.json
  echo "prompts, from the tutorial     $(rates runs/asr_asterisk/val.txt)"
  pair runs/asr_asterisk/val.json
else
  echo "'make deps-speech' adds recorded prompts, real speech of one voice: then run this again."
fi
shortened runs/asr_digits runs/asr_tutorial runs/asr_asterisk_scratch runs/asr_asterisk
cat <<END
Try next:
  $choir transcribe runs/asr_tutorial FILE.wav --json     any sound file, with the times of words
  $choir eval runs/asr_tutorial                           each validation set apart
  jobs/launch -n 4 $choir train inputs/asr_tutorial.json run.dir=runs/four train.micro_batches=4
END
