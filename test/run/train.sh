#!/usr/bin/env bash
# A run as the user sees it: its output and its files, and that the number of ranks changes nothing.
. "$(dirname "$0")/lib/common.sh"

for ranks in 1 3 $(exhaustive && echo 2 4); do
  train "$ranks" "fp64_$ranks" train.precision=fp64
  expect "20 steps in fp64 on $ranks rank(s)" 0 "summary:" \
    "24 sequences (768 tokens) = 2 sequences x $((12 / ranks)) micro-batches x $ranks data-parallel rank"
done
start 1 train "$debug" "${small[@]}" run.dir=fp64_launched train.precision=fp64
end
expect "20 steps in fp64 on a rank that a launcher started" 0 "summary:"
for ranks in launched 3 $(exhaustive && echo 2 4); do
  check "loss of $ranks rank(s) equals that of 1 alone to 1e-12" close_losses fp64_1 "fp64_$ranks" 1e-12
done
# The control: the comparison must be able to fail.
train 1 fp64_seed train.precision=fp64 run.seed=1
check "another seed, another loss" eval '! close_losses fp64_1 fp64_seed 1e-12'

run_broken data-count-tokens 2 train "$debug" "${small[@]}" run.dir=miscounted train.precision=fp64
expect "data that announce a target too many are refused by all ranks" 4 "step 1: the model has used 768 targets" \
  'the term "loss" of the loss' "the data announced 769"

train 2 seen train.profile=3:5
expect "what is printed" 0 "ranks 2 on 1 node" "  model      gpt: 2 layers" "  data       train " "  layout     dp=2" \
  "  transport  dp by node" "  memory     " "  run        seen (log.txt" "seen/start.txt" "  training   steps 1 to 20 in fp32" \
  "--- sample after 0 steps ---" "step=1 loss=" "val_loss=" "--- sample after 20 steps ---" "summary:" "activations: peak" \
  "between steps" "  diagnosis        " "run directory    seen" "checkpoint       seen/checkpoints/step_00000020"
started "what start.txt has" seen "[rank=0/1][local_rank=0/1][node=0/0]" "[rank=1/1][local_rank=1/1]" "dist_info:" \
  DEVICE_ID=none GPUS_PER_NODE=0 HOSTS= HOSTFILE= LOCAL_RANK=0 MACHINE= NGPUS=0 NODE_ID=0 RANK=0 WORLD_SIZE_IN_USE=2 LAUNCH_CMD= \
  "WORLD_SIZE_TOTAL=2" "model.n_layer" "defaults:" "without positions" "decayed" "not decayed" "blocks.0" \
  "tokens per iteration" "memory plan per rank" "legend:"
for words in dist_info: defaults: legend: "memory plan per rank"; do check "... and the screen has not: $words" lacks out "$words"; done
check "keys of other families, of GPUs and of drills are not listed" eval \
  '! grep -E "model\.mels|train\.micro_batches=|train\.cuda_graph=|fault\." seen/start.txt'
screen() { sed "/step=1 loss=/q" stdout; }
check "the first step is within 40 lines" test "$(screen | wc -l)" -le 40
check "... of at most 100 columns" eval '! sed "/ready after/q" stdout | grep -v "^\[" | grep -E "^.{101}"'
check "the log has what the screen has" eval '[ -z "$(comm -13 <(sort -u seen/log.txt) <(sort -u stdout))" ]'
for family in asr codec salm duplex; do
  run 1 train "$root/inputs/verify_$family.json" run.dir="$family" train.max_steps=1 eval.interval=0 checkpoint.interval=0
  check "... 40 lines of 100 columns of $family, too" eval \
    '[ "$(screen | wc -l)" -le 40 ] && has stdout "ready after" && ! sed "/ready after/q" stdout | grep -E "^.{101}"'
