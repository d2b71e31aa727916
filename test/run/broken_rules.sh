#!/usr/bin/env bash
# Negative controls of `choir verify`: rules that are broken on purpose (test/mutants/rules.txt) are
# detected in a layout to which they matter, and only there. This is a sample;
# test/run/long/broken_rules.sh breaks all rules.
. "$(dirname "$0")/lib/common.sh"
all=${2:-}
limit=60
check "no rule is known to the program itself" eval '! grep -aq CHOIR_MUTANT "$choir"'

gpt=$root/inputs/verify_gpt.json speech=$root/inputs/verify_asr.json
broken=" "
breaks() {  # breaks always|sometimes RULE DECK LAYOUT HARMLESS ARGUMENT...
  local when=$1 rule=$2 deck=$3 layout=$4 harmless=$5
  shift 5
  broken+="$rule "
  [ "$when" = always ] || [ "$all" = --all ] || return 0
  run_broken "$rule" 4 verify "$deck" --steps 2 --layouts "$layout,$harmless" "$@"
  expect "$rule is seen in $layout" 4 "INVALID: 1 of 2 layouts differ from one rank"
  check "... where it matters" eval 'grep -E "^dp=" stdout | head -n 1 | grep -q "FAIL$"'
}
breaks always norm-unreduced "$gpt" "dp=2 tp=2 sequence=true" "dp=2 tp=2"
breaks sometimes norm-unreduced "$gpt" "dp=2 tp=2 sequence=true zero=3" "dp=2 tp=2"
breaks always norm-unreduced "$gpt" "tp=2 sequence=true" "tp=2" --precision fp32
breaks sometimes kv-unsummed "$gpt" "tp=4" "tp=2"
breaks sometimes replicated-twice "$gpt" "tp=2" "dp=2"
breaks always mean-of-means "$gpt" "dp=4" "tp=4"
breaks sometimes padding-leaks "$gpt" "tp=2" "dp=2"
breaks sometimes local-smoothing "$gpt" "tp=2" "dp=2"
breaks sometimes bias-everywhere "$gpt" "tp=2 dp=2" "dp=4"
breaks sometimes dropout-per-rank "$gpt" "dp=2" "dp=1"
breaks sometimes loss-unreduced "$gpt" "dp=2 tp=2" "tp=2"
breaks sometimes batch-off "$gpt" "dp=2" "tp=2"
breaks always tied-unjoined "$gpt" "pp=2" "dp=2"
breaks sometimes tied-twice "$gpt" "pp=2" "tp=2"
breaks sometimes local-norm "$gpt" "pp=2" "dp=2"
breaks sometimes local-norm "$gpt" "tp=2" "dp=2 zero=1"
breaks sometimes slice-norm "$gpt" "dp=2 zero=1" "tp=2 pp=2"
breaks always slice-by-padding "$gpt" "dp=4 zero=1" "dp=4"
breaks sometimes local-ratios "$gpt" "tp=2" "dp=2 zero=1" optimizer.name=lars optimizer.learning_rate=1 \
  optimizer.trust_coefficient=0.02
