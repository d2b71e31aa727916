#!/usr/bin/env bash
# A recogniser of spoken digits from a deck: it trains, evaluates, and resumes bit by bit, the same
# on any number of ranks; errors of speech data are named.
. "$(dirname "$0")/lib/common.sh"
# shellcheck source=lib/digits.sh
. "$root/test/run/lib/digits.sh"

digits_corpus
cat >digits.json <<'END'
{
  "model": {
    "type": "fastconformer", "n_layer": 2, "n_embd": 32, "n_head": 2, "subsampling": 4, "subsampling_channels": 8,
    "mels": 20, "freq_masks": 1, "freq_width": 4, "time_masks": 2, "time_width": 0.05
  },
  "data": { "train": ["train"], "val": ["val"], "batch_duration": 6, "buckets": 4, "window": 24 },
  "train": { "micro_batches": 2, "max_steps": 12 },
  "optimizer": { "learning_rate": 3e-3, "warmup_steps": 2, "decay_steps": 12, "beta2": 0.98 },
  "eval": { "interval": 6 },
  "checkpoint": { "interval": 4 },
  "log": { "interval": 1 }
}
END
train_speech() {  # train_speech RANKS RUN_DIRECTORY OVERRIDE...
  local ranks=$1 directory=$2
  shift 2
  run "$ranks" train digits.json run.dir="$directory" "$@"
}

# close_validation A B RELATIVE: compares val_loss of all evaluations.
close_validation() {
  diff <(grep -o '"val_loss":[0-9.]*' "$1/metrics.jsonl" | wc -l) <(grep -o '"val_loss":[0-9.]*' "$2/metrics.jsonl" | wc -l) &&
    paste -d' ' <(grep -o '"val_loss":[0-9.]*' "$1/metrics.jsonl") <(grep -o '"val_loss":[0-9.]*' "$2/metrics.jsonl") |
    tr ': ' '  ' | awk -v most="$3" '{ d = $2 - $4; if (d < 0) d = -d; if (NF != 4 || d > most * $2) { print; bad = 1 } }
      END { exit bad || NR == 0 }'
}

train_speech 1 straight
expect "trains" 0 "train " "rtfx=" "summary:" \
  "validation 'val': loss" "WER" "insertions" "CER" "characters)" "real-time factor" "val_wer=" "val_cer=" \
  "reference   " "hypothesis  "
