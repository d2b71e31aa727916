#!/usr/bin/env bash
# Long tests of choir verify: 20 steps, every legal layout, and layouts of other precisions and
# models.
. "$(dirname "$0")/../lib/common.sh"
deck=$root/inputs/verify_gpt.json
limit=1800

run 8 verify "$deck" --layouts all --steps 20
expect "all layouts after 20 steps" 0 "VALID: 150 layouts" "and every pair of values that can be combined"
tail -n 1 stdout
run 8 verify "$deck" --layouts exhaustive
expect "every legal layout" 0 "VALID:" "legal ones"
tail -n 1 stdout
for precision in fp32 bf16-mixed; do
  run 8 verify "$deck" --layouts all --precision "$precision"
  expect "all layouts in $precision" 0 "VALID: 150 layouts"
  tail -n 1 stdout
done

# Speech.
speech=$root/inputs/verify_asr.json
run 8 verify "$speech" --layouts all
expect "all layouts of a speech model" 0 "VALID:" "and every pair of values that can be combined"
tail -n 1 stdout
run 8 verify "$speech" --layouts quick --steps 20
expect "... after 20 steps" 0 "VALID:"
for precision in fp32 bf16-mixed; do
  run 8 verify "$speech" --layouts quick --precision "$precision"
  expect "... in $precision" 0 "VALID:"
done

# Another family, and sizes that divide even less evenly: sequences shorter than the number of
# context ranks, a vocabulary of which some ranks have no part.
run 8 verify "$deck" --layouts all model.position=rope model.norm=rmsnorm model.activation=swiglu model.tied=false \
  model.bias=false
expect "rotary positions, RMSNorm, SwiGLU, a head of its own" 0 "VALID:"
run 8 verify "$deck" --layouts all model.n_layer=5 model.n_head=6 model.n_kv_head=3 model.n_embd=36 \
  model.block_size=23 model.vocab_size=13 model.ffn_width=48 train.global_batch_size=12
expect "6 heads, 5 layers" 0 "VALID:"
run 8 verify "$deck" --layouts all model.block_size=3 model.vocab_size=3 model.n_kv_head=1 \
  train.micro_batch_size=3 train.global_batch_size=6
expect "3 tokens of 3 words" 0 "VALID:"
