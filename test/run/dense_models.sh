#!/usr/bin/env bash
# Gemma 1, 2 and 3, Granite, OLMo 2 and 3, GPT-NeoX and Phi-3, also with longrope: models of transformers and llama.cpp are
# read and written bit for bit, with equal logits, and adapters are trained on them alike in several
# layouts. The weights are those of test/unit/models/gpt/dense_models_test.cpp, which has the golden numbers.
. "$(dirname "$0")/lib/common.sh"
. "$(dirname "$0")/lib/dense_models.sh"

parameters() { tensors "$1" | grep '^parameters/'; }
adapters() { parameters "$1" | grep adapter; }
same_adapters() { same "adapters $1" "adapters $2"; }
same_parameters() { same "parameters $1" "parameters $2"; }

for model in $dense_models; do
  dense_model "$model"
  run 1 import $model --out $model.run
  expect "$model" 0 "largest_share="
  run 1 generate $model.run --ids $ids --logits $model.npy
  expect "... its logits" 0 "shape=[12, 64]"
  run 2 generate $model.run --ids $ids --logits $model.tp.npy --tensor 2
  check "... from a divided model" differ_by_at_most $model.tp.npy $model.npy 1e-5
  run 2 export $model.run --format hf --out $model.hf
  expect "... exported for transformers" 0 "format=hf"
  run 2 import $model.hf --out $model.back
  check "... and imported: the same bits" same_parameters $model.run $model.back
  # GGUF has the factors of norms, 1 + w, of which w has not all bits; the file is the same again.
  run 2 export $model.run --format gguf --out $model.gguf --name $model
  expect "... exported for llama.cpp" 0 "format=gguf"
  run 1 import $model.gguf --out $model.g
  expect "... and imported" 0 "largest_share="
  run 1 generate $model.g --ids $ids --logits $model.g.npy
  check "... with the same logits" differ_by_at_most $model.g.npy $model.npy 1e-5
  run 1 export $model.g --format gguf --out $model.again.gguf --name $model
  check "... and exported: the same bytes" cmp $model.gguf $model.again.gguf
done
for model in granite olmo2 olmo3 gpt_neox phi3 phi3_long; do
  check "$model has no offsets: the same bits" same_parameters $model.run $model.g
done

# A factor of scores that llama.cpp has no key for becomes one of the queries, or of their norm.
sed 's/"query_pre_attn_scalar": 16/"query_pre_attn_scalar": 24/' gemma2/config.json >config.json
cp -r gemma2 other && mv config.json other/
run 1 import other --out other.run
expect "another factor of scores" 0
run 1 generate other.run --ids $ids --logits other.npy
check "... changes the logits" eval '! differ_by_at_most other.npy gemma2.npy 0.01'
for model in gemma2 gemma3; do
  rm -rf other other.run
  sed 's/"query_pre_attn_scalar": 16/"query_pre_attn_scalar": 24/' $model/config.json >config.json
  cp -r $model other && mv config.json other/
  run 1 import other --out other.run
  run 1 generate other.run --ids $ids --logits other.npy
  run 1 export other.run --format gguf --out other.$model.gguf
  expect "$model: another factor of scores, written for llama.cpp" 0
  run 1 import other.$model.gguf --out other.$model
  run 1 generate other.$model --ids $ids --logits other.g.npy
  check "... is in the weights" differ_by_at_most other.g.npy other.npy 1e-5
done
run 1 export gemma3.run --format nanogpt --out no
expect "Gemma is no nanoGPT" 2 "norm_offset"

# The block size chooses between the lists of longrope, and a file keeps the length of its factor.
run 1 import phi3_long --out short.run model.block_size=8
expect "longrope in short rows" 0 "largest_share="
run 1 generate short.run --ids ${ids%,*,*,*,*} --logits short.npy
run 1 generate phi3_long.run --ids ${ids%,*,*,*,*} --logits long.npy
check "... has other angles" eval '! differ_by_at_most short.npy long.npy 0.1'
run 1 export short.run --format gguf --out short.gguf
run 1 import short.gguf --out short.again model.block_size=8
run 1 generate short.again --ids ${ids%,*,*,*,*} --logits again.npy
check "... which llama.cpp's file keeps" differ_by_at_most short.npy again.npy 1e-5
run 1 train "$root/inputs/verify_modern.json" run.dir=no model.rope_scaling=longrope model.rope_original=8
expect "factors that are not given" 2 "model.rope_long_factors has 0 numbers, but 3 pairs"