started "what there is of data" straight "buckets up to" "padding" "% without buckets)" "units of kind char"
check "metrics have it" matches straight/metrics.jsonl '"step":6,.*"rtfx":.*"val_loss":.*"val_wer":.*"val_cer":'
check "samples are pairs" grep -q "^reference   " straight/samples/*6*
check "three of them" test "$(cat straight/samples/*6* | grep -c '^hypothesis  ')" = 3
first_loss() { losses straight | awk 'NR == 1 { print $2 }'; }
check "the loss falls" bash -c "awk 'BEGIN { exit !($(losses straight | tail -n 1 | cut -d' ' -f2) < $(first_loss)) }'"

# The counts behind the rates, the utterances with the most errors, and the list of runs.
run 1 eval straight --json
expect "eval as JSON" 0 '"set":"val"' '"words":' '"insertions":' '"character_deletions":'
whole() { grep -oE "\"$1\":[0-9]+" stdout | head -n 1 | cut -d: -f2; }
check "... the counts give the rate" eval 'awk -v e=$(($(whole insertions) + $(whole deletions) + $(whole substitutions))) \
  -v w="$(whole words)" -v r="$(grep -oE "\"wer\":[0-9.]+" stdout | cut -d: -f2)" "BEGIN { d = e / w - r; exit !(w > 0 && d * d < 1e-20) }"'
errors_of() { grep -oE '"errors":[0-9]+' "$1/worst_samples.jsonl" | cut -d: -f2; }
check "the utterances with the most errors, the worst first" eval 'n=$(errors_of straight | wc -l); [ "$n" -ge 3 ] && [ "$n" -le 10 ] && errors_of straight | sort -nr -c'
check "... are recordings with their texts" matches straight/worst_samples.jsonl '"recording":".*wav.*","errors":.*"reference":"[a-z ]+","hypothesis":"'
run 2 eval straight
cp straight/worst_samples.jsonl worst_of_two.jsonl
run 1 eval straight
check "... the same ones on two ranks" cmp worst_of_two.jsonl straight/worst_samples.jsonl
run 1 eval straight 'data.val=["train"]'
run 0 report straight --out straight.html
check "... are in the report" has straight.html "in the last evaluation of the data of the run, after step 12"
check "... beside those of other data" has straight.html "in the last evaluation with data.val="
run 0 runs straight
expect "the list of runs" 0 "score" "WER "
run 0 runs straight --json
expect "... as JSON" 0 '"score":"wer","score_value":'

# Recordings with two channels need one of them, also in a deck.
perl -e 'for (@ARGV) { local $/; open F, "<", $_; binmode F; my $w = <F>; close F; my $d = substr($w, 44); $d =~ s/(..)/$1$1/gs;
  substr($w, 22, 2) = pack("v", 2); substr($w, 28, 4) = pack("V", 2 * unpack("V", substr($w, 28, 4))); substr($w, 32, 2) = pack("v", 4);
  substr($w, 40, 4) = pack("V", length $d); substr($w, 4, 4) = pack("V", 36 + length $d); open F, ">", "two.wav"; binmode F; print F substr($w, 0, 44) . $d }' \
  "$(find digits -name '*.wav' | sort | head -n 1)"
echo '{"audio_filepath":"two.wav","duration":1.0,"text":"one two"}' >two.json
run 1 eval straight 'data.val=["two.json"]'
expect "two channels" 3 "two.json:1" "data.channel=average"
check "... and a key of the deck skips it" has out "; data.on_bad=skip leaves such utterances out, up to data.bad_cap of them"
check "... no option of another command" lacks out "--on-bad"
run 1 eval straight 'data.val=["two.json"]' data.channel=1
expect "... of which one is chosen" 0 "val_wer="
run 1 train digits.json run.dir=never data.channel=left
expect "a channel of another name" 2 "data.channel"

# Utterances that skip leaves out, and how many of them it may.
(cat digits/train.json; echo '{"audio_filepath":"gone.wav","duration":1.0,"text":"one"}') >digits/gone.json
train_speech 1 few 'data.train=["digits/gone.json"]' train.max_steps=1 data.on_bad=skip
expect "more than one in a hundred is bad" 3 "that data.bad_cap allows" "raise data.bad_cap"
train_speech 1 few 'data.train=["digits/gone.json"]' train.max_steps=1 data.on_bad=skip data.bad_cap=0.2
expect "a larger share may be bad" 0 "left out    1 utterance" "1 missing file" "gone.wav"
run 1 eval straight 'data.val=["digits/gone.json"]'
expect "another command stops at what a pack left out" 3 "missing file" "gone.wav" "-> data.on_bad=skip leaves such utterances out"
run 1 eval straight 'data.val=["digits/gone.json"]' data.on_bad=skip data.bad_cap=0.2
expect "... or names it again" 0 "utterances are left out as bad: digits/gone.json:" "gone.wav"
train_speech 1 few data.bad_cap=0.2
expect "... only where bad ones are skipped" 2 "data.bad_cap"
sed 's/"text":/"transcript":/' digits/train.json >digits/other.json
train_speech 1 renamed 'data.train=["digits/other.json"]' train.max_steps=1
expect "texts under another name are read" 0 "step=1 "
sed 's/"text":/"text": "", "transcript":/' digits/train.json >digits/other.json
train_speech 1 never 'data.train=["digits/other.json"]'
expect "empty texts beside another name" 3 'digits/other.json' 'its texts are in "transcript", which NeMo calls "text"'

# Micro-batches of two utterances in both runs, padded to the longer of them or to one shape per
# bucket, with rows without sound.
two_each=(train.precision=fp64 data.batch_duration=60 data.max_utterances=2)
train_speech 1 longer "${two_each[@]}" train.max_steps=8
expect "micro-batches padded to their longest utterance" 0 "summary:"
train_speech 1 whole "${two_each[@]}" train.max_steps=8 data.pad_to_bucket=true
expect "... and to that of their bucket" 0 "summary:"
check "... give the same losses" close_losses longer whole 1e-12
check "... by other sums" eval '! same "losses longer" "losses whole"'
train_speech 1 whole "${two_each[@]}"
expect "... but are other data to a run that goes on" 2 "data.pad_to_bucket"

run_broken data-count-labels 2 train digits.json run.dir=miscounted
expect "a transcript counted with a label too many" 4 "step 1: the model has used" "but the data announced"

train_speech 2 two
expect "on 2 ranks" 0 "summary:"
check "the losses agree to 1e-4" close_losses straight two 1e-4
manifests=('data.train=["digits/train.json"]' 'data.val=["digits/val.json"]')
train_speech 2 manifests "${manifests[@]}"
expect "from manifests, with nothing prepared" 0 "packing 'digits/train.json' for its first use" "labels.char-" \
  "validation 'val': loss" "summary:"
check "... to the same numbers" same "losses two" "losses manifests"
train_speech 1 again "${manifests[@]}" train.max_steps=1
expect "... which is done once" 0 "summary:"
check "... only" lacks stdout "packing"
sed '1s/"text":"/&b /' digits/train.json >digits/other.json
train_speech 1 other 'data.train=["digits/other.json"]' 'data.val=["digits/val.json"]' train.max_steps=1
expect "other training data with the same validation" 0 "labels.char-" "validation 'val'" "summary:"
train_speech 1 manifests "${manifests[@]}" train.max_steps=13
expect "... and the first run continues with its own units" 0 "13 (1 now)"
cp digits/val.json digits/new.json
run 1 eval manifests 'data.val=["digits/new.json"]'
expect "a new manifest is evaluated in the units of the run" 0 "packing 'digits/new.json'" "val_wer="
cp -r val unlabelled
rm unlabelled/labels.* unlabelled/tokenizer.*
run 1 eval manifests 'data.val=["unlabelled"]'
expect "... also packed audio without labels" 0 "val_wer="
check "... which stays as it is" eval '! ls unlabelled/labels.* unlabelled/tokenizer.* 2>/dev/null'
tr 'a-z' 'A-Z' <digits/val.json | sed -E 's/"AUDIO_FILEPATH":"([^"]*)"/"audio_filepath":"\L\1"/; s/"(OFFSET|DURATION|TEXT|ID|LANG|SPEAKER)"/"\L\1"/g' >digits/upper.json
run 1 eval manifests 'data.val=["digits/upper.json"]'
expect "capitals that the run does not have count as errors" 0 "texts have characters that the model cannot write (" \
  "the loss is without them" "'upper': no loss (no target: " "val_wer=1" \
  "\`choir prepare manifest digits/upper.json --lower-case --out digits/upper_plain.json\`"
run 1 prepare manifest digits/upper.json --lower-case --out digits/upper_plain.json
run 1 eval manifests 'data.val=["digits/upper_plain.json"]'
expect "... and its command cures" 0 "val_wer="
run 0 report manifests --out manifests.html
expect "the page of the run" 0 "manifests.html"
check "... names the data that were evaluated, with their unit" eval \
  'grep -q "all of digits/upper_plain.json" manifests.html && grep -qE "<td class=n>[0-9.]+ %</td>" manifests.html'
run 1 eval manifests 'data.val=["digits/upper_plain.json"]' 'data.validation={"more":"val"}'
expect "sets beside it" 0 "'more': loss" "'upper_plain': loss"
run 0 report manifests --out manifests.html
check "... are named together" has manifests.html "all of digits/upper_plain.json, more:val<"
run 1 eval manifests 'data.validation={"more":"val"}'
expect "sets in place of the data of a run" 0 "data.validation replaces the validation data of the run (" "'more': loss" "val_loss="
check "... are the only ones" lacks out "val_loss/"
# Words of a recording without a frame are errors, as in choir transcribe.
(head -n 1 digits/val.json && sed -nE '2 { s/"duration":[0-9.]+/"duration":0.005/; s/"text":"[^"]*"/"text":"five five"/; p; }' digits/val.json) >digits/brief.json
run 0 transcribe manifests --manifest digits/brief.json --out brief.json
words_of() { grep -aoE 'WER +[0-9.]+ % \([^)]*\)' out | head -n 1; }
words_of >of_transcribe
run 1 eval manifests 'data.val=["digits/brief.json"]'
expect "a recording that is shorter than a frame" 0 "CTC is impossible" "0 frames"
cp out of_eval
head -n 1 digits/brief.json >digits/whole.json
run 1 eval manifests 'data.val=["digits/whole.json"]'
targets_of() { grep -aoE " targets=[0-9]+" "$1"; }
cp out of_whole
check "... has no part in the loss" same "targets_of out" "targets_of of_eval"
sed '2s/"duration":0.005/"duration":0.1/' digits/brief.json >digits/crowded.json
run 1 eval manifests 'data.val=["digits/crowded.json"]'
expect "a recording with too few frames" 0 "CTC is impossible: fewer frames than the labels need"
loss_of() { sed -nE 's/.* val_loss=([^ ]+).*/\1/p' "$1"; }
check "... has no part in the loss either" eval 'same "targets_of out" "targets_of of_whole" &&
  awk -v a="$(loss_of out)" -v b="$(loss_of of_whole)" "BEGIN { d = a - b; exit !(b > 0 && d * d < 1e-8) }"'
