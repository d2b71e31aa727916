#!/usr/bin/env bash
# train.recompute: less memory is planned and used, and no number changes.
. "$(dirname "$0")/lib/common.sh"
model=(model.dropout=0.1 train.micro_batch_size=12 log.verbose=true)

# Bytes of activations in the plan, as exactly as they are printed.
planned() { sed -nE 's/^ *activations +([0-9.]+) ([KMG]iB|B).*/\1 \2/p' "$1.out" | head -n 1 |
  awk '{ f["B"] = 1; f["KiB"] = 1024; f["MiB"] = 1024 ^ 2; f["GiB"] = 1024 ^ 3; print $1 * f[$2] }'; }
less() { awk -v a="$(planned "$1")" -v b="$(planned "$2")" 'BEGIN { exit !(a > 0 && a < b) }'; }

for precision in fp32 bf16-mixed; do
  for how in none selective full; do
    train 1 "$precision.$how" "${model[@]}" model.n_layer=6 train.precision=$precision train.recompute=$how
    expect "$precision, $how" 0 "summary:" "--- sample after 20 steps ---"
    cp out "$precision.$how.out"
    check "$precision, $how: the arena is used as planned" eval "grep -F 'activations: peak' out | awk '{ exit !(\$4 == \$7 && \$5 == \$8) }'"
  done
  for how in selective full; do
    check "$precision, $how: the losses bit by bit" same_losses "$precision.none" "$precision.$how"
    check "$precision, $how: the weights bit by bit" same_weights "$precision.none" "$precision.$how"
    check "$precision, $how: its repeated work is told apart" has "$precision.$how.out" "for train.recompute, which mfu does not count"
  done
  check "$precision: selective plans less than none" less "$precision.selective" "$precision.none"
  check "$precision: full plans less than selective" less "$precision.full" "$precision.selective"
  check "$precision: nothing is repeated without it" lacks "$precision.none.out" "for train.recompute"
done

# A run continues with another choice: it is not part of the trained state.
train 1 moved "${model[@]}" model.n_layer=6 train.max_steps=10 optimizer.decay_steps=20
expect "the first half keeps everything" 0 "moved/checkpoints/step_00000010"
train 1 moved "${model[@]}" model.n_layer=6 train.recompute=full
expect "... the second computes again" 0 "resumed from moved/checkpoints/step_00000010"
check "... and ends with the same bits" same_weights fp32.none moved
train 2 shared "${model[@]}" model.n_layer=6 parallel.tensor=2 parallel.sequence=true
expect "two ranks share the layers" 0 "summary:"
train 2 again "${model[@]}" model.n_layer=6 parallel.tensor=2 parallel.sequence=true train.recompute=full
expect "... and compute again" 0 "summary:"
check "... the weights bit by bit" same_weights shared again
train 1 other "${model[@]}" model.n_layer=6 train.recompute=full run.seed=1
check "another seed, other weights" eval '! same_weights fp32.none other'
run 0 train "$debug" train.recompute=some run.dir=no
expect "an unknown choice" 2 "train.recompute" "selective"
run 0 train --describe
expect "it is described" 0 "train.recompute"

# Attention in tiles computes again, too, and adds gradients in another order.
exact=(train.precision=fp64 train.max_steps=6 optimizer.decay_steps=6 optimizer.warmup_steps=1)
train 1 at_once "${exact[@]}"
train 1 in_tiles "${exact[@]}" train.attention_chunk=5
expect "attention in tiles" 0 "summary:"
check "... the losses of attention at once" close_losses at_once in_tiles 1e-12
run_broken tile-gradient-lost 1 train "$debug" "${small[@]}" run.dir=lost "${exact[@]}" train.attention_chunk=5
check "... lost gradients of keys are noticed" eval '! close_losses at_once lost 1e-6'
