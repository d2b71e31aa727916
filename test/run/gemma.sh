#!/usr/bin/env bash
# Gemma 1, 2 and 3 and Granite: models of transformers and llama.cpp are read and written bit for bit,
# with equal logits, and adapters are trained on them alike in several layouts. The weights are those
# of test/unit/models/gpt/dense_models_test.cpp, which has the golden numbers.
. "$(dirname "$0")/lib/common.sh"
. "$(dirname "$0")/lib/golden_models.sh"

weights=$root/test/unit/models/gpt/golden/dense_models.safetensors
common='"vocab_size": 64, "max_position_embeddings": 64'
wide='"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4'
gemma='"head_dim": 16, "rms_norm_eps": 1e-06, "attention_bias": false, "hidden_activation": "gelu_pytorch_tanh"'
declare -A configs=(
  [gemma]="\"model_type\": \"gemma\", $wide, \"num_key_value_heads\": 1, $gemma, \"rope_theta\": 10000.0, \"hidden_act\": \"gelu\""
  [gemma2]="\"model_type\": \"gemma2\", $wide, \"num_key_value_heads\": 2, $gemma, \"rope_theta\": 10000.0,
    \"query_pre_attn_scalar\": 16, \"sliding_window\": 5, \"attn_logit_softcapping\": 4.0, \"final_logit_softcapping\": 6.0"
  [gemma3]="\"model_type\": \"gemma3_text\", \"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 6,
    \"num_attention_heads\": 2, \"num_key_value_heads\": 1, $gemma, \"rope_theta\": 1000000.0, \"query_pre_attn_scalar\": 16,
    \"sliding_window\": 5, \"sliding_window_pattern\": 6, \"rope_local_base_freq\": 10000.0,
    \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8.0}"
  [granite]="\"model_type\": \"granite\", $wide, \"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-05, \"hidden_act\": \"silu\",
    \"rope_theta\": 10000.0, \"tie_word_embeddings\": true, \"embedding_multiplier\": 12.0, \"residual_multiplier\": 0.22,
    \"attention_multiplier\": 0.03125, \"logits_scaling\": 8.0"
)
differ_by_at_most() { awk -v d="$(tiny difference "$1" "$2")" -v most="$3" 'BEGIN { exit !(d <= most) }'; }
parameters() { tensors "$1" | grep '^parameters/'; }
same_parameters() { same "parameters $1" "parameters $2"; }
ids=4,58,46,44,62,43,61,28,42,28,20,59

for model in gemma gemma2 gemma3 granite; do
  tiny take $model "$weights" $model
  echo "{${configs[$model]}, $common}" >$model/config.json
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
check "granite has no offsets: the same bits" same_parameters granite.run granite.g

# A factor of scores that llama.cpp has no key for, and one window that is all layers'.
sed 's/"query_pre_attn_scalar": 16/"query_pre_attn_scalar": 24/' gemma2/config.json >config.json
cp -r gemma2 other && mv config.json other/
run 1 import other --out other.run
expect "another factor of scores" 0
run 1 generate other.run --ids $ids --logits other.npy
check "... changes the logits" eval '! differ_by_at_most other.npy gemma2.npy 0.01'
run 1 export other.run --format gguf --out no.gguf
expect "... is nothing for llama.cpp" 2 "attention_scale" "export --format hf supports it"
run 1 export gemma3.run --format nanogpt --out no
expect "Gemma is no nanoGPT" 2 "norm_offset"

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
run 1 train "$root/inputs/verify_gemma.json" run.dir=no model.residual_scale=0.5
expect "a factor that norms undo" 2 "model.residual_scale = 0.5 is undone"
run 1 train "$root/inputs/verify_gemma.json" run.dir=no model.attention=cudnn
expect "cuDNN has no soft cap" 2 "model.attention_softcap = 4"
run 1 train "$root/inputs/verify_gemma.json" run.dir=no model.attention_window=0 model.window_skip_interval=0
expect "angles of layers that do not exist" 2 "model.rope_local_theta is for layers with a window"
run 1 train "$root/inputs/verify_gemma.json" run.dir=no model.rope_scaling=none model.rope_factor=1
expect "... or scaling" 2 "model.rope_scaling_layers = \"full\""