cp of_eval out
check "... counts in the error rate" eval '[ -s of_transcribe ] && [ "$(words_of)" = "$(cat of_transcribe)" ]'
sed 's/"text":"[^"]*"/"text":""/' digits/brief.json >digits/silent.json
run 1 eval manifests 'data.val=["digits/silent.json"]'
expect "references without a word" 0 "no error rates: " "without a word"
check "... have no rate" lacks out "WER inf"
# Fine-tuning on other manifests keeps the units of the head.
sed 's/"text":"[^"]*"/"text":"one two"/' digits/train.json >digits/few.json
fine=(checkpoint.init_from=manifests 'data.train=["digits/few.json"]')
train_speech 2 fine "${fine[@]}" 'data.val=["digits/val.json"]' train.max_steps=1
expect "fine-tuning on a manifest" 0 "the labels are in the units of manifests" "warm start from manifests" "summary:"
check "... takes the head, too" lacks fine/start.txt "begin anew"
units() { grep -ao 'units [0-9a-f]\{16\}' "$1/checkpoints/$(newest "$1")/state.h5" | head -n 1; }
check "... whose outputs keep their meaning" same "units manifests" "units fine"
train_speech 1 fine "${fine[@]}" 'data.val=["digits/val.json"]' train.max_steps=2
expect "... and continues so" 0 "2 (1 now)"
train_speech 1 anew "${fine[@]}" 'checkpoint.init_skip=["head.*"]' 'data.val=[]' 'data.validation={"own": "digits/few.json"}' train.max_steps=1 eval.interval=2 optimizer.warmup_steps=2
expect "... or has a head of its own" 0 "begin anew" "labels.char-" "eval.interval is 2 and train.max_steps is 1: only the last step is evaluated" \
  "optimizer.warmup_steps is 2 and train.max_steps is 1: the learning rate does not reach "
