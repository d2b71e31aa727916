#!/usr/bin/env bash
# Decks that cannot run: exit code 2, the position and a cure are named, on one rank and on two, and
# no run directory is created.
. "$(dirname "$0")/lib/common.sh"

write() { printf '%s\n' "$@" >bad.json; }
refused() {  # refused NAME WORDS...: bad.json is refused on 1 and 2 ranks
  local name=$1 ranks
  shift
  for ranks in 1 2; do
    run "$ranks" train bad.json run.dir=never
    expect "$name, $ranks rank(s)" 2 "$@" || return
  done
}
refused_override() {  # refused_override NAME OVERRIDE WORDS...
  local name=$1 override=$2 ranks
  shift 2
  for ranks in 1 2; do
    train "$ranks" never "$override"
    expect "$name, $ranks rank(s)" 2 "$@" || return
  done
}

rm -f bad.json
refused "missing deck" "cannot read the deck 'bad.json'" "No such file"
run 0 train /dev/zero
expect "a deck without end" 2 "the deck '/dev/zero' has more than 16 MiB"
train 1 never "train.max_steps=$(printf '[%.0s' {1..60000})$(printf ']%.0s' {1..60000})"
expect "a value to use up the stack" 2 "train.max_steps = \"[[["
mkdir bad.json
refused "a folder as deck" "bad.json"
rmdir bad.json
# Root may read every file, unless it drops that right.
write '{}'
chmod 000 bad.json
printf '#!/bin/sh\nexec setpriv --bounding-set=-dac_override,-dac_read_search "%s" "$@"\n' "$choir" >mere_user
chmod +x mere_user
if [ "$(id -u)" -ne 0 ]; then refused "unreadable deck" "cannot read the deck 'bad.json'" "Permission denied"
elif setpriv --bounding-set=-dac_override,-dac_read_search true 2>/dev/null; then
  choir=$PWD/mere_user refused "unreadable deck" "cannot read the deck 'bad.json'" "Permission denied"
else skip "unreadable deck" "root may read every file, and setpriv is refused"; fi
rm -f bad.json
: >bad.json
refused "empty deck" "the deck 'bad.json' is empty"
write '{' '  "train": {' '    "max_steps": 10,,' '  }' '}'
refused "malformed deck" "bad.json:3"
write '{' '  "train": { "max_stepz": 10 }' '}'
refused "misspelt key" "bad.json:2" "unknown key 'train.max_stepz'" "did you mean 'train.max_steps'?"
write '{' '  "trian": { "max_steps": 10 }' '}'
refused "misspelt section" "bad.json:2" "did you mean the section 'train'?"
write '{' '  "train": {' '    "max_steps": 10,' '    "max_steps": 20' '  }' '}'
refused "duplicate key" "bad.json:4" "max_steps"
write '{' '  "model": { "n_layer": "two" }' '}'
refused "wrong type" "bad.json:2" "model.n_layer"
write '{' '  "model": { "dropout": 1.5 }' '}'
refused "out of range" "bad.json:2" "model.dropout"
write '{' '  "model": { "norm": "layernrom" }' '}'
refused "unknown choice" "bad.json:2" "model.norm" "layernorm"
write '[1, 2]'
refused "not an object" "bad.json:1" "a deck is an object"
refused_override "misspelt override" train.max_stepz=10 "command line" "did you mean 'train.max_steps'?"
refused_override "override without =" train.max_steps "is not of the form key.path=value"
refused_override "key of another program" model.hidden_size=32 "unknown key 'model.hidden_size'" "model.n_embd"
refused_override "taking back from nothing" "train.unfreeze=embedding*" "train.unfreeze makes exceptions to train.freeze, which is not given"
refused_override "more stages than layers" parallel.pipeline=4 "parallel.pipeline = 4 is more than model.n_layer = 2" "nearest legal: pipeline = 2"
refused_override "heads that do not divide" model.n_head=5 "model.n_embd = 32 is not a multiple of model.n_head = 5"
refused_override "micro-batches that do not divide" train.micro_batch_size=5 \
  "train.global_batch_size = 24 is not a multiple of train.micro_batch_size = 5" "nearest legal"
refused_override "three batch sizes that contradict" train.grad_accum=5 "train.grad_accum" "nearest legal"
refused_override "profile after the end" train.profile=30:40 "train.profile ends at step 40"

train 2 never train.global_batch_size=6
expect "batch that two ranks cannot share" 2 "train.global_batch_size = 6 is not a multiple of" "2 data-parallel ranks"
train 3 never train.reproducible=true
expect "reproducible mode on 3 ranks" 2 "train.reproducible = true needs powers of two" "the data-parallel size is 3"
train 2 never parallel.data=4
expect "parallel.data of another size" 2 "parallel.data"
check "nothing was started" absent never

for ranks in 0 1 2; do
  run "$ranks" trian
  expect "unknown subcommand, $ranks rank(s)" 2 "unknown subcommand 'trian'" "did you mean 'train'?"
done
run 0
expect "no subcommand" 2 "usage: $choir SUBCOMMAND"
run 0 --help
expect "help" 0 "train" "generate" "jobs/launch -n N $choir train DECK.json"
run 0 train
expect "train without a deck" 2 "no deck given"
run 0 train --no-such-option
expect "unknown option" 2 "--no-such-option"
run 2 trian
check "... is named once, not by every rank" test "$(grep -c 'unknown subcommand' out)" = 1
run 0 generate
expect "an argument that is missing" 2 "choir generate: checkpoint is required"
run 0 generate x --top-p nan
expect "NaN is in no range" 2 "choir generate: --top-p: Value nan is not a finite number"
run 0 transcribe x --memory inf
expect "nor is infinity a size" 2 "choir transcribe: --memory: Value inf is not a finite number"
refused_override "a run name that leaves runs/" run.name=.. "run.name"
refused_override "heads too wide" model.n_embd=1024 "a head is model.n_embd / model.n_head = 512 wide" "nearest legal: n_head = 4"
refused_override "more layers than any model has" model.n_layer=9223372036854775807 "model.n_layer"
refused_override "a vocabulary beyond 32 bits" model.vocab_size=4611686018427387904 "model.vocab_size"
refused_override "a pass beyond 32 bits" train.micro_batch_size=1000000000 "is too much for one pass"
run 0 train "$root/inputs/verify_codec.json" run.dir=never model.fft=256
expect "a transform shorter than its window, in every family" 2 "model.fft = 256 is shorter than model.window = 400"
run 0 train "$root/inputs/verify_asr.json" run.dir=never model.fft=600
expect "a transform without kernels" 2 "model.fft = 600; legal: transforms of 256, 512 or 1024 samples"
run 0 train "$root/inputs/verify_salm.json" run.dir=never train.max_steps=1 data.readers_every=2
expect "readers of another reader, in every family" 2 'data.readers_every = 2 is for data.reader = "scatter"'
run 0 verify "$root/inputs/verify_salm.json" model.lm.block_size=8
expect "random conversations that are too long" 2 "model.lm.block_size = 8" "legal: 24 or more"
for ranks in 1 2; do
  train "$ranks" large model.n_layer=100 model.n_embd=16384 model.n_head=64
  expect "more than the memory of the machine, $ranks rank(s)" 2 "out of memory" "lower train.micro_batch_size"
  check "... is said once" test "$(grep -c 'out of memory' out)" = 1
done
