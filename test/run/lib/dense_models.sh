# shellcheck shell=bash
# Sourced after common.sh: descriptions of tiny models with random weights, for the weights of
# test/unit/models/gpt/dense_models_test.cpp, which has the golden numbers.
tiny() { perl "$root/test/run/lib/tiny_models.pl" "$@"; }
weights=$root/test/unit/models/gpt/golden/dense_models.safetensors
common='"vocab_size": 64, "max_position_embeddings": 64'
wide='"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4'
deep=${wide/layers\": 2/layers\": 4}
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
  [olmo2]="\"model_type\": \"olmo2\", $wide, \"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-06, \"rope_theta\": 500000.0"
  [olmo3]="\"model_type\": \"olmo3\", $deep, \"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-06,
    \"rope_theta\": 500000.0, \"sliding_window\": 5, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0,
    \"attention_factor\": 1.138629436111989, \"beta_fast\": 4, \"beta_slow\": 1, \"original_max_position_embeddings\": 16}"
  [gpt_neox]="\"model_type\": \"gpt_neox\", \"hidden_size\": 32, \"intermediate_size\": 64, \"num_hidden_layers\": 2,
    \"num_attention_heads\": 2, \"layer_norm_eps\": 1e-05, \"rotary_pct\": 0.25, \"use_parallel_residual\": true"
  [phi3]="\"model_type\": \"phi3\", $wide, \"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0,
    \"partial_rotary_factor\": 0.75, \"tie_word_embeddings\": true, \"original_max_position_embeddings\": 64"
  [phi3_long]="\"model_type\": \"phi3\", $wide, \"num_key_value_heads\": 2, \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0,
    \"original_max_position_embeddings\": 8, \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1.0, 1.25, 1.5, 2.0],
    \"long_factor\": [1.0, 1.75, 3.0, 4.5]}"
)
dense_models="gemma gemma2 gemma3 granite olmo2 olmo3 gpt_neox phi3 phi3_long"
# dense_model NAME: writes the folder of a model as transformers saves it.
dense_model() {
  tiny take "$1" "$weights" "$1"
  echo "{${configs[$1]}, $common}" >"$1/config.json"
}
ids=4,58,46,44,62,43,61,28,42,28,20,59
differ_by_at_most() { awk -v d="$(tiny difference "$1" "$2")" -v most="$3" 'BEGIN { exit !(d <= most) }'; }
