#!/usr/bin/env bash
# model.lora: adapters are trained on top of a run whose weights stay the same, bit by bit, in every
# layout; they are exported to PEFT and imported again, and merged into the weights.
. "$(dirname "$0")/lib/common.sh"
deck=$root/inputs/verify_lora.json
run 4 verify "$deck" --layouts \
  "dp=2 tp=2 sequence=true zero=3,tp=4 recompute=full,cp=2 recompute=selective,pp=2 tp=2 schedule=zb-h1"
expect "adapters on every axis" 0 "VALID: 4 layouts"
run 4 verify "$deck" --layouts "tp=4 sequence=true" 'model.lora.targets=["q","v"]' 'train.unfreeze=["*norm*"]' \
  model.lora.rank_stabilised=true
expect "some targets, and norms trained with them" 0 "VALID: 1 layout trains"

small=("$root/inputs/verify_gpt.json" data.format=synthetic train.precision=fp64 train.global_batch_size=4 model.norm=rmsnorm
  model.activation=swiglu model.position=rope model.bias=false eval.interval=0 log.interval=1)
tune=("${small[@]}" checkpoint.init_from=base checkpoint.store_base=true model.lora.rank=4 optimizer.learning_rate=1e-2)
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
cp -r peft peft.nan
perl -e 'open my $f, "+<:raw", $ARGV[0] or die; seek $f, -8, 2; print $f pack "d<", "NaN"' peft.nan/adapter_model.safetensors
run 2 import base_hf --adapter peft.nan --out nowhere --allow-missing --allow-unused
expect "an adapter with a NaN" 3 "'peft.nan/adapter_model.safetensors' has weights that are NaN or infinite" ": 1 of "
cp -r peft peft.renamed
sed -i 's/base_model\.model\./base_model.nodel./g' peft.renamed/adapter_model.safetensors
rm -rf nowhere
run 1 import base_hf --adapter peft.renamed --out nowhere --allow-missing --allow-unused
expect "an adapter of which no name is known" 3 "has no tensor that the described model has"
check "... nothing is made of either" absent nowhere
for init in '"pissa_niter_4"' '"olora"' '"gaussian"'; do
  rm -rf peft.init nowhere
  cp -r peft peft.init
  sed -i "s/\"init_lora_weights\": true/\"init_lora_weights\": $init/" peft.init/adapter_config.json
  run 0 import base_hf --adapter peft.init --out nowhere
  case $init in
    '"gaussian"') expect "an initialisation of the factors alone" 0 "largest_share=" ;;
    *) expect "an initialisation that changes the base: $init" 2 "init_lora_weights = $init: the adapter belongs to weights that this initialisation has changed" ;;
  esac
done
rm -rf nowhere
sed -i 's/"use_dora": false/"use_dora": true/' peft/adapter_config.json
run 0 import base_hf --adapter peft --out nowhere
expect "what is not supported is refused by its name" 2 "use_dora = true"
run 2 train "${small[@]}" model.lora.rank=4 train.max_steps=1 run.dir=baseless
expect "adapters without a base" 0 "random weights beside its adapters (model.lora), and they stay frozen" "checkpoint.init_from"
check "... are warned of once" test "$(grep -c 'random weights beside' out)" = 1
run 0 train --check "${small[@]}" model.lora.rank=4 run.dir=baseless_too
expect "... also by --check" 0 "random weights beside its adapters"
run 1 train "${small[@]}" checkpoint.init_from=base model.lora.rank=4 train.max_steps=1 run.dir=based
check "... those of a base are not" lacks out "random weights"
run 0 train "${small[@]}" model.lora.rank=4 'model.lora.targets=["q","dwn"]'
expect "a target that is not" 2 'there is no target "dwn"; nearest legal: "down"'
run 0 train "${small[@]}" model.lora.rank=4 model.tile=2
expect "tiles" 2 "nearest legal: tile = 1"

# Checkpoints of adapters alone: the base has the rest.
own() { perl -MJSON::PP -e 'local $/; print "$_->{name}\n" for @{decode_json(<>)->{manifest}{tensors}}' \
  "$1/checkpoints/$(newest "$1")/manifest.json"; }  # own RUN: what its own file has
