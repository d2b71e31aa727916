#!/usr/bin/env bash
# choir verify, plan and reproducible training of a codec of speech: every layout trains like one
# rank, with frames of padding and micro-batches of several shapes; and options that a codec lacks
# are refused.
. "$(dirname "$0")/lib/common.sh"
deck=$root/inputs/verify_codec.json

run 4 verify "$deck" --layouts quick --json rows.jsonl
expect "a codec: every value of every axis on 4 ranks" 0 "precision  fp64" "with every value of every axis"
check "... the last line says so" eval 'tail -n 1 stdout | grep -qE "^VALID: [0-9]+ layouts train as one rank does"'
check "... all within 1e-12" eval '! grep -oE "\"tolerance\":[^,]*" rows.jsonl | grep -v "\"tolerance\":1e-12"'
run 4 verify "$deck" --steps 20 --layouts \
  "pp=2 schedule=gpipe,pp=2 dp=2 schedule=zb-h1 recompute=full,dp=3 zero=3,tp=2 pp=2 sequence=true recompute=selective"
expect "... after 20 steps too" 0 "VALID: 4 layouts"
run 3 verify "$deck" 'train.freeze=["encoder.*"]' --layouts "pp=2,dp=3 zero=2"
expect "the decoder alone" 0 "VALID: 2 layouts"
# A decoder that makes sound, in short frames: a loss of three terms over overlapping frames.
sound=(model.head=istft model.rows=4 model.hop=80 model.window=200 model.fft=256 model.resolutions=64,128)
run 4 verify "$deck" "${sound[@]}" --json sound.jsonl --layouts \
  "pp=2 dp=2 zero=2,dp=3 zero=3,tp=2 pp=2 sequence=true recompute=full,tp=4"
expect "a codec that makes sound" 0 "VALID: 4 layouts"
check "... all within 1e-12" eval '! grep -oE "\"tolerance\":[^,]*" sound.jsonl | grep -v "\"tolerance\":1e-12"'
run 2 verify "$deck" "${sound[@]}" --layouts "tp=2 sequence=true,pp=2" --precision bf16-mixed
expect "... in bf16-mixed, by the rounding of one rank" 0 "VALID: 2 layouts"
run 0 train --check "$deck" "${sound[@]/%resolutions=*/resolutions=64,56}"
expect "a resolution whose hops do not fill a frame" 2 "a quarter of 56 points does not divide a frame" "= 320 samples"
run 0 train --check "$deck" "${sound[@]/%resolutions=*/resolutions=64,9}"
expect "... and one that has no quarter" 2 "model.resolutions" "'9' is no transform"
run 0 train --check "$deck" model.resolutions=64,128
expect "resolutions without sound" 2 "compare sound" 'model.head = "istft"'
run 0 train --check "$deck" model.loss.stft=2
expect "... and a weight" 2 "compare sound"
run 0 train --check "$deck" "${sound[@]}" model.loss.mel=0 model.loss.stft=0 model.loss.convergence=0
expect "nothing to learn" 2 "leave nothing to learn"
run 2 verify "$deck" --layouts "cp=2"
expect "a context axis" 2 "parallel.context = 2 shares tokens of a sequence" "legal: 1"
run 2 verify "$deck" model.encoder_width=25 --layouts "tp=2"
expect "a width that does not divide" 2 "model.encoder_width = 25 cannot be divided among parallel.tensor = 2 ranks"
run 0 train --check "$deck" model.levels=256,256,2
expect "more codes than 16 bits hold" 2 "model.levels" "more than 65536 codes"
run 0 train --check "$deck" model.levels=8,0
expect "no levels" 2 "model.levels" "0 levels"
run 0 train --check "$deck" model.n_layer=4
expect "a key of other families" 2 "model.n_layer is for model.type"

# The plan is equal to the memory that training allocates; train.reproducible gives the same bits.
train_codec() {  # train_codec RANKS NAME OVERRIDE...
  local ranks=$1 name=$2
  shift 2
  run "$ranks" train "$deck" train.precision=fp32 run.dir="$name" train.max_steps=3 eval.interval=0 checkpoint.interval="${every:-3}" \
    log.interval=1 train.reproducible=true "$@"
}
train_codec 1 repro.1
expect "reproducible on one rank" 0 "summary:"
train_codec 4 repro.4 parallel.pipeline=2 parallel.zero=2
expect "... and on four" 0 "summary:"
check "... the losses of one rank, bit by bit" same_losses repro.1 repro.4
check "... the weights of one rank, bit by bit" same_weights repro.1 repro.4
every=1 train_codec 4 killed parallel.pipeline=2 parallel.zero=2 checkpoint.async=false \
  fault.enable=true fault.kill_rank=3 fault.kill_step=3
expect_killed "killed"
train_codec 2 killed parallel.zero=3
expect "... continues on two ranks that share the parameters" 0 "resumed from killed/checkpoints/step_00000002" "3 (1 now)"
check "... the losses of one rank that was not, bit by bit" same_losses repro.1 killed
check "... the weights and moments too" same_weights repro.1 killed
