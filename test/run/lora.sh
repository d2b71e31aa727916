#!/usr/bin/env bash
# model.lora: adapters are trained on top of a run whose weights stay, bit by bit, on every layout; they go to PEFT and
# back, and into the weights.
. "$(dirname "$0")/lib/common.sh"
deck=$root/inputs/verify_lora.json
run 4 verify "$deck" --layouts \
  "dp=2 tp=2 sequence=true zero=3,tp=4 recompute=full,cp=2 recompute=selective,pp=2 tp=2 schedule=zb-h1"
expect "adapters on every axis" 0 "VALID: 4 layouts"
run 4 verify "$deck" --layouts "tp=4 sequence=true" 'model.lora.targets=["q","v"]' 'train.unfreeze=["*norm*"]' \
  model.lora.rank_stabilised=true
expect "some targets, and norms trained with them" 0 "VALID: 1 layouts"

small=("$root/inputs/verify_gpt.json" data.format=synthetic train.precision=fp64 train.global_batch_size=4 model.norm=rmsnorm
  model.activation=swiglu model.position=rope model.bias=false eval.interval=0 log.interval=1)
tune=("${small[@]}" checkpoint.init_from=base model.lora.rank=4 optimizer.learning_rate=1e-2)
run 1 train "${small[@]}" run.dir=base train.max_steps=2
expect "the run that is taken from" 0 "base/checkpoints/step_00000002"
run 1 train "${tune[@]}" run.dir=one train.max_steps=4
expect "adapters are trained on top of it" 0 "warm start from base" "frozen"
run 1 train "${small[@]}" checkpoint.init_from=base run.dir=whole train.max_steps=1
expect "the whole of it is trained" 0
check "... at first they do nothing, to the last bit" diff <(losses whole) <(losses one | head -n 1)
base_stays() { diff <(tensors base | grep "^parameters/") <(tensors "$1" | grep "^parameters/" | grep -v adapter) >/dev/null; }
check "... its weights stay" base_stays one
check "... they have no moments" eval '! tensors one | grep "^optimizer/" | grep -v adapter'
check "... every adapter has, in all seven places" test "$(tensors one | grep -c '^optimizer/m/blocks.0.*adapter_[ab]')" = 14
run 2 train "${tune[@]}" run.dir=two train.max_steps=4 parallel.tensor=2 parallel.sequence=true
expect "the same on two ranks" 0 "warm start from base"
check "... the same losses" close_losses one two 1e-11
check "... the weights stay" base_stays two
run 2 train "${tune[@]}" run.dir=two train.max_steps=5 parallel.zero=3
expect "it goes on in another layout" 0 "resumed from two"
run 1 train "${tune[@]}" run.dir=bad train.max_steps=4 model.n_embd=64
expect "a base of another size" 2 "does not have what model.lora adapts" "stored as"

ids=3,17,5,8
{ printf '\x93NUMPY\x01\x00\x76\x00'
  printf '%-117s\n' "{'descr': '<i4', 'fortran_order': False, 'shape': (4,), }"
  printf '\x03\0\0\0\x11\0\0\0\x05\0\0\0\x08\0\0\0'; } >ids.npy
run 0 generate one --ids $ids --logits one.npy
expect "generating with adapters" 0 "logits=one.npy"
run 0 generate base --ids $ids --logits base.npy
check "... is not generating without them" eval '! cmp -s one.npy base.npy'
run 2 export one --format hf --merge --type f64 --out merged
expect "adapters become part of the weights" 0 "merged/model.safetensors"
same_model=(--check-ids ids.npy --check-logits one.npy --tolerance 1e-12 train.precision=fp64)
run 0 import merged --out merged_run "${same_model[@]}"
expect "... of a model that computes the same" 0 "logits agree"
run 0 export one --format peft --type f64 --out peft
expect "the adapters alone, as PEFT has them" 0 "peft/adapter_config.json" "peft/adapter_model.safetensors"
run 0 export base --format hf --type f64 --out base_hf
run 2 import base_hf --adapter peft --out again "${same_model[@]}"
expect "... and back, on top of the weights that they are of" 0 "logits agree"
check "... the same adapters" diff <(tensors one | grep ^parameters.*adapter) <(tensors again | grep ^parameters.*adapter)
run 0 export one --format hf --out nowhere
expect "adapters are not left out silently" 2 "--merge adds them to the weights"
run 0 export base --format peft --out nowhere
expect "no adapters to export" 2 "this one has none"
sed -i 's/"use_dora": false/"use_dora": true/' peft/adapter_config.json
run 0 import base_hf --adapter peft --out nowhere
expect "what is not supported is refused by its name" 2 "use_dora = true"
run 0 train "${small[@]}" model.lora.rank=4 'model.lora.targets=["q","dwn"]'
expect "a target that is not" 2 'there is no target "dwn"; nearest legal: "down"'
run 0 train "${small[@]}" model.lora.rank=4 model.tile=2
expect "tiles" 2 "nearest legal: tile = 1"
