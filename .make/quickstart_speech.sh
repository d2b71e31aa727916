#!/usr/bin/env bash
# make quickstart-speech: speech that is made here, packed, and written in the units of a tokenizer.
# Everything is made once: a second run finds it.
set -eu
build=${1:?usage: quickstart_speech.sh BUILD}
here=$(dirname "$0")
# shellcheck source=../jobs/launch.sh
. "$here/../jobs/launch.sh"
choir=$build/choir
ranks=${QUICKSTART_RANKS:-2}
book_hours=${QUICKSTART_HOURS:-4}

say_and_run() {  # on all ranks
  echo "\$ mpiexec -n $ranks $*"
  launch "$ranks" "$@"
}
# pack FOLDER RATE: the manifests of FOLDER/corpus to FOLDER/train, FOLDER/val, FOLDER/val_voices.
pack() {
  local part
  for part in train val val_voices; do
    [ -e "$1/corpus/$part.json" ] || continue
    say_and_run "$choir" prepare audio "$1/corpus/$part.json" --out "$1/$part" --sample-rate "$2"
  done
}
# write_labels FOLDER NAME TYPE [SIZE]: units of the texts that train; labels.NAME.bin of every part.
write_labels() {
  local folder=$1 name=$2 type=$3 size=${4:-0} part parts=()
  for part in train val val_voices; do [ ! -d "$folder/$part" ] || parts+=("$folder/$part"); done
  say_and_run "$choir" prepare tokenizer "$folder/train" --out "$folder/$name" --type "$type" --vocab-size "$size"
  say_and_run "$choir" prepare tokens "${parts[@]}" --tokenizer "$folder/$name.json"
}

echo "== 1. Ten spoken digits (about ten minutes of speech)"
say_and_run "$choir" prepare corpus spoken-digits --out data/spoken_digits/corpus
pack data/spoken_digits 16000
write_labels data/spoken_digits char char

echo
echo "== 2. A spoken book ($book_hours hours of speech; under a minute on two cores)"
say_and_run "$choir" prepare corpus spoken-book --out data/spoken_book/corpus --hours "$book_hours"
pack data/spoken_book 16000
write_labels data/spoken_book char char
write_labels data/spoken_book bpe_256 bpe 256

# Recorded speech, where it is installed (make deps-speech).
if [ -d /usr/share/asterisk/sounds/en_US_f_Allison ]; then
  echo
  echo "== 3. Recorded prompts (24 minutes of one speaker, 8 kHz)"
  say_and_run "$choir" prepare corpus asterisk --out data/asterisk/corpus
  pack data/asterisk 16000
  write_labels data/asterisk char char
fi