run 1 eval anew 'data.val=["digits/few.json"]'
expect "other data replace the validation sets of a run" 0 "replaces the validation data of the run (own)" "'few': loss"
check "... all of them" lacks out "'own': loss"
# Texts that the units cannot write: the way out that the refusal names works, and an evaluation tells why it has no loss.
sed 's/"text":"/"text":"\xc3\x96/' digits/few.json >digits/letters.json
train_speech 1 letters checkpoint.init_from=manifests 'data.train=["digits/letters.json"]' 'data.val=[]' train.max_steps=1
expect "texts in other letters" 3 "characters outside the vocabulary" "train a new head: 'checkpoint.init_skip=[\"head.*\"]'"
train_speech 1 letters checkpoint.init_from=manifests 'data.train=["digits/letters.json"]' 'data.val=[]' train.max_steps=1 \
  'checkpoint.init_skip=["head.*"]'
expect "... with a new head" 0 "begin anew" "summary:"
run 1 eval manifests 'data.val=["digits/letters.json"]'
expect "... have no loss" 0 "no loss (no target: " "val_loss=nan"
cp -r val spelt
run 1 prepare tokens spelt --tokenizer manifests
expect "labels in the units of a run" 0 "written     spelt/labels.manifests.bin"
# Units of the same number that mean others: q in the place of z.
perl -pe 's/("text":"[^"]*)/$1 =~ tr|z|q|r/e' digits/train.json >digits/twisted.json
run 1 prepare audio digits/twisted.json --out twisted
run 1 prepare tokenizer twisted --out twisted_char --type char
run 1 prepare tokens twisted --tokenizer twisted_char.json --name char
train_speech 2 twisted checkpoint.init_from=manifests data.train=twisted 'data.val=[]' train.max_steps=1
expect "labels in other units of the same number" 2 "its outputs would mean other pieces" "--tokenizer manifests/" "checkpoint.init_skip="
train_speech 1 twisted 'data.train=["digits/twisted.json"]' data.val=val train.max_steps=1
expect "validation in the units of the deck's own data" 3 "the labels of 'val' use tokenizer" "'data.validation={}'"
train_speech 1 small checkpoint.init_from=manifests model.n_embd=64 train.max_steps=1
expect "a run of another width" 2 "have another shape or type in manifests" "checkpoint.init_skip="
train_speech 1 small checkpoint.init_from=manifests model.n_layer=9 train.max_steps=1
expect "a run of much fewer layers" 2 "tensors can be taken from manifests" "checkpoint.init_take="
# A changed recording under the same manifest is packed again.
cp -r digits changing
changed=('data.train=["digits/train.json"]' 'data.val=["changing/val.json"]')
run 1 eval manifests "${changed[@]}"
expect "a copy of the corpus" 0 "packing 'changing/val.json'" "val_wer="
touch -d '+1 hour' changing/*/*.wav changing/*.wav 2>/dev/null
run 1 eval manifests "${changed[@]}"
expect "recordings that changed are packed again" 0 "recordings of 'changing/val.json' have changed" "packing 'changing/val.json'" "val_wer="
run 1 eval manifests "${changed[@]}"
expect "... once" 0 "have changed" "val_wer="
check "... only" lacks stdout "packing"
sed 1d digits/train.json >digits/rest.json
run 1 eval manifests 'data.val=["digits/rest.json"]'
loss_of() { sed -nE "s/.*'$1': (loss [0-9.]+), WER.*/\1/p" out; }
words_of() { sed -nE "s/.*'$1': .*, ([0-9]+) words\).*/\1/p" out; }
rest=$(loss_of rest) words=$(words_of rest)
run 1 eval manifests 'data.val=["digits/other.json"]'
expect "a text that the run cannot write" 0 "validation 'other': 1 of" "texts has characters that the model cannot write (b)"
check "... adds nothing to the loss" eval '[ -n "$rest" ] && [ "$rest" = "$(loss_of other)" ]'
check "... and its words are compared" test "$(words_of other)" -gt "$words"
run 2 eval manifests 'data.val=["digits/other.json"]'
check "... also on two ranks" test "$rest" = "$(loss_of other)"
train_speech 1 gone 'data.train=["digits/trian.json"]'
expect "a manifest that is not there" 3 "there is no file or folder 'digits/trian.json'" "did you mean 'digits/train.json'?"
train_speech 1 sounds 'data.train=["digits/nothing"]' 'data.val=[]'
expect "a folder that is not there" 3 "there is no file or folder 'digits/nothing'"
mkdir recorded && touch recorded/a.wav
train_speech 1 sounds 'data.train=["recorded"]' 'data.val=[]'
expect "a folder of recordings" 3 "'recorded' holds no packed speech" "\`choir prepare manifest recorded --out train.json\`"
train_speech 1 unknown "${manifests[@]}" data.labels=bpe-16
expect "a misspelt name of units" 2 "did you mean bpe_16?"
train_speech 1 unknown "${manifests[@]}" data.labels=tok.model
expect "a file of units as their name" 2 "--tokenizer tok.model --name NAME"
train_speech 1 unknown "${manifests[@]}" data.labels=mine
expect "units that nobody knows" 2 "no folder to train on has tokenizer.mine.json" "bpe_256"
for axis in tensor pipeline; do
  train_speech 2 $axis parallel.$axis=2
  expect "on a $axis axis of 2" 0 "validation 'val': loss" "hypothesis  "
  check "the losses agree to 1e-4" close_losses straight $axis 1e-4
  check "so does the validation" close_validation straight $axis 1e-4
