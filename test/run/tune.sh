#!/usr/bin/env bash
# choir tune: the largest batches that the memory plan allows, written as a deck that fits according
# to `choir plan`, would not fit with one more utterance, and is accepted unchanged by `choir
# train`.
. "$(dirname "$0")/lib/common.sh"
# shellcheck source=lib/digits.sh
. "$root/test/run/lib/digits.sh"

digits_corpus
cat >digits.json <<'END'
// A few utterances in four buckets.
{
  "model": {
    "type": "fastconformer", "n_layer": 2, "n_embd": 32, "n_head": 2, "subsampling": 4, "subsampling_channels": 8,
    "mels": 20, "freq_masks": 1, "freq_width": 4, "time_masks": 2, "time_width": 0.05
  },
  "data": { "train": ["train"], "val": ["val"], "batch_duration": 6, "buckets": 4, "window": 400 },
  "train": { "micro_batches": 2, "max_steps": 3 },
  "optimizer": { "learning_rate": 3e-3, "warmup_steps": 2, "decay_steps": 12 },
  "eval": { "interval": 3 }, "checkpoint": { "interval": 0 }, "log": { "interval": 1 }
}
END
sizes() { tr -d ' \n"' <"$1" | sed -E 's/.*bucket_sizes:\[([^]]*)\].*/\1/'; }
# one_more DECK: raises each of its sizes in turn by one.
one_more() {
  local list i
  IFS=, read -ra list <<<"$(sizes "$1")"
  for i in "${!list[@]}"; do
    local more=("${list[@]}")
    more[i]=$((more[i] + 1))
    (IFS=,; printf '[%s]\n' "$(printf '"%s",' "${more[@]}" | sed 's/,$//')")
  done
}
memory=$(awk 'BEGIN { print 8 / 1024 }')  # 8 MiB, in GiB

run 0 tune digits.json --memory 8MiB
expect "a deck of speech" 0 "tune for the processor of this machine, 1 rank: 8.0 MiB per rank (--memory)" "limited by" \
  "planned MiB" "limit 8.0 MiB a rank" "FITS: the fullest rank is 0, " "written: digits_tuned.json (choir plan digits_tuned.json --ranks 1 --memory 8MiB)" \
  "the tuned deck is written to digits_tuned.json (--out FILE for another file); digits.json stays as it is" "padding"
check "... each bucket by memory" test "$(grep -c ' memory$' stdout)" = 4
run 0 plan digits_tuned.json --ranks 1 --memory "$memory"
expect "... is planned to fit" 0 "FITS: "
for more in $(one_more digits_tuned.json); do
  run 0 plan digits_tuned.json --ranks 1 --memory "$memory" data.batch_duration=99 "data.val=[]" parallel.data=1 data.bucket_sizes="$more"
  expect "... and with $more it does not" 2 "nothing fits"
done
run 1 train digits_tuned.json run.dir=tuned
expect "... is trained as it is" 0 "summary:"
started "... in its buckets" tuned "4 buckets up to"

run 0 tune digits.json --memory 8MiB --probe --out probed_digits.json
expect "each bucket is tried" 0 "trying it on cpu (" "FITS: "
check "... all four" test "$(grep -cE '^  to [0-9.]+ s: +[0-9]+ ran, ' stdout)" = 4
check "... and stays" diff digits_tuned.json probed_digits.json
run 0 tune digits.json data.label_buckets=2 data.max_utterances=15 train.max_steps=2 --memory 8MiB --out by_labels.json
expect "in two dimensions, with another bound" 0 "to 9 labels" "data.max_utterances" "FITS: "
check "... in which memory is one too" matches stdout " memory$"
check "... with what the command line said" matches by_labels.json '"max_steps": 2'
run 0 plan by_labels.json --ranks 1 --memory "$memory"
expect "... is planned to fit" 0 "FITS: "
run 2 tune digits.json parallel.pipeline=2 --memory 8MiB --out stages.json
expect "in a pipeline, on its ranks" 0 "2 ranks" "FITS: "
run 2 train stages.json run.dir=stages train.max_steps=1
expect "... is trained as it is" 0 "summary:"
run 0 tune digits.json --ranks 16 --target h200 --out cards.json
expect "for cards that are not here" 0 "tune for H200 141 GB, 16 ranks" "data.window" "FITS: "
# Attention over the 22 seconds of each of these utterances needs more memory than as many seconds
# in short ones.
words=$(for i in 1 2 3 4 5 6 7 8; do printf 'three seven one nine four zero two eight five six '; done)
espeak-ng -v en-us -w long.wav "$words"
for i in 1 2 3 4; do
  printf '{"audio_filepath": "long.wav", "duration": %s, "text": "%s"}\n' "$(awk "BEGIN { print ($(file_bytes long.wav) - 44) / 44100 }")" "${words% }"