done
LOG_FROM_ALL_RANKS=1 train 2 heard train.max_steps=1
check "LOG_FROM_ALL_RANKS=1: every rank speaks" test "$(grep -c 'step=1 loss' stdout)" = 2
train 2 heard_too train.max_steps=1 log.all_ranks=true
check "... as does log.all_ranks" test "$(grep -c 'step=1 loss' stdout)" = 2
train 2 not_heard train.max_steps=1
check "... and only rank 0 by default" test "$(grep -c 'step=1 loss' stdout)" = 1
run 1 train "$debug" "${small[@]}" run.name=by_name train.max_steps=1
check "run.name is its folder in runs/" test -s runs/by_name/metrics.jsonl
run 1 train "$debug" "${small[@]}" run.name=by_name run.dir=elsewhere/here train.max_steps=1
check "run.dir is where a run lies" test -s elsewhere/here/metrics.jsonl
train 1 penalised model.z_loss=0.01 train.max_steps=2 eval.interval=2
check "the z-loss has a name of its own" matches penalised/log.txt "step=2 loss=.* token_loss=.* z_loss="
check "... in validation, too" matches penalised/log.txt "val_loss=.*val_token_loss=.*val_z_loss="
train 1 verbose log.verbose=true train.max_steps=1
expect "log.verbose=true prints all of it" 0 "dist_info:" "legend:" "memory plan per rank" "blocks.0"
number='[0-9]+(\.[0-9]+)?'
check "log line" matches seen/log.txt "step=10 loss=$number dt=$number dtf=$number dtb=$number sps=$number \
sps_per_gpu=$number tps=$number tps_per_gpu=$number mfu=$number lr=$number(e-?[0-9]+)? train_loss=$number val_loss=$number\$"
check "20 lines of metrics" test "$(grep -c '^{"step":' seen/metrics.jsonl)" = 20
grep '^{"step":' seen/metrics.jsonl >steps.jsonl  # the others are events
for key in step loss lr grad_norm dt dtf dtb data comm optimizer other sps sps_per_gpu tps tps_per_gpu mfu mem; do
  check "metrics have $key" test "$(grep -cE "[{,]\"$key\":$number(e-?[0-9]+)?[,}]" steps.jsonl)" = 20
