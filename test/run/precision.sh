#!/usr/bin/env bash
# Every precision learns what fp32 learns, continues bit by bit, and reports changes of its loss
# scale; and steps that are queued ahead change nothing.
. "$(dirname "$0")/lib/common.sh"

falls() { losses "$1" | awk 'NR == 1 { first = $2 } { last = $2 } END { exit !(last < first - 0.3) }'; }
updates() { sed -nE 's/.* ([0-9]+) updates.*/\1/p' out | tail -n 1; }

train 1 fp32
expect "fp32" 0 "summary:"
# Logits stay below 4 in these steps. Rounding them, and the terms of their sums, to the 8 bits of
# bf16 changes the loss of a token by at most half a step, 4 x 2^-8, and the mean of 768 tokens by a
# standard deviation below that over sqrt(768); five of them are 0.0028. bf16-true rounds weights,
# by whole steps and alike for all tokens, and a logit is a sum over 32 of them: 5 x 8 x 2^-8 /
# sqrt(32) = 0.028. f16 has three bits more than bf16: 0.00035.
for precision in bf16-mixed:0.0028 bf16-true:0.028 fp16-mixed:0.00035; do
  name=${precision%:*}
  train 2 "$name" train.precision="$name"
  expect "$name" 0 "summary:" "20 updates"
  check "$name: the loss falls" falls "$name"
  check "$name: the losses of fp32 to ${precision#*:}" close_losses fp32 "$name" "${precision#*:}"
  check "$name: but not fp32 itself" eval "! close_losses fp32 $name 1e-6"
  run 2 eval "$name"
  expect "$name: evaluation" 0 "val_loss="
  run 0 generate "$name" --tokens 20
  expect "$name: text" 0
done
check "the loss scale is logged" matches fp16-mixed/log.txt "step=20 loss=.* loss_scale=65536"
check "... on every line of the metrics" test "$(grep -c '"loss_scale":65536' fp16-mixed/metrics.jsonl)" = 20
check "... and not where there is none" lacks bf16-true/log.txt " loss_scale="

# With a window of 1 every good step doubles the scale: 2^16 x 2^10 is more than f16 gradients can hold.
moving=(train.precision=fp16-mixed train.loss_scale_window=1)
train 2 moving "${moving[@]}"
expect "a loss scale that grows overflows and comes back" 0 "overflow with loss scale" "step skipped, the next scale is"
check "... is no violation of nan_policy stop, and no update" test "$(updates)" -lt 20
check "... and the loss falls" falls moving

for name in moving bf16-true; do
  options=(train.precision="$name")
  [ "$name" = bf16-true ] || options=("${moving[@]}")
  train 2 "killed_$name" "${options[@]}" fault.enable=true fault.kill_rank=1 fault.kill_step=14 checkpoint.async=false
  expect_killed "$name: killed"
  train 2 "killed_$name" "${options[@]}"
  expect "$name: continues" 0 "resumed from killed_$name/checkpoints/step_00000010"
  check "$name: the losses of straight through, bit by bit" same_losses "$name" "killed_$name"
  check "$name: every tensor of straight through, bit by bit" same_tensors "$name" "killed_$name"
  run 0 inspect "$name" --verify
  expect "$name: inspect" 0
done

# No gradient fits into f16 at a fixed scale of 2^40: nan_policy decides what happens.
fixed=(train.precision=fp16-mixed train.loss_scale=1099511627776 log.interval=100 eval.interval=0)
for queued in 1 2; do
  train 2 "stop_$queued" "${fixed[@]}" train.steps_in_flight="$queued"
  expect "a constant scale that overflows, $queued in flight" 4 "step 1: the loss is" "have gradients that are not finite"
  train 2 "limit_$queued" "${fixed[@]}" train.nan_policy=skip train.nan_skip_limit=3 train.steps_in_flight="$queued"
  expect "... is skipped so often, $queued in flight" 4 "step skipped (3 in a row)" "step 4: the loss is" \
    "3 steps in a row were skipped"
done

# Steps are queued ahead: the run is the same, and so are the messages about errors.
sparse=(log.interval=7 train.precision=fp64)
train 2 at_once "${sparse[@]}"
expect "results read after each step" 0 "20 updates"
started "... which is said" at_once "host sync                        every step"
train 2 queued "${sparse[@]}" train.steps_in_flight=3
expect "results read two steps later" 0 "20 updates"
started "... which is said" queued "2 step(s) later"
check "... the same losses" same_losses at_once queued
check "... the same tensors" same_tensors at_once queued
check "... lines of the same steps" test "$(losses queued | cut -d' ' -f1 | tr '\n' ' ')" = "1 7 10 14 20 "
train 2 nan log.interval=100 fault.enable=true fault.nan_step=5 train.nan_policy=stop train.steps_in_flight=2
expect "a loss that is not a number, queued ahead" 4 "step 5: the loss is" "tensors have gradients that are not finite" \
  "blocks."
train 2 skips log.interval=100 fault.enable=true fault.nan_step=5 train.nan_policy=skip train.steps_in_flight=2
expect "... is skipped" 0 "step 5: loss" "step skipped (1 in a row)" "20 (20 now), 480 sequences used, 19 updates"
train 2 stops log.interval=100 fault.enable=true fault.stop_step=13 train.steps_in_flight=2
expect "a stop takes what is in flight" 75 "stopping after step 13" "13 (13 now)"
train 2 stops log.interval=100 train.steps_in_flight=2
expect "... and continues" 0 "resumed from stops/checkpoints/step_00000013" "20 (7 now)"
train 2 straight log.interval=100
check "... as if nothing had been" same_tensors straight stops

train 2 refused train.loss_scale=1024
expect "a loss scale without fp16" 2 "train.loss_scale = 1024 is for train.precision"
train 2 refused train.precision=fp8
expect "a precision that does not exist" 2 "bf16-true" "fp16-mixed"