alone=("${small[@]}" checkpoint.init_from=base model.lora.rank=4 optimizer.learning_rate=1e-2)
run 1 train "${alone[@]}" run.dir=small train.max_steps=3 optimizer.decay_steps=4
expect "checkpoints of adapters" 0 "checkpoints leave out" "base/checkpoints/step_00000002" "checkpoint.store_base=true"
check "... have nothing else" eval 'own small | grep -q adapter && ! own small | grep ^parameters | grep -v adapter'
run 2 train "${alone[@]}" run.dir=small train.max_steps=4 optimizer.decay_steps=4 parallel.zero=3 parallel.tensor=1
expect "... continue in another layout" 0 "resumed from small/checkpoints/step_00000003" "checkpoints leave out"
check "... the losses of whole checkpoints" close_losses one small 1e-11
check "... and again nothing else" eval 'own small | grep -q adapter && ! own small | grep ^parameters | grep -v adapter'
run 1 inspect small/checkpoints/latest --verify
expect "... are verified with their base" 0 "ok: all checksums match" "base           "
run 0 generate small --ids $ids --logits small.npy
check "... generate the same" eval 'cmp -n 128 small.npy one.npy && [ "$(file_bytes small.npy)" = "$(file_bytes one.npy)" ]'
run 2 export small --format hf --merge --type f64 --out small_hf
expect "... are merged" 0 "small_hf/model.safetensors"
run 1 import small_hf --out small_run --check-ids ids.npy --check-logits small.npy --tolerance 1e-12 train.precision=fp64
expect "... into the same model" 0 "logits agree"
run 1 export small --format peft --type f64 --out small_peft
expect "... and exported alone" 0 "small_peft/adapter_model.safetensors"
run 1 train "${alone[@]/init_from=base/init_from=small}" run.dir=third train.max_steps=1
expect "a run on top of such a run" 0 "warm start from small" "stay in" "base/checkpoints/step_00000002"
mkdir moved && mv base small third moved
run 1 inspect moved/small/checkpoints/latest --verify
expect "both are moved together" 0 "moved/base/checkpoints/step_00000002" "ok: all checksums match"
mv moved/* .
mv base gone
for words in "generate small --ids $ids --logits x.npy" "export small --format peft --out x" "inspect small/checkpoints/latest" "train ${alone[*]} run.dir=small train.max_steps=6"; do
  # shellcheck disable=SC2086
  run 2 $words
  expect "without the base: ${words%% *}" 6 "its frozen weights are stored in its base" "base/checkpoints/step_00000002" "put the base back"
done
ln -s gone base
run 1 inspect small/checkpoints/latest
expect "a link to where it is now" 0 "base           "
rm base
mv gone base
cp -r base kept
run 1 train "${small[@]}" run.dir=other run.seed=99 train.max_steps=2
rm -rf base/checkpoints/step_00000002 && cp -r other/checkpoints/step_00000002 base/checkpoints
run 2 generate small --ids $ids --logits x.npy
expect "another base in its place" 6 "has other weights now (crc32c"
rm -rf base && mv kept base
flip_byte base/checkpoints/step_00000002/state.h5 9000
run 2 generate small --ids $ids --logits x.npy
expect "a damaged base" 6 "its base" "damaged"
flip_byte base/checkpoints/step_00000002/state.h5 9000
run 1 train "${alone[@]}" run.dir=small train.max_steps=5 optimizer.decay_steps=4 checkpoint.store_base=true
expect "everything from now on" 0 "resumed from small"
check "... is stored" eval 'own small | grep ^parameters | grep -qv adapter'

# Untrained weights in bf16 alone: the bits are those of the run that keeps masters of them, before
# and after a resume.
plain=()
for word in "${small[@]}"; do [[ $word == train.precision=* ]] || plain+=("$word"); done
same=("${plain[@]}" model.lora.rank=4 optimizer.learning_rate=1e-2)
# Numbers of fp64 would be rounded twice on one path and once on the other.
run 1 train "${plain[@]}" train.precision=fp32 run.dir=base32 train.max_steps=2
tune=("${same[@]}" checkpoint.init_from=base32 checkpoint.store_base=true train.precision=bf16-mixed)
narrow=(train.frozen_precision=bf16)
run 2 train "${tune[@]}" run.dir=wide train.max_steps=4 parallel.zero=3
expect "adapters in bf16-mixed" 0 "warm start from base32"
run 2 train "${tune[@]}" "${narrow[@]}" run.dir=narrow train.max_steps=4 parallel.zero=3
expect "... on a base in bf16" 0 "warm start from base32"
check "... the same losses" same_losses wide narrow
dtypes() { awk -F'"' '$2 == "dtype" { type = $4 } $2 == "name" && $4 ~ /^parameters/ { print $4 ~ /adapter/ ? "adapter" : "base", type }' \
  "$1/checkpoints/$(newest "$1")/manifest.json" | sort -u; }
check "... a checkpoint without fp32 of the base" test "$(dtypes narrow)" = "$(printf 'adapter f32\nbase bf16')"
run 2 train "${tune[@]}" run.dir=wide train.max_steps=5
run 2 train "${tune[@]}" run.dir=narrow train.max_steps=5
expect "... goes on with masters, in another layout" 0 "resumed from narrow"
check "... the same losses" same_losses wide narrow
run 1 train "${tune[@]}" "${narrow[@]}" run.dir=wide train.max_steps=6
expect "... and the run with masters without them" 0 "resumed from wide"
run 1 train "${tune[@]}" "${narrow[@]}" run.dir=narrow train.max_steps=6
check "... the same losses" same_losses wide narrow
run 0 generate wide --ids $ids --logits wide.npy
run 0 generate narrow --ids $ids --logits narrow.npy
check "... and the same logits" cmp wide.npy narrow.npy
run 2 export narrow --format hf --merge --type f32 --out narrow_hf
expect "a base in bf16 with its adapters for others" 0 "narrow_hf/model.safetensors"
# The fp32 run of the same rounded weights; tolerance as in precision.sh, for 4 x 26 targets and logits below 1.
run 1 train "${same[@]}" checkpoint.init_from=narrow train.precision=fp32 run.dir=exact train.max_steps=1
run 1 train "${same[@]}" checkpoint.init_from=narrow train.precision=bf16-mixed "${narrow[@]}" run.dir=rounded train.max_steps=1
check "... is that of fp32 but for the rounding of activations" close_losses exact rounded 0.002
check "... which is there" eval "! close_losses exact rounded 1e-9"
run 1 train "${small[@]}" model.lora.rank=4 "${narrow[@]}"
expect "bf16 where fp64 computes" 2 'train.frozen_precision = "bf16" is for models that compute with bf16' 'train.precision = "bf16-mixed"'
run 1 train "$root/inputs/verify_gpt.json" "${narrow[@]}" train.precision=bf16-mixed
expect "nothing is frozen" 2 "neither train.freeze nor model.lora is given"
