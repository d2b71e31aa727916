#!/usr/bin/env bash
# choir verify, plan and reproducible training of a speech model: every layout trains like one rank,
# including micro-batches of several shapes and of padding. test/run/long/verify.sh runs more.
. "$(dirname "$0")/lib/common.sh"
deck=$root/inputs/verify_asr.json
limit=120

run 4 verify "$deck" --layouts quick --json rows.jsonl
expect "speech: every value of every axis on 4 ranks" 0 "precision  fp64" "random utterances" "with every value of every axis"
check "... the last line says so" eval 'tail -n 1 stdout | grep -qE "^VALID: [0-9]+ layouts train as one rank does"'
check "... there are at least 32 rows" eval '[ "$(grep -c "^dp=.* ok$" stdout)" -ge 32 ]'
check "... all within 1e-12" eval '! grep -oE "\"tolerance\":[^,]*" rows.jsonl | grep -v "\"tolerance\":1e-12"'
check "... ranks without a context axis or tiles" eval '! grep -E "cp=[2-9]|tile=" rows.jsonl'
# Three ranks share eight micro-batches: one of them has a batch of padding.
if exhaustive; then
  run 4 verify "$deck" --steps 20 --layouts \
    "dp=3,dp=3 zero=3,dp=4 zero=2,tp=4 sequence=true,pp=4 schedule=gpipe recompute=full,pp=2 schedule=interleaved virtual_stages=2 dp=2,pp=2 schedule=zb-h1 tp=2 sequence=true"
  expect "... after 20 steps too" 0 "VALID: 7 layouts"
fi
run 4 verify "$deck" train.micro_batches=3 --layouts \
  "dp=4,dp=4 zero=1,dp=4 zero=3 zero_group=2,dp=2 pp=2 schedule=zb-h1,dp=2 tp=2 sequence=true zero=2"
expect "a rank that has padding only" 0 "VALID: 5 layouts"
run 4 verify "$deck" model.causal=true model.normalise=false model.subsampling=8 model.context_style=chunked \
  model.left_context=4 model.right_context=1 --layouts "tp=2 dp=2,pp=2 recompute=selective,dp=3 zero=2,tp=4 sequence=true"
expect "a model for streaming" 0 "VALID: 4 layouts"
# Statistics are those of global micro-batches, and running ones are state; three ranks: one has
# padding.
run 4 verify "$deck" model.conv_norm=batchnorm --steps 5 --layouts \
  "dp=2 tp=2 sequence=true,pp=2 dp=2,pp=2 tp=2,dp=4 zero=3,dp=3,dp=2 zero=2 recompute=full,recompute=selective"
expect "batch normalisation" 0 "state 1e-12" "VALID: 7 layouts"

# Frames see only themselves: gradients of the weights of positions are rounding errors, d = 1e-18
# per number, from which LARS makes a step of rate x coefficient x |w| x d / epsilon = 1 x 0.02 x 4
# x 1e-18 / 1e-3 = 8e-17. Moments are compared on a scale of at least 1/1000 of the largest, that of
# biases, 0.1 of a rate of 1: 8e-17 / 1e-4 = 8e-13.
run 4 verify "$deck" model.left_context=0 model.right_context=0 optimizer.name=lars optimizer.learning_rate=1 \
  optimizer.trust_coefficient=0.02 optimizer.weight_decay=0 optimizer.epsilon=1e-3 --layouts "dp=2 tp=2,dp=4 zero=1,tp=4"
expect "LARS on gradients that consist of rounding errors" 0 "VALID: 3 layouts"

# Muon on kernels of convolutions; test/run/long/verify_muon.sh has more layouts, and models of speech and text.
run 4 verify "$deck" optimizer.name=muon optimizer.learning_rate=0.01 optimizer.muon.adamw_learning_rate=3e-3 \
  --layouts "dp=2 tp=2,dp=4 zero=3,pp=2 dp=2"
expect "Muon" 0 "VALID: 3 layouts"