done
train_speech 2 uneven train.micro_batches=3
expect "a rank with fewer micro-batches is told of" 0 "1 of 4 micro-batches per step are empty" "train.micro_batches=4" "summary:"
train_speech 1 even train.micro_batches=3
check "... one that has all of them is not" lacks out "per step are empty"
check "... changes no loss" close_losses even uneven 1e-4

for ranks in 1 2; do
  train_speech "$ranks" "bits$ranks" train.reproducible=true train.micro_batches=3
  expect "reproducible on $ranks rank(s)" 0 "summary:"
done
check "the same losses on 1 and 2 ranks, bit by bit" same_losses bits1 bits2
check "the same weights, bit by bit" same_weights bits1 bits2
validated() { grep -o '"val_[^"]*":[^,}]*' "$1/metrics.jsonl"; }
check "the same validation" same "validated bits1" "validated bits2"
train_speech 2 sharded train.reproducible=true train.micro_batches=3 parallel.zero=3
expect "with sharded parameters" 0 "summary:"
check "the same losses, bit by bit" same_losses bits1 sharded

# The windows of the sampler have about two steps.
train_speech 2 killed train.reproducible=true train.micro_batches=3 checkpoint.async=false fault.enable=true fault.kill_rank=1 fault.kill_step=11
expect_killed "killed"
cp -r killed elsewhere
train_speech 2 killed train.reproducible=true train.micro_batches=3
expect "continues" 0 "resumed from killed/checkpoints/step_00000008" "12 (4 now)"
check "the losses of straight through, bit by bit" same_losses bits2 killed
check "every tensor, bit by bit" same_tensors bits2 killed
train_speech 1 elsewhere train.reproducible=true train.micro_batches=3
expect "continues on another number of ranks" 0 "resumed from elsewhere/checkpoints/step_00000008"
check "the losses of straight through, bit by bit" same_losses bits2 elsewhere
train_speech 1 straight train.max_steps=14 data.window=50
expect "other data order: refused" 2 "data.window: 24 -> 50" "checkpoint.allow_changes='[\"data.window\"]'"
train_speech 1 straight train.max_steps=14 data.window=50 checkpoint.allow_changes=data.window
expect "other data order, allowed: said" 0 "their order begins anew" "14 (2 now)"

