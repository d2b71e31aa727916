#!/usr/bin/env bash
# Layers shared by several ranks as the user sees them: the same losses, the same checkpoints, the same text.
. "$(dirname "$0")/lib/common.sh"
model=(model.n_head=4 model.dropout=0.1 train.precision=fp64 log.verbose=true)

train 1 one "${model[@]}"
expect "one rank" 0 "summary:" "not divided"
shared() {  # shared NAME RANKS OVERRIDE...: equals one rank
  local name=$1 ranks=$2
  shift 2
  train "$ranks" "$name" "${model[@]}" "$@"
  expect "$name" 0 "summary:" "tp: " "--- sample after 20 steps ---"
  check "$name: the losses of one rank to 1e-12" close_losses one "$name" 1e-12
  check "$name: its text" cmp one/samples/step_00000020.txt "$name/samples/step_00000020.txt"
  check "$name: the arena is used as planned" eval "grep -F 'activations: peak' out | awk '{ exit !(\$4 == \$7 && \$5 == \$8) }'"
}
shared two 2 parallel.tensor=2
expect "... says so" 0 "tp=2" "over 2 ranks"
shared both 4 parallel.tensor=2 parallel.sequence=true
expect "... says so" 0 "with sequence parallelism"
shared far 4 parallel.tensor=2 parallel.order=dp-tp-cp-pp data.reader=node
if exhaustive; then
  shared two_sequence 2 parallel.tensor=2 parallel.sequence=true
  shared four_mpi 4 parallel.tensor=4 parallel.transport=mpi model.n_kv_head=4
fi
# The control: the comparison must be able to fail.
train 2 other "${model[@]}" parallel.tensor=2 run.seed=1
check "another seed, other losses" eval '! close_losses one other 1e-12'

# A run continues with other shares.
train 2 moved "${model[@]}" parallel.tensor=2 train.max_steps=10 optimizer.decay_steps=20
expect "the first half on two ranks" 0 "moved/checkpoints/step_00000010"
train 4 moved "${model[@]}" parallel.tensor=4 parallel.sequence=true
expect "... the second on four" 0 "resumed from moved/checkpoints/step_00000010" "20 (10 now)"
check "... ends as one rank does" close_losses one moved 1e-12
run 0 generate one --tokens 40 --temperature 0
cp stdout text
run 0 generate moved --tokens 40 --temperature 0
check "one process writes its text" cmp text stdout
run 2 generate moved --tokens 40 --temperature 0 --tensor 2
expect "two ranks generate together" 0
check "... the same text" cmp text stdout
run 2 eval moved --tensor 2
expect "two ranks evaluate together" 0 "val_loss="
run 2 generate moved --tensor 3
expect "more ranks than there are" 2 "--tensor"

run 2 train "$debug" run.dir=no parallel.tensor=2 model.n_head=1 model.n_embd=32
expect "heads that cannot be divided" 2 "model.n_head = 1 cannot be divided among parallel.tensor = 2 ranks" "nearest legal"
run 3 train "$debug" run.dir=no parallel.tensor=2
expect "ranks that cannot be divided" 2 "3 ranks cannot be divided"
run 2 train "$debug" run.dir=no parallel.sequence=true
expect "sequence parallelism of one rank" 2 "parallel.sequence = true"
