#!/usr/bin/env bash
# train.reproducible: the same bits for 1, 2 and 4 ranks with the same global batch and micro-batch.
. "$(dirname "$0")/lib/common.sh"

same_bits() {  # same_bits NAME OVERRIDE...
  local name=$1 ranks
  shift
  for ranks in 1 2 4; do
    train "$ranks" "$name.$ranks" train.reproducible=true train.global_batch_size=16 "$@"
    expect "$name on $ranks rank(s)" 0 "summary:"
  done
  for ranks in 2 4; do
    check "$name: the losses of $ranks ranks are those of 1, bit by bit" same_losses "$name.1" "$name.$ranks"
    check "$name: the weights of $ranks ranks are those of 1, bit by bit" same_weights "$name.1" "$name.$ranks"
  done
}
same_bits fp32
same_bits bf16 train.precision=bf16-mixed
same_bits true train.precision=bf16-true
same_bits fp16 train.precision=fp16-mixed train.loss_scale_window=1
same_bits dropout model.dropout=0.1 model.norm=rmsnorm model.activation=swiglu model.position=rope model.bias=false
train 2 mpi train.reproducible=true train.global_batch_size=16 parallel.transport=mpi
expect "fp32 over MPI" 0 "summary:"
check "the transport changes no bit" same_weights fp32.1 mpi
# The control: another order of summation must be seen.
train 1 control train.reproducible=true train.global_batch_size=16 run.seed=1
check "another seed, other weights" eval '! same_weights fp32.1 control'