result() { grep -o ' val_loss=[0-9.]*\| val_[wc]er=[0-9.]*' out; }
run 1 eval bits1
expect "eval" 0 "WER" "reference   " "val_loss=" "val_wer=" "step=12"
result >one
run 2 eval bits1
result >two.txt
check "eval on 2 ranks" cmp one two.txt
cp -r val other_place
run 1 eval bits1 data.val=other_place data.train=nowhere
expect "eval of other data, without those of training" 0 "'other_place': loss"
result >moved
check "... says the same" cmp one moved

train_speech 2 sets "data.val=[]" data.validation.all=val "data.validation.few=val limit=3" train.max_steps=6
expect "two validation sets" 0 "validation 'all': loss" "validation 'few': loss" "validation all: loss" \
  "val_wer/few=" "val_loss/all="
check "metrics of each" matches sets/metrics.jsonl '"val_wer/few":'
# A set of two folders with tags: the counts of each are the same on any number of ranks, and the
# total is their sum.
cp -r val other_val
tagged=("data.val=[]" 'data.validation.all=[{"folder": "val", "tags": {"place": "here"}}, "other_val"] tag.place=there'
  "data.validation.here=val tag.place=here" 'data.train=[]' train.max_steps=6 eval.interval=6
  'data.input_cfg=[{"folder": "train", "weight": 3, "tags": {"noise": "low"}}, {"group": ["val"], "weight": 1, "tags": {"noise": "high"}}]')
for ranks in 1 2; do
  train_speech $ranks tags$ranks "${tagged[@]}" train.reproducible=true
  started "sources with tags on $ranks rank(s)" tags$ranks "blend 75.00 % 'train': " "tags noise=low" "blend 25.00 % 'val'"
  expect "... what was drawn of them" 0 "drawn so far: 'train' " "(of 75.0 %)" "by tag: noise=high " "validation all, place=here: WER" \
    "validation 'all', place=there: WER" "  drawn            'train'"