# Adapters on a frozen Gemma train alike on one rank and in layouts.
head -c 4000 /dev/zero | tr '\0' '\7' | sed 's/\x07\x07\x07\x07/\x03\x00\x11\x00/g' >tokens.bin
adapt() {  # adapt RANKS NAME [ARGUMENT...]
  local ranks=$1 name=$2
  shift 2
  run "$ranks" train gemma3.run/deck.json run.dir="$name" checkpoint.init_from=gemma3.run 'data.train=["tokens.bin"]' \
    model.lora.rank=2 train.max_steps=3 train.micro_batch_size=1 train.grad_accum=0 train.global_batch_size=4 device=cpu \
    optimizer.learning_rate=1e-2 log.interval=1 "$@"
}
adapt 1 adapted.1
expect "adapters on Gemma 3" 0 "warm start from gemma3.run"
adapt 4 adapted.4 parallel.tensor=2 parallel.pipeline=2
expect "... on four ranks" 0 "warm start from gemma3.run"
check "... with the same losses" close_losses adapted.1 adapted.4 1e-5
adapt 2 adapted.2 parallel.context=2 parallel.zero=1
expect "... on two ranks of a context" 0 "warm start from gemma3.run"
check "... with the same losses" close_losses adapted.1 adapted.2 1e-5

# Adapters of targets that are one module of PEFT, query_key_value, qkv_proj or gate_up_proj, are stacked there.
for model in gpt_neox phi3; do
  run 1 train $model.run/deck.json run.dir=$model.lora checkpoint.init_from=$model.run 'data.train=["tokens.bin"]' \
    model.lora.rank=2 'model.lora.targets=["q","v","up","down"]' train.max_steps=2 train.grad_accum=0 train.global_batch_size=2 \
    device=cpu optimizer.learning_rate=1e-2
  expect "adapters on $model" 0 "warm start from $model.run"
  run 2 export $model.lora --format peft --out $model.peft
  expect "... exported" 0 "format=peft" "stacked: " "rank_pattern"
  run 2 import $model --adapter $model.peft --out $model.again
  expect "... and imported" 0 "largest_share="
  check "... the same adapters" same_adapters $model.lora $model.again
  run 1 export $model.lora --format hf --merge --out $model.merged
  run 1 import $model.merged --out $model.one
  run 1 generate $model.lora --ids $ids --logits a.npy
  run 1 generate $model.one --ids $ids --logits b.npy
  check "... with the logits of the merged model" differ_by_at_most a.npy b.npy 1e-5
done
sed -i 's/"query_key_value": 6/"query_key_value": 4/' gpt_neox.peft/adapter_config.json
run 1 import gpt_neox --adapter gpt_neox.peft --out no
expect "another rank of one module" 2 'rank_pattern = {"query_key_value":4}'

# A configuration that is not supported is refused, and the message names its key.
refuse() {  # refuse NAME MODEL SED WORD: a description that is changed
  cp -r "$2" wrong && sed -i "$3" wrong/config.json
  run 1 import wrong --out no
  expect "$1" 2 "$4"
  rm -rf wrong
}
refuse "a model that sees" gemma3 's/gemma3_text/gemma3/' "parts for images are not supported"
refuse "Gemma with SwiGLU" gemma 's/"hidden_act": "gelu"/"hidden_act": "silu"/' "hidden_act"
refuse "an unknown key" gemma2 's/"head_dim"/"head_share": 3, "head_dim"/' "head_share"
refuse "a cap below 0" gemma2 's/"final_logit_softcapping": 6.0/"final_logit_softcapping": -6.0/' "final_logit_softcapping"
refuse "longrope with too few factors" phi3_long 's/1.5, 2.0/1.5/' "have 3 and 4 numbers for 4 pairs"
refuse "OLMo with one bias" olmo2 's/"model_type"/"attention_bias": true, "model_type"/' "attention_bias"
refuse "a part of a head that is not even" gpt_neox 's/0.25/0.1/' "rope_width"
run 1 train "$root/inputs/verify_modern.json" run.dir=no model.qk_norm=false model.qk_norm_span=width
expect "the width of a norm that does not exist" 2 "model.qk_norm_span = \"width\" is for model.qk_norm = true"
run 1 train "$root/inputs/verify_modern.json" run.dir=no model.rope_width=8
expect "more features than a head has" 2 "model.rope_width = 8 is no even number of the 6 features"
run 1 train "$root/inputs/verify_gemma.json" run.dir=no model.residual_scale=0.5
expect "a factor that norms undo" 2 "model.residual_scale = 0.5 is undone"
run 1 train "$root/inputs/verify_gemma.json" run.dir=no model.attention=cudnn
expect "cuDNN has no soft cap" 2 "model.attention_softcap = 4"
run 1 train "$root/inputs/verify_gemma.json" run.dir=no model.attention_window=0 model.window_skip_interval=0
expect "angles of layers that do not exist" 2 "model.rope_local_theta is for layers with a window"
run 1 train "$root/inputs/verify_gemma.json" run.dir=no model.rope_scaling=none model.rope_factor=1
expect "... or scaling" 2 "model.rope_scaling_layers = \"full\""