done >long.json
run 1 prepare audio long.json --out long --sample-rate 16000
run 1 prepare tokens long --tokenizer char.json --name char
run 0 tune digits.json data.val=long model.n_head=8 --memory 24MiB --out short.json
expect "evaluation keeps its batches where it must" 0 "evaluation in larger batches exceeds the limit" "FITS: "
check "... by its own option" has short.json '"long": "long batch_duration=6"'
run 0 plan short.json --ranks 1 --memory 0.0234375 parallel.data=1
expect "... is planned to fit" 0 "FITS: "
run 0 tune digits.json data.val=long model.n_head=8 --memory 8MiB --out short.json
expect "... and where nothing helps, it is told" 2 "evaluation needs " "above the limit of 8.0 MiB" "batch_duration=S"

run 0 tune digits.json --memory 100KiB
expect "memory below the parameters" 2 "the parameters alone, " "above the limit of 100.0 KiB" "optimizer moments"
run 0 tune digits.json --memory 1MiB
expect "memory below one utterance" 2 "one utterance of the bucket of " "above the limit of 1.0 MiB"
run 0 tune digits.json --memory 6GB
expect "memory in other words" 2 "--memory 6GB is not an amount of memory"
run 0 tune digits.json --out digits.json
expect "the deck itself" 2 "would replace 'digits.json'"
run 0 tune digits.json --memory 8MiB --out nowhere/deck.json
expect "nowhere to write" 6 "cannot write 'nowhere/deck.json'"
mkfifo pipe.json
run 0 tune digits.json --memory 8MiB --out pipe.json
expect "a pipe to write to" 6 "'pipe.json' is a pipe, not a file"
run 2 tune digits.json --ranks 2
expect "ranks twice" 2 "omit them"
run 0 tune digits.json data.format=synthetic
expect "nothing to bucket" 2 "has no buckets to tune"
run 0 tune
expect "no deck" 2 "no deck given"

# Text: the largest micro-batch, the same global batch.
text=("$debug" "${small[@]}" train.micro_batch_size=1 train.global_batch_size=48 train.grad_accum=0 eval.interval=0)
run 0 tune "${text[@]}" --memory 4MiB --out text.json
expect "a deck of text" 0 "micro-batch" "above the limit" "limited by memory; global batch 48 = " "FITS: "
run 0 plan text.json --ranks 1 --memory 0.00390625
expect "... is planned to fit" 0 "FITS: "
run 1 train text.json run.dir=text train.max_steps=1 checkpoint.interval=0
expect "... is trained as it is" 0 "summary:"
run 2 tune "${text[@]}" --memory 1GiB --out text2.json
expect "on two ranks, with plenty" 0 "train.micro_batch_size 24 (was 1), limited by train.global_batch_size"
run 0 tune "${text[@]}" --out text1.json
check "the limit of memory is explained by that of plan" eval \
  'tr -s "\n" " " <stdout | grep -qE "per rank \(80 % of the [0-9.]+ GiB of a rank that choir plan and training allow, .*; --memory for another limit\)"'
check "... to which the proposed plan adds none" has stdout "(choir plan text1.json --ranks 1)"
# Tried on the device: the planned memory is the memory that is used, apart from libraries.
run 0 tune "${text[@]}" --memory 4MiB --out probed.json --probe
expect "tried on the device" 0 "trying it on cpu (" "micro-batch     1 ran, " "planned " "a sequence" "the fastest that ran: train.micro_batch_size " "FITS: "
check "... all that is planned to fit" test "$(grep -c ' ran, ' stdout)" = "$(grep -cE '^ +[0-9]+ +[0-9]+ +[0-9.]+$' stdout)"
micro_of() { sed -nE 's/.*"micro_batch_size": ?([0-9]+).*/\1/p' "$1"; }
check "... the one whose time per sequence is the least" test "$(micro_of probed.json)" = \
  "$(sed -nE 's/^the fastest that ran: train.micro_batch_size ([0-9]+) .*/\1/p' stdout)"
run 2 tune "${text[@]}" --memory 4MiB --out probed2.json --probe parallel.zero=2
expect "... by two ranks" 0 "micro-batch     1 ran, " "the fastest that ran"
# Memory that does not exist: a limit on addresses, which makes the system refuse memory instead of
# killing the process.
start 0 tune "${text[@]}" --memory 4GiB --out wide.json
peak=0
while kill -0 "$pid" 2>/dev/null; do
  seen=$(sed -nE 's/^VmPeak:[^0-9]*([0-9]+).*/\1/p' "/proc/$pid/status" 2>/dev/null)
  [ "${seen:-0}" -le "$peak" ] || peak=$seen
done
end
(
  ulimit -v $((peak + 300000))
  run 0 tune "${text[@]}" --memory 4GiB --out wide.json model.n_embd=512 model.block_size=512 --probe
  exit "$code"
)
code=$?
cat stdout stderr >out
expect "out of memory is met and told" 0 "micro-batch     1 ran, " "did not run: " "out of memory: " "the fastest that ran: "
run 0 tune "${text[@]}" --probe --ranks 2
expect "a probe of what is elsewhere" 2 "--probe runs on this machine" "leave them out"
run 0 tune "${text[@]}" train.reproducible=true
expect "a reproducible deck" 2 "train.reproducible = true"
run 0 tune "${text[@]}" --memory 10KiB
expect "too little for text" 2 "the parameters alone are" "above the limit of 10.0 KiB"
