#include "src/models/gpt/foreign/hugging_face.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "choir/core/json.hpp"
#include "choir/core/json_text.hpp"
#include "choir/core/text.hpp"
#include "choir/deck/key_reader.hpp"
#include "src/models/gpt/foreign/hugging_face_layers.hpp"

namespace choir {
namespace {

constexpr std::array<LlamaLike, 5> kLlamaLike{{
    {.type = "llama", .has_biases = true},
    {.type = "mistral", .needs_kv_heads = true, .window = 4096},
    {.type = "qwen2", .needs_kv_heads = true, .qkv_bias = true, .unwindowed = 28},
    {.type = "qwen3",
     .needs_kv_heads = true,
     .has_biases = true,
     .qk_norm = true,
     .head_width = 128,
     .unwindowed = 28},
    {.type = "smollm3",
     .tied = true,
     .needs_kv_heads = true,
     .has_biases = true,
     .windows_where_bare = true,
     .bare_layer = 4,
     .rope_theta = 2e6},
}};

struct ActivationName {
  std::string_view there;
  ops::Activation activation;
};
constexpr std::array<ActivationName, 5> kActivationNames{{
    {"gelu_new", ops::Activation::gelu_tanh},
    {"gelu_pytorch_tanh", ops::Activation::gelu_tanh},
    {"gelu", ops::Activation::gelu},
    {"relu", ops::Activation::relu},
    {"silu", ops::Activation::silu},
}};

constexpr std::array<const char*, 3> kTokenIds{"bos_token_id", "eos_token_id", "pad_token_id"};

/// Accepts keys that do not affect a forward pass. Dropout is not used in inference, and
/// fine-tuning has its own key for it.
void pass_over(KeyReader& keys) {
  keys.harmless({"architectures",
                 "model_type",
                 "bos_token_id",
                 "eos_token_id",
                 "pad_token_id",
                 "unk_token_id",
                 "sep_token_id",
                 "dtype",
                 "torch_dtype",
                 "initializer_range",
                 "transformers_version",
                 "use_cache",
                 "_name_or_path",
                 "name_or_path",
                 "transformers.js_config",
                 "attention_dropout",
                 "is_llama_config",
                 "id2label",
                 "label2id",
                 "tokenizer_class",
                 "gradient_checkpointing",
                 "output_attentions",
                 "output_hidden_states",
                 "return_dict",
                 "torchscript",
                 "_from_model_config",
                 "task_specific_params",
                 "_attn_implementation_autoset"});
  keys.only("is_encoder_decoder", false, "only decoders are read");
}

void read_gpt2(KeyReader& keys, GptConfig& c) {
  c.n_layer = keys.needed("n_layer");
  c.n_head = c.n_kv_head = keys.needed("n_head");
  c.n_embd = keys.needed("n_embd");
  c.block_size = keys.needed("n_positions");
  c.ffn_width = keys.has("n_inner") ? keys.needed("n_inner") : 4 * c.n_embd;
  keys.only("n_inner", c.ffn_width, "not a width");
  keys.only("n_ctx", c.block_size, "another length than n_positions");
  c.norm_eps = keys.real("layer_norm_epsilon", 1e-5);
  const std::string activation = keys.text("activation_function", "gelu_new");
  const auto known =
      std::find_if(kActivationNames.begin(), kActivationNames.end(),
                   [&](const ActivationName& one) { return one.there == activation; });
  if (known == kActivationNames.end())
    keys.problem("activation_function", "gelu_new, gelu, relu and silu are supported");
  else
    c.activation = known->activation;
  c.tied = keys.flag("tie_word_embeddings", true);
  keys.only("add_cross_attention", false, "cross-attention is not supported");
  keys.only("scale_attn_weights", true, "scores are always divided by the root of the head width");
  keys.only("scale_attn_by_inverse_layer_idx", false, "not supported");
  keys.harmless({"reorder_and_upcast_attn", "attn_pdrop", "embd_pdrop", "resid_pdrop",
                 "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
                 "summary_type", "summary_use_proj"});
  c.bias = true;
  c.norm = ops::Norm::layernorm;
  c.position = Position::learned;
}

void read_llama(KeyReader& keys, const LlamaLike& like, GptConfig& c, const std::string& source,
                std::vector<std::string>& problems) {
  c.n_layer = keys.needed("num_hidden_layers");
  c.n_head = keys.needed("num_attention_heads");
  c.n_embd = keys.needed("hidden_size");
  c.n_kv_head = like.needs_kv_heads || keys.has("num_key_value_heads")
                    ? keys.needed("num_key_value_heads")
                    : c.n_head;
  c.ffn_width = keys.needed("intermediate_size");
  c.block_size = keys.needed("max_position_embeddings");
  c.norm_eps = keys.real("rms_norm_eps", 1e-6);
  c.tied = keys.flag("tie_word_embeddings", like.tied);
  c.bias = false;
  if (like.has_biases) {
    const bool attention = keys.flag("attention_bias", false), mlp = keys.flag("mlp_bias", false);
    if (attention != mlp)
      keys.problem(attention ? "attention_bias" : "mlp_bias",
                   "biases in a part of the linear layers are not supported");
    c.bias = attention && mlp;
  }
  if (like.qkv_bias) c.qkv_bias = Biases::yes;
  c.qk_norm = like.qk_norm;
  const std::int64_t width = keys.has("head_dim") ? keys.needed("head_dim") : like.head_width;
  keys.harmless({"head_dim"});
  if (width * c.n_head != c.n_embd) c.own_head_width = width;
  keys.only("hidden_act", "silu", "only silu, of SwiGLU, is supported");
  keys.only("pretraining_tp", 1, "not supported");
  read_window(keys, like, c);
  read_bare_layers(keys, like, c);
  read_rope(keys, like, c, source, problems);
  c.norm = ops::Norm::rmsnorm;
  c.activation = ops::Activation::swiglu;
  c.position = Position::rope;
}

std::string known_types() {
  std::string text = "gpt2";
  for (const LlamaLike& like : kLlamaLike) text += fmt::format(", {}", like.type);
  return text;
}

std::string_view activation_there(ops::Activation activation) {
  const auto known =
      std::find_if(kActivationNames.begin(), kActivationNames.end(),
                   [&](const ActivationName& one) { return one.activation == activation; });
  return known->there;
}

void add_tokens(nlohmann::ordered_json& json, const std::string& tokens) {
  if (tokens.empty()) return;
  const auto held = read_ordered_json(tokens, "tokenizer/config.json");
  for (const char* key : kTokenIds)
    if (held.contains(key)) json[key] = held.at(key);
}

void add_gpt2(nlohmann::ordered_json& json, const GptConfig& c) {
  json["architectures"] = {"GPT2LMHeadModel"};
  json["model_type"] = "gpt2";
  json["vocab_size"] = c.vocab_size;
  json["n_positions"] = json["n_ctx"] = c.block_size;
  json["n_layer"] = c.n_layer;
  json["n_head"] = c.n_head;
  json["n_embd"] = c.n_embd;
  json["n_inner"] = c.ffn_width;
  json["activation_function"] = activation_there(c.activation);
  json["layer_norm_epsilon"] = c.norm_eps;
  for (const char* dropout : {"attn_pdrop", "embd_pdrop", "resid_pdrop"}) json[dropout] = 0.0;
}

nlohmann::ordered_json scaling_json(const ops::RopeScaling& s) {
  using Kind = ops::RopeScaling::Kind;
  if (s.kind == Kind::none) return nullptr;
  nlohmann::ordered_json json;
  json["rope_type"] = s.kind == Kind::linear   ? "linear"
                      : s.kind == Kind::llama3 ? "llama3"
                                               : "yarn";
  json["factor"] = s.factor;
  if (s.kind == Kind::linear) return json;
  json["original_max_position_embeddings"] = static_cast<std::int64_t>(s.original);
  if (s.kind == Kind::llama3) {
    json["low_freq_factor"] = s.low;
    json["high_freq_factor"] = s.high;
    return json;
  }
  json["beta_fast"] = s.beta_fast;
  json["beta_slow"] = s.beta_slow;
  if (!s.truncate) json["truncate"] = false;
  if (s.attention_factor > 0) json["attention_factor"] = s.attention_factor;
  return json;
}

/// The model_type of transformers whose class computes the same as this model.
std::string_view llama_type(const GptConfig& c) {
  const bool qkv_alone = !c.bias && c.has(c.qkv_bias), bare = c.rope_skip_interval > 0;
  const auto refuse = [](const char* what) -> std::string_view {
    throw DeckError(fmt::format("no model of transformers has {} together", what),
                    "llama, mistral, qwen2, qwen3 and smollm3 are written");
  };
  if (c.qk_norm) {
    if (c.bias || qkv_alone) return refuse("model.qk_norm and biases");
    return bare ? refuse("model.qk_norm and model.rope_skip_interval") : "qwen3";
  }
  if (bare) {
    if (qkv_alone) return refuse("model.rope_skip_interval and biases of q, k and v alone");
    return c.window > 0 ? refuse("model.rope_skip_interval and model.attention_window") : "smollm3";
  }
  if (qkv_alone) return "qwen2";
  if (c.window == 0) return "llama";
  if (c.bias) return refuse("model.attention_window and model.bias");
  if (c.window_first_layer > 0 || c.window_skip_interval > 0)
    return refuse(
        "model.attention_window in some layers, and neither model.qk_norm nor biases of q, k and "
        "v");
  return "mistral";
}

std::string class_name_of(std::string_view type) {
  return type == "llama"     ? "LlamaForCausalLM"
         : type == "mistral" ? "MistralForCausalLM"
         : type == "qwen2"   ? "Qwen2ForCausalLM"
         : type == "qwen3"   ? "Qwen3ForCausalLM"
                             : "SmolLM3ForCausalLM";
}

void add_window(nlohmann::ordered_json& json, const GptConfig& c, std::string_view type) {
  if (type == "llama") return;
  if (c.window == 0)
    json["sliding_window"] = nullptr;
  else
    json["sliding_window"] = c.window;
  if (type == "mistral") return;
  json["use_sliding_window"] = c.window > 0;
  auto types = nlohmann::ordered_json::array();
  for (std::int64_t layer = 0; layer < c.n_layer; ++layer)
    types.push_back(c.window_of(layer) > 0 ? "sliding_attention" : "full_attention");
  json["layer_types"] = std::move(types);
  if (type == "smollm3") return;
  json["max_window_layers"] = c.window > 0 ? c.window_first_layer : c.n_layer;
}

void add_llama(nlohmann::ordered_json& json, const GptConfig& c) {
  const std::string_view type = llama_type(c);
  json["architectures"] = {class_name_of(type)};
  json["model_type"] = type;
  json["vocab_size"] = c.vocab_size;
  json["max_position_embeddings"] = c.block_size;
  json["num_hidden_layers"] = c.n_layer;
  json["num_attention_heads"] = c.n_head;
  json["num_key_value_heads"] = c.n_kv_head;
  json["head_dim"] = c.head_width();
  json["hidden_size"] = c.n_embd;
  json["intermediate_size"] = c.ffn_width;
  json["hidden_act"] = "silu";
  if (type == "llama" || type == "smollm3") json["attention_bias"] = json["mlp_bias"] = c.bias;
  if (type == "qwen3") json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["rms_norm_eps"] = c.norm_eps;
  json["rope_theta"] = c.rope_theta;
  json["rope_scaling"] = scaling_json(c.rope_scaling);
  add_window(json, c, type);
  if (type != "smollm3") return;
  auto with = nlohmann::ordered_json::array();
  for (std::int64_t layer = 0; layer < c.n_layer; ++layer) with.push_back(c.rotates(layer) ? 1 : 0);
  json["no_rope_layers"] = std::move(with);
  json["no_rope_layer_interval"] = c.rope_skip_interval;
}

}  // namespace

ForeignModel model_from_hf(const std::string& text, const std::string& source, bool allow_unknown) {
  const JsonDocument document = parse_json(text, source);
  KeyReader keys(document.root(), source);
  pass_over(keys);
  ForeignModel model;
  GptConfig& c = model.config;
  const std::string type = keys.text("model_type", "");
  std::vector<std::string> problems;
  c.vocab_size = keys.needed("vocab_size");
  const auto like = std::find_if(kLlamaLike.begin(), kLlamaLike.end(),
                                 [&](const LlamaLike& one) { return one.type == type; });
  if (type == "gpt2") {
    model.dialect = Dialect::hf_gpt2;
    read_gpt2(keys, c);
  } else if (like != kLlamaLike.end()) {
    model.dialect = Dialect::hf_llama;
    read_llama(keys, *like, c, source, problems);
  } else {
    keys.problem("model_type", "these are read: " + known_types());
    refuse_problems(source, keys.problems(true));
  }
  const auto more = keys.problems(allow_unknown);
  problems.insert(problems.end(), more.begin(), more.end());
  refuse_problems(source, problems);
  return model;
}

Dialect hf_dialect_of(const GptConfig& c) {
  const bool gated = c.activation == ops::Activation::swiglu;
  if (c.position == Position::learned && c.norm == ops::Norm::layernorm && !gated &&
      c.n_kv_head == c.n_head && c.attention_width() == c.n_embd && !c.qk_norm && c.window == 0)
    return Dialect::hf_gpt2;
  if (c.position == Position::rope && c.norm == ops::Norm::rmsnorm && gated) {
    llama_type(c);  // refuses unsupported models
    return Dialect::hf_llama;
  }
  throw DeckError(
      "no model of other programs has this model.norm, model.position, model.activation and "
      "model.n_kv_head together",
      "GPT-2 has layernorm, learned positions, n_kv_head = n_head and no swiglu, window, qk_norm "
      "or "
      "head_width; Llama has rmsnorm, rope and swiglu");
}

std::string hf_config(const GptConfig& config, const std::string& dtype,
                      const std::string& tokens) {
  nlohmann::ordered_json json;
  if (hf_dialect_of(config) == Dialect::hf_gpt2)
    add_gpt2(json, config);
  else
    add_llama(json, config);
  json["tie_word_embeddings"] = config.tied;
  for (const char* key : kTokenIds) json[key] = nullptr;
  add_tokens(json, tokens);
  json["torch_dtype"] = json["dtype"] = dtype;
  json["use_cache"] = true;
  return dumped(json, 2) + "\n";
}

std::string hf_generation_config(const std::string& tokens) {
  nlohmann::ordered_json json;
  json["_from_model_config"] = true;
  add_tokens(json, tokens);
  return dumped(json, 2) + "\n";
}

}  // namespace choir