breaks always matrix-parts "$gpt" "tp=2" "dp=2 zero=1" optimizer.name=muon
breaks sometimes slice-by-one "$gpt" "dp=2 zero=2" "dp=2"
breaks always stale-gather "$gpt" "dp=2 zero=1" "dp=2"
breaks sometimes stale-gather "$gpt" "dp=2 zero=3" "tp=2"
breaks sometimes groups-unsummed "$gpt" "dp=4 zero=2 zero_group=2" "dp=4 zero=2"
breaks always replicas-twice "$gpt" "dp=4 zero=1 zero_group=2" "dp=4 zero=1"
breaks sometimes last-bucket-kept "$gpt" "dp=2 tp=2 sequence=true" "dp=2 tp=2"
breaks sometimes micro-batch-lost "$gpt" "pp=2" "dp=4 micro=6"
breaks sometimes micro-batch-lost "$gpt" "dp=2 zero=2" "dp=4 micro=6 zero=2"
breaks always micro-batch-twice "$gpt" "pp=2" "tp=2"
breaks sometimes layer-dropped "$gpt" "pp=2" "tp=2"
breaks sometimes stage-loss-kept "$gpt" "pp=2" "dp=2"
breaks always positions-local "$gpt" "cp=2" "dp=2"
breaks sometimes context-unsummed "$gpt" "cp=2" "dp=2"
breaks sometimes copies-unsummed "$gpt" "cp=4" "cp=2"
breaks always positions-in-one-run "$gpt" "cp=3" "cp=2"
breaks always mask-off-by-one "$gpt" "cp=2 context_mode=gather" "cp=2"
breaks sometimes runs-unsummed "$gpt" "cp=3" "cp=2"
breaks always parts-unmerged "$gpt" "cp=2 context_mode=ring" "cp=2 context_mode=gather"
breaks sometimes hop-overtaken "$gpt" "cp=2 context_mode=ring" "cp=2 context_mode=gather"
breaks always heads-mixed "$gpt" "cp=4 context_mode=ring-ulysses" "cp=4 context_mode=ring" model.n_head=2
breaks sometimes mask-redrawn "$gpt" "recompute=full" "recompute=selective"
breaks always tile-gradient-lost "$gpt" "attention_chunk=5" "recompute=full"
breaks sometimes chunk-lost "$gpt" "tp=2 head_chunk=5" "tp=2"
breaks sometimes outside-overlap "$gpt" "dp=2 zero=2 offload=file offload_gradients=true" "dp=2 zero=2 offload=file"
breaks sometimes resident-misplaced "$gpt" "cp=2 preload=device" "cp=2"

breaks sometimes z-per-rank "$root/inputs/verify_modern.json" "tp=2" "dp=2"
breaks sometimes chunk-lost "$root/inputs/verify_modern.json" "tp=2" "dp=2"
breaks always width-norm-local "$root/inputs/verify_modern.json" "tp=2" "dp=2" model.qk_norm_span=width
breaks always cap-in-whole-rows "$root/inputs/verify_gemma.json" "tp=2" "dp=2"
breaks sometimes scales-recounted "$root/inputs/verify_lora.json" "tp=2" "dp=2" model.n_embd=128 model.ffn_width=128 \
  train.frozen_precision=nf4 checkpoint.init_from=base
breaks sometimes adapter-unsummed "$root/inputs/verify_lora.json" "dp=2 tp=2" "dp=2 pp=2"

hears=$root/inputs/verify_salm.json
breaks always frames-everywhere "$hears" "tp=2" "tp=2 sequence=true"
breaks sometimes frames-misplaced "$hears" "tp=2 sequence=true" "tp=2"
breaks always clips-misplaced "$hears" "cp=2" "dp=2"
breaks sometimes projector-unsummed "$hears" "tp=2 sequence=true" "tp=2"
breaks always encoder-unsummed "$hears" "tp=2" "dp=2" parallel.encoder=clips
breaks sometimes stacks-lost "$hears" "tp=2 sequence=true" "tp=2"

speaks=$root/inputs/verify_duplex.json
breaks always padding-speaks "$speaks" "dp=3" "dp=2"
breaks sometimes mean-of-means "$speaks" "dp=4" "tp=4"
breaks sometimes frames-everywhere "$speaks" "tp=2" "tp=2 sequence=true"
breaks sometimes projector-unsummed "$speaks" "tp=2 sequence=true" "tp=2"
breaks sometimes codes-unsummed "$speaks" "tp=2" "dp=2"
breaks sometimes codes-everywhere "$speaks" "tp=4" "tp=2" model.codebooks=2
breaks always copies-whole "$speaks" "tp=4" "tp=2" model.codebooks=2

codec=$root/inputs/verify_codec.json
sound=(model.head=istft model.rows=4 model.hop=80 model.window=200 model.fft=256 model.resolutions=64,128)
breaks sometimes mean-of-means "$codec" "dp=4" "tp=4"
breaks sometimes codec-unsummed "$codec" "tp=2 sequence=true" "tp=2"
broken+="padding-compared "
run_broken padding-compared 2 verify "$codec" --steps 2 --layouts "dp=1,tp=2"
expect "padding-compared is seen in every layout" 4 "INVALID: 2 of 2 layouts"
broken+="padding-heard "
run_broken padding-heard 2 verify "$codec" "${sound[@]}" --steps 2 --layouts "dp=1,tp=2"
expect "... and so is padding-heard" 4 "INVALID: 2 of 2 layouts"