few="dp=3 zero=3,tp=2 sequence=true,pp=2 recompute=full,dp=2 tp=2 zero=1,tp=2 pp=2 schedule=zb-h1"
for precision in bf16-mixed $(exhaustive && echo fp32); do
  run 4 verify "$deck" --layouts "$few" --precision "$precision"
  expect "$precision, by the rounding of one rank" 0 "4 x the distance of one rank in $precision" "VALID: 5 layouts"
done

# Options that speech models do not have are refused by name.
run 2 verify "$deck" --layouts "cp=2"
expect "a context axis" 2 "parallel.context = 2 shares tokens of a sequence" "legal: 1"
run 2 verify "$deck" --layouts "tile=4"
expect "tiles" 2 'model.tile is for model.type = "gpt"'
run 2 verify "$deck" --layouts "micro=2"
expect "sequences of a micro-batch" 2 'train.micro_batch_size is for model.type = "gpt"'
run 1 verify "$deck" train.label_smoothing=0.1
expect "label smoothing" 2 'train.label_smoothing is for model.type = "gpt"'
run 4 verify "$deck" --layouts "tp=3"
expect "heads that do not divide" 2 "model.n_head = 4 cannot be divided among parallel.tensor = 3 ranks"

# The plan is equal to the memory that training allocates.
train_asr() {  # train_asr RANKS NAME OVERRIDE...
  local ranks=$1 name=$2
  shift 2
  run "$ranks" train "$deck" train.precision=fp32 run.dir="$name" train.max_steps=3 eval.interval=0 checkpoint.interval=3 \
    log.interval=1 "$@"
}
memory_lines() { sed -n '/^memory plan/,/total per rank/p' "$1" | sed '1d' | sed '/total per rank/q'; }
equal_plans() {  # equal_plans NAME RANKS OVERRIDE...
  local name=$1 ranks=$2
  shift 2
  train_asr "$ranks" "plan_$name" "$@"
  expect "$name: trains" 0 "summary:" || return
  memory_lines "plan_$name/start.txt" >trained
  run 0 plan --all "$deck" train.precision=fp32 --ranks "$ranks" --gpus-per-node "$ranks" "$@"
  expect "$name: is planned" 0 "FITS: " "$ranks rank"
  memory_lines stdout >planned
  check "$name: the plan is what train printed" diff trained planned
}
equal_plans tensor 2 parallel.tensor=2 parallel.sequence=true
equal_plans batch_norm 2 model.conv_norm=batchnorm parallel.zero=2
exhaustive && equal_plans one 1
run 0 plan --all "$deck" --ranks 8 --target cpu
expect "layouts of a speech model" 0 "layouts of 8 ranks" "  use: "

# train.reproducible: the same bits for every data-parallel size, pipeline, ZeRO stage; with 5
# micro-batches some ranks have none.
same=(train.reproducible=true train.micro_batches=5)
train_asr 1 repro.1 "${same[@]}"
expect "reproducible on one rank" 0 "summary:"
layouts=("2 parallel.data=2" "4 parallel.pipeline=2 parallel.schedule=zb-h1 parallel.zero=2")
exhaustive && layouts+=("4 parallel.zero=3" "2 parallel.pipeline=2" "4 parallel.zero=1 parallel.zero_group=2"
  "4 parallel.pipeline=2 parallel.schedule=interleaved parallel.virtual_stages=2")
for each in "${layouts[@]}"; do
  read -r ranks layout <<<"$each"
  name=repro.$(echo "$layout" | tr -d ' ' | sed 's/parallel\.//g')
  # shellcheck disable=SC2086
  train_asr "$ranks" "$name" "${same[@]}" $layout
  expect "$name on $ranks ranks" 0 "summary:"
  check "... the losses of one rank, bit by bit" same_losses repro.1 "$name"
  check "... the weights of one rank, bit by bit" same_weights repro.1 "$name"
done
train_asr 1 repro.other "${same[@]}" run.seed=1
check "the control: another seed, other weights" eval '! same_weights repro.1 repro.other'