done
check "the phases add up to dt" awk -F'[:,]' '{
  for (i = 1; i < NF; i++) { gsub(/[{"}]/, "", $i); v[$i] = $(i + 1) + 0 }
  sum = v["dtf"] + v["dtb"] + v["data"] + v["comm"] + v["optimizer"] + v["other"]
  if (sum < 0.98 * v["dt"] || sum > 1.02 * v["dt"]) { print $0; bad = 1 }
} END { exit bad || NR == 0 }' steps.jsonl
check "the arena is used as planned" eval "grep -F 'activations: peak' out | awk '{ exit !(\$4 == \$7 && \$5 == \$8) }'"
for file in deck.json log.txt metrics.jsonl checkpoints/latest checkpoints/step_00000010/manifest.json \
  checkpoints/step_00000020/state.h5 samples/step_00000000.txt samples/step_00000020.txt profile.json; do
  check "the run leaves $file" test -s "seen/$file"
done
check "the loss falls" awk -F'[:,]' 'NR == 1 { first = $4 } { last = $4 } END { exit !(last < first - 0.3) }' steps.jsonl
for rank in 0 1; do
  check "the trace has a track of rank $rank" has seen/profile.json "\"name\":\"rank $rank\""
  check "the trace shows rank $rank in forward" matches seen/profile.json "\"name\":\"forward\".*\"pid\":$rank,.*\"step\":3"
done
check "the trace ends at step 5" lacks seen/profile.json '"step":6'
# Braces and brackets must match, and no comma may be before a closing one, because readers of JSON
# fail on these.
check "the trace is JSON" awk '{ text = text $0 } END {
  n = gsub(/[{]/, "{", text) - gsub(/[}]/, "}", text); m = gsub(/\[/, "[", text) - gsub(/\]/, "]", text)
  exit n != 0 || m != 0 || text ~ /,[ ]*[]}]/ || text !~ /^[{]"traceEvents":\[/ }' seen/profile.json

# Learning rates at which the validation loss rises and falls: the newest checkpoint, the best and
# every fourth are kept.
rises=(checkpoint.interval=1 checkpoint.keep=1 eval.interval=1 optimizer.warmup_steps=19 optimizer.learning_rate=0.5
  checkpoint.async=false log.interval=100)
kept() { ls "$1/checkpoints" | sed -nE 's/^step_0*([0-9]+)$/\1/p' | sort -n | tr '\n' ' '; }
train 2 best "${rises[@]}"
expect "a run whose validation gets worse" 0 "summary:"
best_step() {
  sed -nE 's/^\{"step":([0-9]+),.*"val_loss":([0-9.]+).*/\2 \1/p' "$1/metrics.jsonl" | sort -g | awk 'NR == 1 { print $2 }'
}
check "the best is neither the first nor the newest" test "$(best_step best)" -gt 1 -a "$(best_step best)" -lt 20
check "checkpoint.best keeps it beside the newest" test "$(kept best)" = "$(best_step best) 20 "
run 1 eval "best/checkpoints/step_$(printf %08d "$(best_step best)")"
check "... and it has that loss" eval \
  '[ "$(sed -nE "s/.*val_loss=([0-9]+\.[0-9]{6}).*/\1/p" stdout)" = "$(grep "^{\"step\":$(best_step best)," best/metrics.jsonl |
    sed -nE "s/.*\"val_loss\":([0-9.]+).*/\1/p" | xargs printf %.6f)" ]'
train 2 newest "${rises[@]}" checkpoint.best=false
check "... without it the newest alone" test "$(kept newest)" = "20 "
train 2 every_fourth "${rises[@]}" checkpoint.best=false checkpoint.keep_every=4
check "checkpoint.keep_every: multiples of it stay" test "$(kept every_fourth)" = "4 8 12 16 20 "

train 2 seen
expect "the same command again: nothing left to do" 0 "resumed from seen/checkpoints/step_00000020" \
  "the run is complete, with 20 steps for train.max_steps = 20"
run 2 train seen/deck.json run.dir=again
expect "the resolved deck is a deck" 0 "summary:"
check "... of the same run" same_losses seen again

run 0 train --describe
expect "describe" 0 "train.micro_batch_size" "checkpoint.resume" "sequences"
run 0 train --schema
expect "schema" 0 '"$schema"' "micro_batch_size"

# Every shipped deck starts. The large ones have a narrower body: their keys are tested.
mkdir -p data/shakespeare data/quickstart
cp text.txt data/shakespeare/input.txt
cp text.txt data/quickstart/input.txt
for deck in "$root"/inputs/*.json; do
  name=$(basename "$deck" .json)
  shrink=(train.max_steps=2 eval.batches=1 eval.sample_tokens=0)
  case $name in
    bench_head) shrink+=(model.n_embd=64 model.n_head=1 model.block_size=16 train.micro_batch_size=1 train.global_batch_size=2) ;;
    bench_c | bench_d) shrink+=(model.n_layer=1 train.micro_batch_size=1) ;;
    bench_*) shrink+=(train.micro_batch_size=2) ;;
    fastconformer_* | asr_* | salm_encoder | duplex_encoder | verify_asr)  # synthetic utterances
      shrink=(train.max_steps=2 train.micro_batches=2 data.format=synthetic model.vocab_size=28 model.n_layer=1) ;;
    salm_tutorial | salm_smollm2 | duplex_tutorial | verify_salm)  # synthetic conversations
      shrink=(train.max_steps=2 train.micro_batches=2 data.format=synthetic model.lm.vocab_size=28 model.encoder.n_layer=1
        model.lm.n_layer=1 checkpoint.init_from=) ;;
    salm_gemma)
      shrink=(train.max_steps=2 train.micro_batches=2 data.format=synthetic model.lm.vocab_size=28 model.encoder.n_layer=1
        model.lm.n_layer=1 model.lm.n_embd=64 model.lm.head_width=16 model.lm.ffn_width=128 checkpoint.init_from=
        train.frozen_precision=master) ;;
    codec_tutorial | codec_istft | verify_codec | verify_duplex) shrink=(train.max_steps=2 train.micro_batches=2 data.format=synthetic) ;;
    duplex_1b | duplex_7b)
      shrink=(train.max_steps=2 train.micro_batches=2 data.format=synthetic model.encoder.n_layer=1 model.encoder.n_embd=64
        model.encoder.subsampling_channels=16 model.lm.n_layer=1 model.lm.n_embd=256 model.lm.ffn_width=512)
      [ "$name" != duplex_7b ] || shrink+=(parallel.tensor=2) ;;
    verify_modern) shrink+=(data.pack=false) ;;  # synthetic tokens are no conversations
    shakespeare_char) shrink+=(model.n_layer=1 model.block_size=64 train.micro_batch_size=2 train.global_batch_size=4) ;;
  esac
  [ "$name" != bench_b ] || shrink+=(model.n_layer=2)
  run 2 train "$deck" run.dir="shipped_$name" "${shrink[@]}"
  expect "inputs/$name.json starts" 0 "step=2 loss=" "summary:"
  check "... and inputs/README.md tells of it" grep -qF "\`$name.json\`" "$root/inputs/README.md"
done