breaks sometimes norm-unreduced "$speech" "dp=2 tp=2 sequence=true" "dp=2 tp=2"
breaks sometimes replicated-twice "$speech" "tp=2" "dp=2"
breaks sometimes mean-of-means "$speech" "dp=4" "tp=4"
breaks sometimes bias-everywhere "$speech" "tp=2 dp=2" "dp=4"
breaks sometimes dropout-per-rank "$speech" "dp=2" "dp=1"
breaks sometimes loss-unreduced "$speech" "dp=2 tp=2" "tp=2"
breaks sometimes batch-off "$speech" "dp=2" "tp=2"
breaks sometimes local-norm "$speech" "pp=2" "dp=2"
breaks sometimes slice-norm "$speech" "dp=2 zero=1" "tp=2 pp=2"
breaks sometimes slice-by-one "$speech" "dp=2 zero=2" "dp=2"
breaks sometimes stale-gather "$speech" "dp=2 zero=1" "dp=2"
breaks sometimes groups-unsummed "$speech" "dp=4 zero=2 zero_group=2" "dp=4 zero=2"
breaks sometimes micro-batch-twice "$speech" "pp=2" "tp=2"
breaks sometimes layer-dropped "$speech" "pp=2" "tp=2"
breaks sometimes stage-loss-kept "$speech" "pp=2" "dp=2"
breaks sometimes mask-redrawn "$speech" "recompute=full" "recompute=selective"
breaks sometimes inner-norm-unsummed "$speech" "tp=2" "dp=2"
breaks sometimes ids-by-position "$speech" "dp=2" "tp=2"
breaks always empty-counted "$speech" "dp=3" "dp=2"
breaks sometimes micro-batch-lost "$speech" "dp=2 zero=2" "dp=4 zero=2" train.micro_batches=4
breaks always statistics-unreduced "$speech" "dp=2" "tp=2" model.conv_norm=batchnorm
breaks sometimes statistics-cut "$speech" "dp=2" "tp=2" model.conv_norm=batchnorm
run_broken mask-left-out 2 verify "$speech" --steps 2 --layouts "dp=1,tp=2"
expect "mask-left-out is seen in every layout" 4 "INVALID: 2 of 2 layouts"

# The model and the data count targets independently, so that either count off by one is an error.
miscounts() {  # miscounts RULE TERM DECK ARGUMENT...
  local rule=$1 term=$2 deck=$3
  shift 3
  broken+="$rule "
  run_broken "$rule" 2 verify "$deck" --steps 1 --layouts "dp=1,dp=2" "$@"
  expect "$rule is refused in every layout, by name" 4 "INVALID: 2 of 2 layouts" "of the term \"$term\"" "micro-batch 0 of the step"
}
miscounts head-counts-tokens loss "$gpt"
miscounts head-counts-tokens loss "$hears"
miscounts head-counts-tokens text_loss "$speaks"
miscounts head-counts-codes codes_loss "$speaks"
miscounts head-counts-labels loss "$speech"
miscounts head-counts-frames loss "$codec"

# Either all ranks of a layout throw, which gives a row; or one of them, and the others wait.
run_broken throws-everywhere 4 verify "$gpt" --layouts "dp=2,tp=4"
expect "a layout that throws is a row that fails" 4 "thrown on purpose" "INVALID: 2 of 2 layouts"
check "... and the next one runs" eval '[ "$(grep -cE "^dp=.*thrown on purpose.* FAIL$" stdout)" = 2 ]'
run_broken throws-alone 4 verify "$gpt" parallel.timeout=$((3 * patience)) --layouts "dp=1,dp=3,tp=4"
expect "one rank that throws alone ends the job, which names it" 5 "rank 2" "failed alone" "thrown on purpose"

all_broken() {
  local rule
  for rule in $(sed -nE 's/^rule ([a-z-]+):.*/\1/p' "$root/test/mutants/rules.txt"); do
    grep -q "run_broken $rule " "$root"/test/run/*.sh && continue  # with what it belongs to
    case "$broken mask-left-out throws-alone throws-everywhere " in *" $rule "*) ;; *) echo "$rule is not"; return 1 ;; esac
  done
}
check "every rule is broken here, or by the long form" all_broken
