#!/usr/bin/env bash
# choir verify, plan and reproducible training of a language model with speech input: every layout
# trains like one rank, with conversations of zero to two clips, and micro-batches of several shapes
# and of padding.
. "$(dirname "$0")/lib/common.sh"
deck=$root/inputs/verify_salm.json
limit=120

run 4 verify "$deck" --layouts quick --json rows.jsonl
expect "every value of every axis on 4 ranks" 0 "precision  fp64" "with every value of every axis"
check "... the last line says so" eval 'tail -n 1 stdout | grep -qE "^VALID: [0-9]+ layouts train as one rank does"'
check "... all within 1e-12" eval '! grep -oE "\"tolerance\":[^,]*" rows.jsonl | grep -v "\"tolerance\":1e-12"'
check "... context ranks among them" grep -qE "cp=[2-9]" stdout
# A head that shares its weight with an embedding in the middle of a pipeline; three ranks: one has a batch of padding.
run 4 verify "$deck" --steps 20 --layouts \
  "pp=4 schedule=gpipe,pp=4 schedule=zb-h1 recompute=full,pp=2 schedule=interleaved virtual_stages=2 dp=2,dp=3 zero=3,tp=2 cp=2 sequence=true,cp=3,dp=2 cp=2 context_mode=gather"
expect "... after 20 steps too" 0 "VALID: 7 layouts"
run 4 verify "$deck" model.lm.tied=false model.lm.position=learned model.encoder.conv_norm=batchnorm --layouts \
  "pp=2 dp=2,tp=2 sequence=true dp=2 zero=2,tp=4,dp=2 zero=3"
expect "learned positions, a head of its own, statistics of clips" 0 "VALID: 4 layouts"
run 2 verify "$deck" model.encoder.conv_norm=batchnorm --layouts "cp=2"
expect "... which ranks that share the clips do not have" 2 'legal: "layernorm"'
# A language model like Gemma, as it is and under adapters on a base in nf4.
gemma=(model.lm.norm_offset=true model.lm.norm_place=both model.lm.activation=geglu model.lm.embedding_scale=5.7 model.lm.n_kv_head=1
  model.lm.attention_softcap=4 model.lm.logit_softcap=2)
run 4 verify "$deck" "${gemma[@]}" --layouts "pp=2 dp=2,tp=2 sequence=true dp=2 zero=3,cp=2"
expect "a language model like Gemma" 0 "VALID: 3 layouts"
run 4 verify "$deck" "${gemma[@]}" model.lm.n_embd=128 model.lm.ffn_width=128 model.lm.lora.rank=2 'train.unfreeze=["projector.*"]' \
  train.frozen_precision=nf4 checkpoint.init_from=base --layouts "pp=2 dp=2,tp=2 sequence=true dp=2 zero=3"
expect "... in nf4, with adapters" 0 "VALID: 2 layouts"
# A frozen parameter has no gradient, and its backward is not computed.
frozen='train.freeze=["encoder.*","lm.*"]'
run 4 verify "$deck" "$frozen" --layouts "pp=3 schedule=zb-h1,dp=2 tp=2 sequence=true zero=2,pp=2 cp=2 recompute=full"
expect "adapter and projector alone" 0 "VALID: 3 layouts"
run 4 verify "$deck" model.lm.lora.rank=2 'train.unfreeze=["projector.*"]' --layouts "pp=3,tp=2 dp=2 sequence=true zero=1"
expect "the projector and adapters" 0 "VALID: 2 layouts"
run 2 verify "$deck" 'train.freeze=["encoder.*","projector.*","lm.embedding.*"]' --layouts "pp=2,tp=2"
expect "blocks of the language model alone" 0 "VALID: 2 layouts"
# Tensor ranks that encode different clips: fewer clips than ranks, and heads that cannot be divided
# among them.
clips=(parallel.encoder=clips model.encoder.n_head=2)
run 4 verify "$deck" "${clips[@]}" --layouts \
  "tp=4 zero=3,tp=2 dp=2 sequence=true zero=2,tp=2 cp=2 recompute=full,tp=2 pp=2 schedule=zb-h1 sequence=true,tp=2 cp=2 context_mode=ring"
expect "clips shared by tensor ranks" 0 "VALID: 5 layouts"
run 4 verify "$deck" "${clips[@]}" "$frozen" --layouts "tp=2 pp=2,tp=2 cp=2 sequence=true"
expect "... of an encoder that is frozen" 0 "VALID: 2 layouts"
run 2 verify "$deck" parallel.encoder=clips model.encoder.conv_norm=batchnorm --layouts "tp=2"
expect "... without statistics of all clips" 2 'parallel.encoder = "clips": parallel.tensor = 2 ranks divide the clips'
run 4 verify "$deck" --layouts "tp=2 sequence=true,pp=2 dp=2" --precision bf16-mixed
expect "bf16-mixed, by the rounding of one rank" 0 "VALID: 2 layouts"

run 4 verify "$deck" --layouts "tp=3"
expect "heads that do not divide" 2 "model.encoder.n_head = 4 cannot be divided among parallel.tensor = 3 ranks"
run 1 verify "$deck" model.lm.n_embd=30
expect "a width that heads do not divide" 2 "model.lm.n_embd = 30 is not a multiple of model.lm.n_head = 4"
run 1 verify "$deck" model.encoder.conv_kernel=4
expect "a kernel without a middle" 2 "model.encoder.conv_kernel = 4 has no middle"
run 1 verify "$deck" model.n_layer=4
expect "a key of other families" 2 'model.n_layer is for model.type'

# The plan is equal to the memory that training allocates; train.reproducible gives the same bits.
train_salm() {  # train_salm RANKS NAME OVERRIDE...
  local ranks=$1 name=$2
  shift 2
  run "$ranks" train "$deck" train.precision=fp32 run.dir="$name" train.max_steps=3 eval.interval=0 checkpoint.interval=3 \
    log.interval=1 "$@"
}
memory_lines() { sed -n '/^memory plan/,/total per rank/p' "$1" | sed '1d' | sed '/total per rank/q'; }
train_salm 2 planned_run parallel.tensor=2 parallel.sequence=true
expect "trains divided" 0 "summary:"
memory_lines planned_run/start.txt >trained
run 0 plan --all "$deck" train.precision=fp32 --ranks 2 --gpus-per-node 2 parallel.tensor=2 parallel.sequence=true
expect "... is planned" 0 "FITS: "
memory_lines stdout >planned
check "... the plan is what train printed" diff trained planned

same=(train.reproducible=true train.micro_batches=5)
train_salm 1 repro.1 "${same[@]}"
expect "reproducible on one rank" 0 "summary:"
while read -r ranks layout; do
  name=repro.$(echo "$layout" | tr -d ' ' | sed 's/parallel\.//g')
  # shellcheck disable=SC2086
  train_salm "$ranks" "$name" "${same[@]}" $layout
  expect "$name on $ranks ranks" 0 "summary:"
  check "... the losses of one rank, bit by bit" same_losses repro.1 "$name"
  check "... the weights of one rank, bit by bit" same_weights repro.1 "$name"
done <<'END'
4 parallel.zero=3
4 parallel.pipeline=2 parallel.schedule=zb-h1 parallel.zero=2
3 parallel.pipeline=3
END
train_salm 1 repro.other "${same[@]}" run.seed=1
check "the control: another seed, other weights" eval '! same_weights repro.1 repro.other'