done
check "metrics of each tag" matches tags1/metrics.jsonl '"val_wer/place=here":.*"val_cer/place=there":.*"val_wer/place=here/all":'
check "... the same on 2 ranks" same "validated tags1" "validated tags2"
rate() { grep -o "\"val_wer$1\":[^,}]*" tags1/metrics.jsonl | cut -d: -f2; }
same_rates() { [ -n "$(rate /here)" ] && [ "$(rate /here)" = "$(rate /place=here/all)" ] && [ "$(rate /here)" = "$(rate /place=there/all)" ]; }
check "... the same utterances, the same rates" same_rates
train_speech 1 none "data.val=[]" train.max_steps=2
expect "no validation data" 0 "no validation data"

run 1 generate bits1
expect "generate of a speech model" 2 'model.type = "fastconformer", which does not continue text' '`choir transcribe`'
train_speech 0 wrong "data.train=[]"
expect "nothing to train on" 2 "data.train is not given"
train 0 wrong data.labels=char
expect "keys of speech in a deck of text" 2 "data.labels is for model.type"
train_speech 1 wrong data.train=nowhere
expect "a missing folder" 3 "nowhere" "prepare audio"
train_speech 2 wrong data.train=digits
expect "a folder that is not packed" 3 "'digits' holds no packed speech" "looks like a manifest: a deck may name it" "prepare audio digits/"
train_speech 1 wrong data.labels=bpe
expect "missing labels" 3 "labels.bpe.bin" "prepare tokens"
train_speech 2 wrong model.sample_rate=8000
expect "another sample rate" 3 "8000"
train_speech 1 wrong data.val=nowhere
expect "missing validation data" 3 "nowhere"
train_speech 1 wrong data.batch_duration=0.3
expect "an utterance larger than a batch" 2 "batch_duration"
train_speech 2 wrong model.hop=512 model.subsampling=8
expect "CTC is impossible" 3 "CTC is impossible" "-> CTC needs a frame for each label, and model.subsampling=8 keeps one frame of 8; too few are left for"
check "... the remedies come first, and skipping last" matches out 'with model\.subsampling=4, .*data\.labels=bpe_256.*; data\.on_bad=skip leaves out up to 1 % of the utterances$'
# Validation evaluates all utterances: a warning, not an error.
train_speech 2 fast model.hop=400 model.subsampling=8 data.max_labels_per_second=4 train.max_steps=1
expect "CTC is impossible for some of the validation" 0 "have more labels than frames; CTC needs a frame for each label" "with model.subsampling=4"

echo "zero one two three four five six seven eight nine xyz" >more.txt
run 1 prepare tokenizer more.txt --out more --type char
cp -r train more_train && cp -r val more_val
run 1 prepare tokens more_train more_val --tokenizer more.json --name char
train_speech 1 bits1 train.reproducible=true train.micro_batches=3 data.train=more_train data.val=more_val train.max_steps=14
expect "another vocabulary than the checkpoint's" 3 "is not that of the checkpoint"
run 1 eval bits1 data.val=more_val
expect "... evaluation makes the labels in the units of the checkpoint" 0 "val_wer="
check "... and writes none" eval '! ls more_val/labels.char-* 2>/dev/null'
cp -r train unnamed && rm unnamed/tokenizer.char.json
train_speech 1 wrong data.train=unnamed
expect "labels without their units" 3 "tokenizer.char.json"

cp -r train damaged
flip_byte damaged/audio_00000.pcm $((64 + 2000))
train_speech 2 wrong data.train=damaged
expect "a damaged utterance" 3 "damaged" "data.on_bad=skip"
train_speech 1 skipped data.train=damaged data.on_bad=skip train.max_steps=2
expect "... is more than 1 % here" 3 "more than 1 %"

run 1 bench step "$root/inputs/asr_digits.json" --seconds 0.2 --no-ceilings
expect "a bench of a deck whose units come with its data" 0 "model.vocab_size is not given" "x real time" "VALID"
