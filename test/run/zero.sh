#!/usr/bin/env bash
# parallel.zero: every stage trains the same weights, writes and reads the same checkpoints;
# unsupported combinations are refused.
. "$(dirname "$0")/lib/common.sh"

fixed=(train.reproducible=true train.global_batch_size=16 eval.sample_tokens=8 optimizer.decay_steps=20)
train 1 whole "${fixed[@]}"
expect "one rank that has everything" 0 "summary:"
started "... as it says" whole "zero: stage 0: nothing is sharded"
for stage in 1 3 $(exhaustive && echo 2); do
  train 2 "zero$stage" "${fixed[@]}" parallel.zero=$stage
  expect "stage $stage on 2 ranks" 0 "zero stage $stage" "--- sample after 20 steps"
  started "... as it says" "zero$stage" "zero: stage $stage" "in 2 slices, 1 group of 2 ranks"
  check "stage $stage: the losses, bit by bit" same_losses whole "zero$stage"
  check "stage $stage: the weights, bit by bit" same_weights whole "zero$stage"
done
check "stage 3 writes the same text" diff whole/samples zero3/samples
train 4 pairs "${fixed[@]}" parallel.zero=3 parallel.zero_group=2 train.micro_batch_size=2
expect "stage 3 in groups of two" 0 "summary:"
started "... as it says" pairs "in 2 slices, 2 groups of 2 ranks" "between the groups"
train 1 pairs_whole "${fixed[@]}" train.micro_batch_size=2
check "groups: the weights, bit by bit" same_weights pairs_whole pairs

train 2 moved "${fixed[@]}" parallel.zero=3 train.max_steps=10
expect "the first half with stage 3" 0 "moved/checkpoints/step_00000010"
train 1 moved "${fixed[@]}" parallel.zero=1
expect "the second with stage 1 on one rank" 0 "resumed from moved/checkpoints/step_00000010" "20 (10 now)"
check "moved: the weights of straight through, bit by bit" same_weights whole moved

run 2 eval zero3
expect "eval with shared parameters" 0 "val_loss="
mine=$(grep -o 'val_loss=[0-9.]*' out)
run 1 eval zero1
expect "eval of the same weights on one rank" 0 "$mine"
run 2 generate zero3 --tokens 20 --seed 3
expect "generate with shared parameters" 0
cp stdout together.txt
run 1 generate zero1 --tokens 20 --seed 3
check "... writes what one rank writes" diff stdout together.txt

# Slices of layers that ranks share, too.
model=(train.precision=fp64 model.n_head=4 model.dropout=0.1 optimizer.decay_steps=20)
train 1 alone "${model[@]}"
expect "one rank in fp64" 0 "summary:"
for stage in 1 2 $(exhaustive && echo 3); do
  train 4 "both$stage" "${model[@]}" parallel.tensor=2 parallel.sequence=true parallel.zero=$stage train.max_steps=10
  expect "stage $stage with tensor parallelism" 0 "tp=2" "zero stage $stage"
  started "... as it says" "both$stage" "zero: stage $stage" "in 2 slices"
done
train 4 both1 "${model[@]}" parallel.tensor=4 parallel.zero=2
expect "... goes on in another layout" 0 "resumed from both1/checkpoints/step_00000010" "20 (10 now)"
train 2 both2 "${model[@]}" parallel.zero=3
expect "... on two ranks with slices alone" 0 "resumed from both2/checkpoints/step_00000010" "20 (10 now)"
if exhaustive; then
  train 1 both3 "${model[@]}"
  expect "... on one rank" 0 "resumed from both3/checkpoints/step_00000010" "20 (10 now)"
fi
for stage in 1 2 $(exhaustive && echo 3); do
  check "... as one rank all the way ($stage)" close_losses alone "both$stage" 1e-12
done
run 0 generate alone --tokens 20 --temperature 0
cp stdout text
train 4 shared "${model[@]}" parallel.tensor=2 parallel.zero=3
expect "all the way with both" 0 "--- sample after 20 steps"
check "... its losses" close_losses alone shared 1e-12
run 4 generate shared --tokens 20 --temperature 0 --tensor 2
expect "four ranks generate with slices of parts" 0
check "... the same text" cmp text stdout

train 2 no parallel.zero=4
expect "stage 4" 2 "parallel.zero = 4 is out of range; legal: 0 <= value <= 3"
train 2 no parallel.zero_group=2
expect "groups without a stage" 2 "is for parallel.zero = 1, 2 or 3"
train 2 no parallel.zero=2 parallel.zero_prefetch=2
expect "prefetch without stage 3" 2 "is for parallel.zero = 3, not 2"
train 2 no parallel.zero=1 parallel.zero_group=3
expect "groups that do not divide the ranks" 2 "parallel.zero_group = 3 does not divide the 2 data-parallel ranks" \
  "all, node, or one of 1, 2"
check "nothing was started" absent no/checkpoints
