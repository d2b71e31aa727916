#!/usr/bin/env bash
# choir verify, plan, bench and reproducible training of a duplex model: every layout trains like
# one rank, with dialogues of unequal length, two heads, and codebooks that ranks divide or share.
. "$(dirname "$0")/lib/common.sh"
deck=$root/inputs/verify_duplex.json
limit=120

run 4 verify "$deck" --json rows.jsonl --layouts \
  "pp=4 schedule=zb-h1 recompute=full,pp=2 schedule=interleaved virtual_stages=2 dp=2,dp=3 zero=3,tp=4,tp=2 cp=2 sequence=true"
expect "stages, slices, codebooks and positions" 0 "VALID: 5 layouts"
check "... all within 1e-12" eval '! grep -oE "\"tolerance\":[^,]*" rows.jsonl | grep -v "\"tolerance\":1e-12"'
run 4 verify "$deck" model.codebooks=2 model.lm.tied=false model.lm.position=learned --layouts "tp=4,tp=4 sequence=true,pp=2 tp=2"
expect "ranks that share a codebook, learned positions, a head of its own" 0 "VALID: 3 layouts"
run 4 verify "$deck" 'train.freeze=["encoder.*","lm.*"]' --layouts "pp=3 schedule=zb-h1,dp=2 tp=2 sequence=true zero=2,cp=2"
expect "the projector and the codes alone" 0 "VALID: 3 layouts"
# A language model like Gemma, as it is and under adapters on a base in nf4.
gemma=(model.lm.norm_offset=true model.lm.norm_place=both model.lm.activation=geglu model.lm.embedding_scale=5.7 model.lm.n_kv_head=1)
run 4 verify "$deck" "${gemma[@]}" --layouts "pp=2 dp=2,tp=2 sequence=true dp=2 zero=3,cp=2"
expect "a language model like Gemma" 0 "VALID: 3 layouts"
run 4 verify "$deck" "${gemma[@]}" model.lm.n_embd=128 model.lm.ffn_width=128 model.lm.lora.rank=2 'train.unfreeze=["projector.*","*head*"]' \
  train.frozen_precision=nf4 checkpoint.init_from=base --layouts "pp=2 dp=2,tp=2 sequence=true dp=2 zero=3"
expect "... in nf4, with adapters" 0 "VALID: 2 layouts"
# The decks of real sizes with a narrower body: all keys other than widths are theirs, except for a
# context that reaches the end.
small=(data.format=synthetic train.micro_batches=4 model.encoder.n_layer=2 model.encoder.n_embd=32 model.encoder.n_head=4
  model.encoder.subsampling_channels=4 model.encoder.left_context=6 model.lm.n_layer=2 model.lm.n_embd=64 model.lm.n_head=8
  model.lm.ffn_width=96 model.lm.vocab_size=61 model.codes=11 optimizer.epsilon=1e-6)
run 4 verify "$root/inputs/duplex_1b.json" "${small[@]}" --layouts "pp=2 dp=2 zero=2,tp=4 sequence=true,cp=2 dp=2"
expect "duplex_1b.json, made small" 0 "VALID: 3 layouts"
run 4 verify "$root/inputs/duplex_7b.json" "${small[@]}" --layouts "tp=4 sequence=true zero=1,tp=2 sequence=true pp=2"
expect "duplex_7b.json, made small" 0 "VALID: 2 layouts"
run 2 verify "$deck" --layouts "tp=2 sequence=true,pp=2" --precision bf16-mixed
expect "bf16-mixed, by the rounding of one rank" 0 "VALID: 2 layouts"

refused() {  # refused WHAT TEXT ARGUMENT...
  local what=$1 text=$2
  shift 2
  run 1 plan "$deck" "$@"
  expect "$what" 2 "$text"
}
refused "codebooks that ranks do not divide" "model.codebooks = 3 cannot be divided among parallel.tensor = 2" \
  --ranks 2 parallel.tensor=2 model.codebooks=3
refused "no codebook" "model.codebooks" model.codebooks=0
refused "more codes than 16 bits name" "65533" model.codes=65534
refused "an encoder that waits for the end" "model.encoder.normalise = true" model.encoder.normalise=true
refused "... and one that hears the future" "model.encoder.causal = false" model.encoder.causal=false
refused "statistics over a micro-batch" 'model.encoder.conv_norm = "batchnorm"' model.encoder.conv_norm=batchnorm
refused "nothing to learn" "leave nothing to learn" model.loss.text=0 model.loss.audio=0
refused "a vocabulary without words" "legal: 4 or more" model.lm.vocab_size=3
refused "dialogues of text" "legal for model.type" data.format=text
refused "a dialogue longer than the model" "model.lm.block_size = 8" model.lm.block_size=8

# The plan is equal to the memory that training allocates; train.reproducible gives the same bits.
train_duplex() {  # train_duplex RANKS NAME OVERRIDE...
  local ranks=$1 name=$2
  shift 2
  run "$ranks" train "$deck" train.precision=fp32 run.dir="$name" train.max_steps=3 eval.interval=0 checkpoint.interval="${every:-3}" \
    log.interval=1 "$@"
}
memory_lines() { sed -n '/^memory plan/,/total per rank/p' "$1" | sed '1d' | sed '/total per rank/q'; }
train_duplex 2 planned_run parallel.tensor=2 parallel.sequence=true
expect "trains divided" 0 "summary:"
check "... and says what each term is" grep -q '"codes_loss":' planned_run/metrics.jsonl
memory_lines planned_run/start.txt >trained
run 0 plan --all "$deck" train.precision=fp32 --ranks 2 --gpus-per-node 2 parallel.tensor=2 parallel.sequence=true
expect "... is planned" 0 "FITS: "
memory_lines stdout >planned
check "... the plan is what train printed" diff trained planned
same=(train.reproducible=true train.micro_batches=5)
train_duplex 1 repro.1 "${same[@]}"
train_duplex 4 repro.4 "${same[@]}" parallel.pipeline=2 parallel.zero=2
expect "reproducible on four ranks" 0 "summary:"
check "... the losses of one rank, bit by bit" same_losses repro.1 repro.4
check "... the weights of one rank, bit by bit" same_weights repro.1 repro.4

# Killed on four ranks, continued with another layout on two: not a bit is lost.
every=1 train_duplex 4 killed "${same[@]}" parallel.pipeline=2 parallel.zero=2 checkpoint.async=false \
  fault.enable=true fault.kill_rank=3 fault.kill_step=3
expect_killed "killed"
train_duplex 2 killed "${same[@]}" parallel.zero=3
expect "... continues on two ranks that share the parameters" 0 "resumed from killed/checkpoints/step_00000002" "3 (1 now)"
check "... the losses of one rank that was not, bit by bit" same_losses repro.1 killed
check "... the weights and moments too" same_weights repro.1 killed

# Parts of the model come from other runs, by a map.
run 1 train "$deck" train.precision=fp32 run.dir=mapped train.max_steps=1 eval.interval=0 run.seed=2 \
  'checkpoint.init_from={"encoder.*":"repro.1","lm.*":"repro.1"}'
expect "begins with the encoder and the language model of another run" 0 "summary:"
run 2 bench step "$deck" train.precision=fp32 --steps 2 --warmup 1
expect "bench step" 0 "x real time"
