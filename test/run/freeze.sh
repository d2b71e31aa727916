#!/usr/bin/env bash
# train.freeze and train.unfreeze: a part of the model is trained; the rest costs no gradient, no
# moments and no communication, and keeps its value, bit by bit, in every layout.
. "$(dirname "$0")/lib/common.sh"

# Every layout trains like one rank: pipelines with stages that have nothing to train, blocks that
# are partly frozen, and the tied weights of head and embedding.
limit=170
ranks=4 some="pp=2 recompute=full,tp=2 sequence=true,dp=2 zero=3,dp=2 tp=2 zero=2,tp=2 pp=2 schedule=zb-h1,dp=4 zero=1"
exhaustive && ranks=8 some=quick
layouts() {  # layouts NAME DECK OVERRIDE...
  local name=$1 deck=$2
  shift 2
  run $ranks verify "$root/inputs/$deck" --layouts "$some" "$@"
  expect "$name" 0 "VALID"
  check "... the last line says so" eval 'tail -n 1 stdout | grep -qE "^VALID: [0-9]+ layouts train as one rank does"'
}
layouts "gpt, its lower part" verify_gpt.json 'train.freeze=["embedding.*","blocks.0.*","blocks.1.*"]'
layouts "gpt, parts of blocks" verify_gpt.json 'train.freeze=["*"]' \
  'train.unfreeze=["*.bias","*.0.feed_forward.*","final_norm.weight"]'
layouts "fastconformer, its lower part" verify_asr.json 'train.freeze=["encoder.subsampling.*","encoder.blocks.0.*"]'
layouts "fastconformer, parts of blocks" verify_asr.json 'train.freeze=["encoder.*"]' \
  'train.unfreeze=["*.bias","*.convolution.*"]'
run 4 verify "$root/inputs/verify_asr.json" --layouts "dp=2 pp=2,dp=4 zero=3,dp=2 tp=2" train.reproducible=true \
  train.freeze=encoder.subsampling.*
expect "reproducible" 0 "VALID: 3 layouts"
limit=60

# Fine-tuning from parameters of another run, a part of which is trained.
parameters() { tensors "$1" | grep "^parameters/" | grep -E -- "$2"; }
same_parameters() { diff <(parameters "$1" "$3") <(parameters "$2" "$3") >/dev/null && [ -n "$(parameters "$1" "$3")" ]; }
memory() { sed -nE "s/^ *$2 +([0-9.]+) ([KMG]iB|B).*/\1 \2/p" "$1" | head -n 1; }
train 1 first train.max_steps=10 optimizer.decay_steps=20
expect "the run that is taken from" 0 "first/checkpoints/step_00000010"
fine=(checkpoint.init_from=first 'train.freeze=["embedding.*","blocks.0.*"]' optimizer.decay_steps=20)
train 1 tuned "${fine[@]}" train.max_steps=6
expect "a part of it is trained" 0 "warm start from first" "frozen"
check "... less memory for gradients" test "$(memory tuned/start.txt gradients)" != "$(memory first/start.txt gradients)"
check "... and for moments" test "$(memory tuned/start.txt "optimizer moments")" != "$(memory first/start.txt "optimizer moments")"
check "... what is frozen is what it was" same_parameters first tuned "embedding|blocks\.0"
check "... all else is not" eval '! same_parameters first tuned "blocks\.1"'
check "... it has no moments in the checkpoint" eval '! tensors tuned | grep -E "^optimizer/.*(embedding|blocks\.0)"'
check "... the rest has" eval 'tensors tuned | grep -qE "^optimizer/m/blocks\.1"'

train 1 halves "${fine[@]}" train.max_steps=3
expect "half of it" 0 "3 (3 now)"
train 1 halves "${fine[@]}" train.max_steps=6
expect "... goes on" 0 "resumed from halves"
check "... to the same weights" same_tensors tuned halves
train 2 sharded "${fine[@]}" train.max_steps=6 parallel.zero=3 train.micro_batch_size=6
expect "with parameters of two ranks" 0 "warm start from first"
check "... the same losses to 1e-5" close_losses tuned sharded 1e-5
check "... what is frozen is what it was" same_parameters first sharded "embedding|blocks\.0"
run 0 eval tuned
expect "the checkpoint is that of a whole model" 0
train 1 halves 'train.freeze=["embedding.*"]' optimizer.decay_steps=20 train.max_steps=8
expect "a resumed run has no moments of what was frozen" 6 "not in the checkpoint: optimizer/m/blocks.0"

train 2 typo 'train.freeze=["block.*"]'
expect "a pattern that matches nothing" 2 "train.freeze: 'block.*' matches no parameter" "the nearest are"
train 2 nothing 'train.freeze=["*"]'
expect "nothing is left to train" 2 "train.freeze: every parameter is frozen"
train 1 half 'train.freeze=["head.*"]'
expect "one of two tied weights" 2 "one of two tied weights"
