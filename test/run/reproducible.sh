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
if exhaustive; then
  same_bits bf16 train.precision=bf16-mixed
  same_bits true train.precision=bf16-true
  same_bits fp16 train.precision=fp16-mixed train.loss_scale_window=1
fi
same_bits dropout train.precision=bf16-mixed model.dropout=0.1 model.norm=rmsnorm model.activation=swiglu model.position=rope model.bias=false
train 2 mpi train.reproducible=true train.global_batch_size=16 parallel.transport=mpi
expect "fp32 over MPI" 0 "summary:"
check "the transport changes no bit" same_weights fp32.1 mpi

# In a smaller team than was promised, oneDNN would leave out a part of each product.
export OMP_NUM_THREADS=2
train 1 team
expect "on a team of two threads" 0 "summary:"
for given in OMP_THREAD_LIMIT=1 OMP_DYNAMIC=true OMP_MAX_ACTIVE_LEVELS=0; do
  export "${given?}"
  train 1 "$given"
  expect "$given" 0 "summary:"
  check "... has the same losses" close_losses team "$given" 1e-5
  unset "${given%=*}"
done
export OMP_NUM_THREADS=1

# Stages, schedules, ZeRO and accumulation change no bit either.
deep=(train.reproducible=true train.global_batch_size=16 model.n_layer=4 model.dropout=0.1 optimizer.grad_clip=0.1 optimizer.decay_steps=20)
layouts=("2 parallel.pipeline=2 parallel.schedule=interleaved parallel.virtual_stages=2"
  "4 parallel.pipeline=2 parallel.schedule=zb-h1 parallel.zero=2" "4 parallel.zero=3 parallel.zero_group=2")
exhaustive && layouts+=("2 parallel.pipeline=2" "4 parallel.pipeline=2 parallel.schedule=gpipe parallel.zero=3"
  "4 parallel.pipeline=4 parallel.transport=mpi")
for tied in true $(exhaustive && echo false); do
  train 1 "tied.$tied" "${deep[@]}" model.tied=$tied
  expect "tied=$tied on one rank" 0 "summary:"
  for each in "${layouts[@]}"; do
    read -r ranks layout <<<"$each"
    name=$tied.$(echo "$layout" | tr -d ' ' | sed 's/parallel\.//g')
    # shellcheck disable=SC2086
    train "$ranks" "$name" "${deep[@]}" model.tied=$tied $layout
    expect "$name on $ranks ranks" 0 "summary:"
    check "... the losses of one rank, bit by bit" same_losses "tied.$tied" "$name"
    check "... the weights of one rank, bit by bit" same_weights "tied.$tied" "$name"
  done
done
# ... and may change during the run.
train 2 moved "${deep[@]}" fault.enable=true fault.stop_step=5 parallel.pipeline=2 parallel.schedule=interleaved parallel.virtual_stages=2
expect "a run begins on two stages" 75 "moved/checkpoints/step_00000005"
train 4 moved "${deep[@]}" fault.enable=true fault.stop_step=9 parallel.zero=3
expect "... goes on on four data ranks" 75 "resumed from moved/checkpoints/step_00000005"
train 4 moved "${deep[@]}" fault.enable=true fault.stop_step=13 parallel.pipeline=2 parallel.zero=1 parallel.schedule=zb-h1
expect "... on stages of two" 75 "resumed from moved/checkpoints/step_00000009"
train 1 moved "${deep[@]}"
expect "... ends on one rank" 0 "resumed from moved/checkpoints/step_00000013"
check "... with its losses, bit by bit" same_losses tied.true moved
check "... and its weights" same_weights tied.true moved
# The reference for a given number of tensor ranks.
train 2 tensor "${deep[@]}" parallel.tensor=2
train 4 tensor_data "${deep[@]}" parallel.tensor=2 parallel.zero=2
train 4 tensor_stages "${deep[@]}" parallel.tensor=2 parallel.pipeline=2
check "two tensor ranks, data ranks: the same bits" same_weights tensor tensor_data
check "two tensor ranks, stages: the same bits" same_weights tensor tensor_stages

# Negative control: another order of summation must be detected.
train 1 control train.reproducible=true train.global_batch_size=16 run.seed=1
check "another seed, other weights" eval '! same_weights fp32.1 control'
