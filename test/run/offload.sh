#!/usr/bin/env bash
# parallel.offload: a run with its state in a file trains the same weights and resumes like one with
# its state in memory; unsupported combinations are refused.
. "$(dirname "$0")/lib/common.sh"

fixed=(train.reproducible=true train.global_batch_size=16 optimizer.decay_steps=20)
train 1 whole "${fixed[@]}"
expect "state on the device" 0 "summary:"
started "... as it says" whole "offload: nothing"
mkdir disk
for stage in 0 3; do
  train 2 "file$stage" "${fixed[@]}" parallel.zero=$stage parallel.offload=file parallel.offload_dir=disk
  expect "a file, stage $stage" 0 "summary:"
  started "a file, stage $stage: said" "file$stage" "in a file in disk" "file per rank"
  check "a file, stage $stage: the weights, bit by bit" same_weights whole "file$stage"
done
check "nothing is left behind" test -z "$(ls -A disk)"

train 2 sums "${fixed[@]}" parallel.zero=2 train.micro_batch_size=4 parallel.offload=file parallel.offload_gradients=true parallel.offload_dir=disk
expect "gradients in a file" 0 "summary:"
started "... as it says" sums "every micro-batch is added there"
train 1 held "${fixed[@]}" train.micro_batch_size=4
check "gradients in a file: the weights, bit by bit" same_weights held sums
train 2 replicas "${fixed[@]}" parallel.zero=2 parallel.zero_group=1 train.micro_batch_size=4 parallel.offload=file parallel.offload_gradients=true parallel.offload_dir=disk
expect "gradients of replicas in a file" 0 "summary:"
check "... the weights, bit by bit" same_weights held replicas
train 2 no parallel.offload_gradients=true parallel.zero=2
expect "gradients without offload" 2 "is for parallel.offload = "

train 2 moved "${fixed[@]}" parallel.offload=file train.max_steps=10
expect "the first half with a file" 0 "moved/checkpoints/step_00000010"
train 1 moved "${fixed[@]}" parallel.zero=1
expect "the second without" 0 "resumed from moved/checkpoints/step_00000010" "20 (10 now)"
check "moved: the weights of straight through, bit by bit" same_weights whole moved

train 2 host device=cpu parallel.offload=optimizer
expect "host memory beside the cpu" 0 "  offload    ignored on cpu"
train 2 no parallel.offload=all
expect "parameters without stage 3" 2 "nearest legal: zero = 3"
train 2 no parallel.offload_dir=disk
expect "a directory without a file" 2 "is for parallel.offload = \"file\""
train 2 no parallel.offload=file parallel.offload_dir=/proc/no/such/place
expect "no such place" 6 "parallel.offload: cannot make a file in /proc/no/such/place" "set parallel.offload_dir"

# Disks that are too small are detected before the first step, not when they are full.
if mount -t tmpfs -o size=64k tmpfs disk 2>/dev/null; then
  mounted=$work/disk
  train 2 full parallel.offload=file parallel.offload_dir=disk
  expect "a disk too small" 6 "cannot reserve" "No space left on device" "set parallel.offload_dir"
  check "... before anything was trained" absent full/checkpoints/step_00000010
  train 2 small parallel.offload=file parallel.offload_dir=disk model.n_layer=1 model.n_head=1 model.n_embd=8
  expect "a disk in memory" 0 "summary:"
  started "... is named" small "which saves no memory"
  umount disk && mounted=""
else skip "a disk too small" "no tmpfs can be mounted"; fi
