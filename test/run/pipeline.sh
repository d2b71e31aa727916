#!/usr/bin/env bash
# Layers distributed over stages, and positions over context ranks, as the user sees them: the
# losses, text and checkpoints are those of one rank, and runs continue in another layout.
. "$(dirname "$0")/lib/common.sh"
model=(model.n_layer=4 model.n_head=4 model.dropout=0.1 train.precision=fp64 optimizer.decay_steps=20)

train 1 one "${model[@]}"
expect "one rank" 0 "summary:"
shared() {  # shared NAME RANKS OVERRIDE...: equals one rank
  local name=$1 ranks=$2
  shift 2
  train "$ranks" "$name" "${model[@]}" "$@"
  expect "$name" 0 "summary:" "--- sample after 10 steps ---" "--- sample after 20 steps ---"
  check "$name: the losses of one rank to 1e-12" close_losses one "$name" 1e-12
  check "$name: its evaluations to 1e-12" close_evaluations one "$name"
  check "$name: its text" diff one/samples "$name/samples"
  check "$name: the arena is used as planned" eval "grep -F 'activations: peak' out | awk '{ exit !(\$4 == \$7 && \$5 == \$8) }'"
}
evaluations() { sed -nE 's/^\{"step":([0-9]+),.*"val_loss":([0-9.e+-]+).*/\1 \2/p' "$1/metrics.jsonl"; }
close_evaluations() {
  [ "$(evaluations "$1" | wc -l)" = 2 ] && paste -d' ' <(evaluations "$1") <(evaluations "$2") |
    awk '{ d = $2 - $4; if (d < 0) d = -d; if (NF != 4 || $1 != $3 || d > 1e-12 * $2) { print; bad = 1 } } END { exit bad }'
}
shared interleaved 2 parallel.pipeline=2 parallel.schedule=interleaved parallel.virtual_stages=2
expect "... says so" 0 "pp=2"
shared zb-h1 2 parallel.pipeline=2 parallel.schedule=zb-h1 parallel.transport=mpi
shared both 4 parallel.pipeline=2 parallel.tensor=2 parallel.sequence=true
shared all_axes 4 parallel.context=2 parallel.pipeline=2
if exhaustive; then
  shared 1f1b 2 parallel.pipeline=2
  shared gpipe 2 parallel.pipeline=2 parallel.schedule=gpipe parallel.transport=mpi
  shared context 2 parallel.context=2
  shared four 4 parallel.pipeline=4 parallel.schedule=zb-h1
  shared sharded 4 parallel.pipeline=2 parallel.zero=3
  shared context_sharded 4 parallel.context=2 parallel.zero=3
fi
# The control: the comparison must be able to fail.
train 2 other "${model[@]}" parallel.pipeline=2 run.seed=1
check "another seed, other losses" eval '! close_losses one other 1e-12'

# One run through five layouts; each stops at a given step and the next continues.
moved() {  # moved RANKS STOP OVERRIDE...
  local ranks=$1 stop=$2
  shift 2
  train "$ranks" moved "${model[@]}" fault.enable=true fault.stop_step="$stop" "$@"
}
moved 2 4 parallel.pipeline=2 parallel.schedule=interleaved parallel.virtual_stages=2
expect "a run begins on two stages" 75 "moved/checkpoints/step_00000004"
moved 2 8
expect "... goes on on two data ranks" 75 "resumed from moved/checkpoints/step_00000004"
moved 2 12 parallel.tensor=2
expect "... on two tensor ranks" 75 "resumed from moved/checkpoints/step_00000008"
moved 4 16 parallel.pipeline=2 parallel.context=2 parallel.zero=2
expect "... on stages and context ranks" 75 "resumed from moved/checkpoints/step_00000012"
moved 1 -1
expect "... ends on one rank" 0 "resumed from moved/checkpoints/step_00000016" "20 (4 now)"
check "... with the losses of one rank" close_losses one moved 1e-12
check "a tied weight is stored once" eval '[ "$(tensors both | grep -c "^parameters/.*\(head\|tokens\)")" = 1 ]'
names() { tensors "$1" | sed 's/ .*//'; }
for name in both all_axes moved; do
  check "the checkpoint of $name has the tensors of one rank's" same "names one" "names $name"
done

# A model that was trained in pieces is used in one piece, or in other pieces.
run 1 eval one
one=$(grep -o 'val_loss=[0-9.]*' out)
run 0 generate one --tokens 40 --temperature 0
cp stdout text
for name in all_axes $(exhaustive && echo four sharded); do
  run 2 eval "$name"
  expect "eval of $name on two ranks" 0 "$one"
  run 2 generate "$name" --tokens 40 --temperature 0 --tensor 2
  expect "generate from $name on two ranks" 0
  check "... writes what one rank wrote" cmp text stdout
  run 0 generate "$name" --tokens 40 --temperature 0
  expect "generate from $name on one" 0
  check "... the same" cmp text stdout
done
