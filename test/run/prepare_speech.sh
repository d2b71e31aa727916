#!/usr/bin/env bash
# A small corpus of spoken digits, from nothing to labels: it is synthesized, packed and encoded;
# the bytes are the same on 1 and 2 ranks, and errors are named.
. "$(dirname "$0")/lib/common.sh"

bytes_of() { (cd "$1" && find . -type f | sort | xargs md5sum); }
same_bytes() { diff <(bytes_of "$1") <(bytes_of "$2") && [ -n "$(bytes_of "$1")" ]; }

for ranks in 1 2; do
  run "$ranks" prepare corpus spoken-digits --out "digits$ranks" --hours 0.04
  expect "spoken digits on $ranks rank(s)" 0 "train" "val"
done
check "the same corpus on 1 and 2 ranks" same_bytes digits1 digits2
check "digits in words" matches digits1/train.json '"text":"(zero|one|two|three|four|five|six|seven|eight|nine)'
run 1 prepare corpus spoken-digits --out digits1 --hours 0.04
expect "what is there is not made again" 0 "The corpus exists already"
run 0 prepare corpus spoken-digits --out digits3 --hours 0.04 --seed 2
expect "another seed" 0 "train"
check "another seed says something else" bash -c '! cmp -s digits1/train.json digits3/train.json'
run 1 prepare corpus songs --out songs
expect "an unknown corpus" 2 "unknown corpus 'songs'" "spoken-book"
mkdir mine && : >mine/letter.txt
run 1 prepare corpus spoken-digits --out mine
expect "a folder of the user's" 3 "letter.txt"
run 1 prepare corpus asterisk --out prompts --sounds nowhere
expect "prompts that are not installed" 3 "asterisk-core-sounds-en-wav"

for ranks in 1 2; do
  run "$ranks" prepare audio "digits$ranks/train.json" --out "packed$ranks"
  expect "packed on $ranks rank(s)" 0
  run "$ranks" prepare tokenizer "packed$ranks" --out "char$ranks" --type char
  expect "characters on $ranks rank(s)" 0 "char, 16 entries"
  run "$ranks" prepare tokens "packed$ranks" --tokenizer "char$ranks.json" --name char
  expect "labels on $ranks rank(s)" 0 "0 without text" "labels.char.bin"
done
check "the same tokenizer" cmp char1.json char2.json
check "the same labels" cmp packed1/labels.char.bin packed2/labels.char.bin
check "the units beside the labels" cmp packed1/tokenizer.char.json char1.json
run 1 prepare tokenizer digits1/train.json --out digits1/train --type char
expect "a tokenizer in the place of its texts" 2 "would overwrite its input digits1/train.json"

# A check of a deck prepares manifests that are not packed yet, as a start does, so that jobs may check first.
cat >check.json <<'END'
{ "model": { "type": "fastconformer", "n_layer": 1, "n_embd": 32, "n_head": 2, "subsampling": 4, "subsampling_channels": 8,
    "mels": 40 },
  "data": { "train": ["digits1/train.json"], "val": ["digits1/val.json"], "batch_duration": 12, "buckets": 2, "labels": "char" },
  "train": { "micro_batches": 2, "max_steps": 1 } }
END
run 0 train --check check.json run.dir=checked
expect "a check packs manifests" 0 "packing 'digits1/train.json'" "run.dir=checked" "deck OK"
check "... and makes no run" absent checked
run 2 train --check check.json run.dir=checked
expect "... once" 0 "deck OK"
check "... and no second time" lacks out "packing"

if grep -q HAVE_SENTENCEPIECE "$build/choir_features.hpp"; then
  for type in bpe unigram; do
    size=28  # with so few words a unigram model finds 27 at most
    [ $type = bpe ] || size=26
    for again in a b; do
      run 0 prepare tokenizer digits1/train.json --out "$type$again" --type $type --vocab-size $size
      expect "units of $type" 0 "$type, $size entries" "$type$again.model"
    done
    check "the same $type twice" cmp ${type}a.model ${type}b.model
  done
  run 0 prepare tokens packed1 --tokenizer bpea.model --name bpe
  expect "labels by a SentencePiece model" 0 "labels.bpe.bin"
  run 0 prepare tokenizer digits1/train.json --out never --type bpe --vocab-size 5000
  expect "more pieces than the text has" 2 "cannot train a bpe vocabulary of 5000 on this text: Vocabulary size too high"
else skip "units of bpe and unigram" "the build has no SentencePiece"; fi

echo "one two" >few.txt
run 0 prepare tokenizer few.txt --out few
expect "a tokenizer of few letters" 0 "char, 6 entries"
for on_bad in stop skip; do
  run 1 prepare tokens packed1 --tokenizer few.json --on-bad $on_bad
  expect "texts outside the vocabulary, $on_bad" 3 "characters outside the vocabulary" "line "
done
check "no labels are left" absent packed1/labels.few.bin
run 0 prepare tokens packed1 --tokenizer nowhere.json
expect "a tokenizer that is missing" 3 "nowhere.json"
run 0 prepare tokens digits1 --tokenizer char1.json
expect "a folder that is not packed" 3 "prepare audio"
