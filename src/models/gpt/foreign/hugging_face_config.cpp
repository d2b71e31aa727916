// Writes the description of a GPT as config.json of transformers: the choice of the class that
// computes the same, the refusal of models that no class computes, and the keys of each class.

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "choir/core/error.hpp"
#include "src/core/json_document.hpp"
#include "src/core/json_value.hpp"
#include "src/models/gpt/foreign/foreign_model.hpp"
#include "src/models/gpt/gpt_config.hpp"

namespace choir {
namespace {

constexpr std::array<const char*, 3> kTokenIds{"bos_token_id", "eos_token_id", "pad_token_id"};

/// The name of an activation without a gate in GPT-2's description.
std::string_view activation_there(ops::Activation activation) {
  using enum ops::Activation;
  return activation == gelu_tanh ? "gelu_new"
         : activation == relu    ? "relu"
         : activation == silu    ? "silu"
                                 : "gelu";
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

/// True if two factors are equal up to the digits of a deck.
bool same_factor(double a, double b) {
  return std::fabs(a - b) <= 1e-9 * std::fabs(b);
}

/// Phi-3's scaling has exactly three fields in version 4, which computes the factor of queries and
/// keys from two lengths; another factor is a fourth field, which only version 5 accepts.
nlohmann::ordered_json longrope_json(const GptConfig& c) {
  nlohmann::ordered_json json;
  json["type"] = "longrope";
  json["short_factor"] = rope_factors(c.rope_short_factors);
  json["long_factor"] = rope_factors(c.rope_long_factors);
  ops::RopeScaling by_lengths = c.rope_scaling;
  by_lengths.factor = static_cast<double>(described_length(c)) / c.rope_scaling.original;
  by_lengths.attention_factor = 0;
  const double factor = ops::rope_attention_factor(c.rope_scaling);
  if (!same_factor(ops::rope_attention_factor(by_lengths), factor))
    json["attention_factor"] = factor;
  return json;
}

nlohmann::ordered_json scaling_json(const GptConfig& c) {
  using Kind = ops::RopeScaling::Kind;
  const ops::RopeScaling& s = c.rope_scaling;
  if (s.kind == Kind::longrope) return longrope_json(c);
  if (s.kind == Kind::none) return nullptr;
  nlohmann::ordered_json json;
  json["rope_type"] = s.kind == Kind::linear   ? "linear"
                      : s.kind == Kind::llama3 ? "llama3"
                                               : "yarn";
  json["factor"] = s.factor;
  if (s.kind == Kind::linear) return json;
  json["original_max_position_embeddings"] = s.original;
  if (const auto whole = static_cast<std::int64_t>(s.original); whole == s.original)
    json["original_max_position_embeddings"] = whole;
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

/// Throws a DeckError that names the first key in the list that is set, if any is.
void refuse_keys(const std::string& type,
                 std::initializer_list<std::pair<const char*, bool>> set_keys) {
  for (const auto& [key, is_set] : set_keys)
    if (is_set)
      throw DeckError(
          fmt::format("{} of transformers has no model.{} like this one", type, key),
          "gpt2, gpt_neox, llama, mistral, qwen2, qwen3, smollm3, gemma, gemma2, gemma3_text, "
          "granite, olmo2, olmo3 and phi3 are written");
}

double scale_of_scores(const GptConfig& c) {
  return c.attention_scale > 0 ? c.attention_scale
                               : 1 / std::sqrt(static_cast<double>(c.head_width()));
}

bool has_longrope(const GptConfig& c) {
  return c.rope_scaling.kind == ops::RopeScaling::Kind::longrope;
}

/// The model_type of a model with GeGLU or norms of 1 + weight.
std::string_view gemma_type(const GptConfig& c) {
  const bool both = c.norm_place == NormPlace::both;
  const std::string_view type = !both ? "gemma" : c.qk_norm ? "gemma3_text" : "gemma2";
  const double scale = 1 / std::sqrt(static_cast<double>(c.head_width()));
  const bool third = type == "gemma3_text";
  refuse_keys(std::string(type),
              {{"norm_offset", !c.norm_offset},
               {"activation", c.activation != ops::Activation::geglu},
               {"embedding_scale",
                !same_factor(c.embedding_scale, std::sqrt(static_cast<double>(c.n_embd)))},
               {"norm_place", c.norm_place == NormPlace::post},
               {"bias", c.bias || c.has(c.qkv_bias)},
               {"residual_scale", c.residual_scale != 1},
               {"logit_scale", c.logit_scale != 1},
               {"rope_skip_interval", c.rope_skip_interval > 0},
               {"rope_width", c.rotated_width() < c.head_width()},
               {"parallel_branches", c.parallel_branches},
               {"qk_norm_span", c.norms_all_heads()},
               {"qk_norm", c.qk_norm && !third},
               {"attention_softcap", c.attention_softcap > 0 && (!both || third)},
               {"logit_softcap", c.logit_softcap > 0 && !both},
               {"attention_scale", !both && !same_factor(scale_of_scores(c), scale)},
               {"attention_window", c.window > 0 && !both},
               {"rope_scaling", has_longrope(c)},
               {"rope_local_theta", c.has_local_angles() && !third},
               {"rope_scaling_layers", third && c.window > 0 &&
                                           c.rope_scaling_layers == ScaledLayers::all &&
                                           c.rope_scaling.kind != ops::RopeScaling::Kind::none}});
  return type;
}

/// True if the embedding, branches, scores or logits have a factor of their own.
bool is_multiplied(const GptConfig& c) {
  return c.embedding_scale != 1 || c.residual_scale != 1 || c.logit_scale != 1 ||
         (c.attention_scale > 0 &&
          !same_factor(c.attention_scale, 1 / std::sqrt(static_cast<double>(c.head_width()))));
}

/// The model_type of a model with norms behind the branches alone.
std::string_view olmo_type(const GptConfig& c) {
  const std::string_view type = c.window > 0 ? "olmo3" : "olmo2";
  const bool scaled = c.rope_scaling.kind != ops::RopeScaling::Kind::none;
  refuse_keys(
      std::string(type),
      {{"norm_place", c.norm_place != NormPlace::post},
       {"qk_norm", !c.norms_all_heads()},
       {"rope_scaling", has_longrope(c)},
       {"bias", c.bias || c.has(c.qkv_bias)},
       {"parallel_branches", c.parallel_branches},
       {"rope_width", c.rotated_width() < c.head_width()},
       {"rope_skip_interval", c.rope_skip_interval > 0},
       {"attention_softcap", c.attention_softcap > 0},
       {"logit_softcap", c.logit_softcap > 0},
       {"embedding_scale, residual_scale, attention_scale or logit_scale", is_multiplied(c)},
       {"head_width", c.attention_width() != c.n_embd},
       {"rope_local_theta",
        c.window > 0 && c.rope_local_theta > 0 && c.rope_local_theta != c.rope_theta},
       {"rope_scaling_layers",
        c.window > 0 && scaled && c.rope_scaling_layers == ScaledLayers::all}});
  return type;
}

/// The model_type of a model in which a part of each head rotates, or in which each frequency has a
/// divisor of its own.
std::string_view phi_type(const GptConfig& c) {
  refuse_keys(
      "phi3",
      {{"norm_place", c.norm_place != NormPlace::pre},
       {"qk_norm", c.qk_norm},
       {"bias", c.bias || c.has(c.qkv_bias)},
       {"parallel_branches", c.parallel_branches},
       {"rope_skip_interval", c.rope_skip_interval > 0},
       {"rope_scaling", c.rope_scaling.kind != ops::RopeScaling::Kind::none && !has_longrope(c)},
       {"attention_softcap", c.attention_softcap > 0},
       {"logit_softcap", c.logit_softcap > 0},
       {"embedding_scale, residual_scale, attention_scale or logit_scale", is_multiplied(c)},
       {"rope_local_theta", c.has_local_angles()},
       {"window_first_layer", c.window > 0 && c.window_first_layer > 0},
       {"window_skip_interval", c.window > 0 && c.window_skip_interval > 0}});
  return "phi3";
}

/// The model_type of transformers whose class computes the same as this model.
std::string_view llama_type(const GptConfig& c) {
  if (c.norm_offset || c.activation == ops::Activation::geglu) return gemma_type(c);
  if (c.norm_place == NormPlace::post || c.norms_all_heads()) return olmo_type(c);
  if (c.rotated_width() < c.head_width() || has_longrope(c)) return phi_type(c);
  const bool multiplied = is_multiplied(c);
  refuse_keys(multiplied ? "granite" : "llama",
              {{"norm_place", c.norm_place != NormPlace::pre},
               {"parallel_branches", c.parallel_branches},
               {"attention_softcap", c.attention_softcap > 0},
               {"logit_softcap", c.logit_softcap > 0},
               {"rope_local_theta", c.has_local_angles()},
               {"qk_norm", multiplied && c.qk_norm},
               {"qkv_bias", multiplied && !c.bias && c.has(c.qkv_bias)},
               {"rope_skip_interval", multiplied && c.rope_skip_interval > 0},
               {"attention_window", multiplied && c.window > 0}});
  if (multiplied) return "granite";
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
         : type == "gemma"   ? "GemmaForCausalLM"
         : type == "gemma2"  ? "Gemma2ForCausalLM"
         : type == "granite" ? "GraniteForCausalLM"
         : type == "olmo2"   ? "Olmo2ForCausalLM"
         : type == "olmo3"   ? "Olmo3ForCausalLM"
         : type == "phi3"    ? "Phi3ForCausalLM"
         : type == "smollm3" ? "SmolLM3ForCausalLM"
                             : "Gemma3ForCausalLM";
}

void add_window(nlohmann::ordered_json& json, const GptConfig& c, std::string_view type) {
  if (type == "llama" || type == "gemma" || type == "granite" || type == "olmo2") return;
  if (c.window == 0)
    json["sliding_window"] = nullptr;
  else
    json["sliding_window"] = c.window;
  if (type == "mistral" || type == "phi3") return;
  const bool gemma = type.starts_with("gemma"), olmo = type == "olmo3";
  if (!gemma && !olmo) json["use_sliding_window"] = c.window > 0;
  auto types = nlohmann::ordered_json::array();
  for (std::int64_t layer = 0; layer < c.n_layer; ++layer)
    types.push_back(c.kind_of(layer).window > 0 ? "sliding_attention" : "full_attention");
  json["layer_types"] = std::move(types);
  if (type == "gemma3_text" && c.window > 0 && c.window_skip_interval > 0)
    json["sliding_window_pattern"] = c.window_skip_interval;
  if (gemma || olmo || type == "smollm3") return;
  json["max_window_layers"] = c.window > 0 ? c.window_first_layer : c.n_layer;
}

nlohmann::ordered_json cap_json(double cap) {
  return cap > 0 ? nlohmann::ordered_json(cap) : nlohmann::ordered_json(nullptr);
}

void add_gemma(nlohmann::ordered_json& json, const GptConfig& c, std::string_view type) {
  json["hidden_act"] = json["hidden_activation"] = "gelu_pytorch_tanh";
  json["attention_bias"] = false;
  if (type == "gemma") return;
  const double scalar = 1 / (scale_of_scores(c) * scale_of_scores(c)), whole = std::round(scalar);
  if (same_factor(scalar, whole))
    json["query_pre_attn_scalar"] = static_cast<std::int64_t>(whole);
  else
    json["query_pre_attn_scalar"] = scalar;
  json["attn_logit_softcapping"] = cap_json(c.attention_softcap);
  json["final_logit_softcapping"] = cap_json(c.logit_softcap);
  if (type == "gemma3_text")
    json["rope_local_base_freq"] = c.rope_local_theta > 0 ? c.rope_local_theta : c.rope_theta;
}

/// The fraction of a head that rotates, from which transformers computes the width by rounding
/// down.
double rotated_fraction(const GptConfig& c) {
  const auto all = static_cast<double>(c.head_width());
  double part = static_cast<double>(c.rotated_width()) / all;
  while (static_cast<std::int64_t>(all * part) < c.rotated_width()) part = std::nextafter(part, 2);
  return part;
}

void add_neox(nlohmann::ordered_json& json, const GptConfig& c) {
  json["architectures"] = {"GPTNeoXForCausalLM"};
  json["model_type"] = "gpt_neox";
  json["vocab_size"] = c.vocab_size;
  json["max_position_embeddings"] = c.block_size;
  json["num_hidden_layers"] = c.n_layer;
  json["num_attention_heads"] = c.n_head;
  json["hidden_size"] = c.n_embd;
  json["intermediate_size"] = c.ffn_width;
  json["hidden_act"] = activation_there(c.activation);
  json["layer_norm_eps"] = c.norm_eps;
  json["use_parallel_residual"] = c.parallel_branches;
  json["attention_bias"] = true;
  json["rotary_pct"] = json["partial_rotary_factor"] = rotated_fraction(c);
  json["rotary_emb_base"] = json["rope_theta"] = c.rope_theta;
  json["rope_scaling"] = scaling_json(c);
  json["attention_dropout"] = json["hidden_dropout"] = 0.0;
}

void add_llama(nlohmann::ordered_json& json, const GptConfig& c) {
  const std::string_view type = llama_type(c);
  json["architectures"] = {class_name_of(type)};
  json["model_type"] = type;
  json["vocab_size"] = c.vocab_size;
  json["max_position_embeddings"] = described_length(c);
  json["num_hidden_layers"] = c.n_layer;
  json["num_attention_heads"] = c.n_head;
  json["num_key_value_heads"] = c.n_kv_head;
  if (type != "phi3" && !type.starts_with("olmo")) json["head_dim"] = c.head_width();
  json["hidden_size"] = c.n_embd;
  json["intermediate_size"] = c.ffn_width;
  json["hidden_act"] = "silu";
  if (type == "llama" || type == "smollm3" || type == "granite")
    json["attention_bias"] = json["mlp_bias"] = c.bias;
  if (type == "qwen3" || type == "phi3" || type.starts_with("olmo")) json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["rms_norm_eps"] = c.norm_eps;
  json["rope_theta"] = c.rope_theta;
  json["rope_scaling"] = scaling_json(c);
  add_window(json, c, type);
  if (type.starts_with("gemma")) add_gemma(json, c, type);
  if (type == "phi3") {
    json["partial_rotary_factor"] = rotated_fraction(c);
    json["original_max_position_embeddings"] =
        has_longrope(c) ? static_cast<std::int64_t>(c.rope_scaling.original) : c.block_size;
    json["resid_pdrop"] = json["embd_pdrop"] = 0.0;
  }
  if (type == "granite") {
    json["embedding_multiplier"] = c.embedding_scale;
    json["residual_multiplier"] = c.residual_scale;
    json["attention_multiplier"] = scale_of_scores(c);
    json["logits_scaling"] = 1 / c.logit_scale;
  }
  if (type != "smollm3") return;
  auto with = nlohmann::ordered_json::array();
  for (std::int64_t layer = 0; layer < c.n_layer; ++layer)
    with.push_back(c.kind_of(layer).rotates ? 1 : 0);
  json["no_rope_layers"] = std::move(with);
  json["no_rope_layer_interval"] = c.rope_skip_interval;
}

}  // namespace

std::int64_t described_length(const GptConfig& c) {
  const double longest = std::round(c.rope_scaling.factor * c.rope_scaling.original);
  const bool exact = std::fabs(longest / c.rope_scaling.original - c.rope_scaling.factor) <=
                     1e-12 * c.rope_scaling.factor;
  return has_longrope(c) && exact && longest > static_cast<double>(c.block_size)
             ? static_cast<std::int64_t>(longest)
             : c.block_size;
}

bool has_plain_blocks(const GptConfig& c) {
  return !c.norm_offset && c.norm_place == NormPlace::pre && !c.parallel_branches &&
         c.attention_scale == 0 && c.attention_softcap == 0 && c.logit_softcap == 0 &&
         c.embedding_scale == 1 && c.residual_scale == 1 && c.logit_scale == 1;
}

std::string_view hf_type_of(const GptConfig& c) {
  const Dialect dialect = hf_dialect_of(c);
  return dialect == Dialect::hf_gpt2   ? "gpt2"
         : dialect == Dialect::hf_neox ? "gpt_neox"
                                       : llama_type(c);
}

Dialect hf_dialect_of(const GptConfig& c) {
  const bool gated = ops::is_gated(c.activation);
  GptConfig one_by_one = c;  // GPT-NeoX has both orders of the branches
  one_by_one.parallel_branches = false;
  const bool longrope = c.rope_scaling.kind == ops::RopeScaling::Kind::longrope;
  if (longrope && c.rope_scaling.original != std::trunc(c.rope_scaling.original))
    throw DeckError("other programs have only a whole model.rope_original",
                    "choose a whole number");
  if (c.position == Position::rope && c.norm == ops::Norm::layernorm && !gated &&
      c.n_kv_head == c.n_head && c.attention_width() == c.n_embd && !c.qk_norm && c.window == 0 &&
      c.rope_skip_interval == 0 && has_plain_blocks(one_by_one)) {
    refuse_keys("gpt_neox", {{"rope_scaling", longrope}});
    return Dialect::hf_neox;
  }
  if (c.position == Position::learned && c.norm == ops::Norm::layernorm && !gated &&
      c.n_kv_head == c.n_head && c.attention_width() == c.n_embd && !c.qk_norm && c.window == 0 &&
      has_plain_blocks(c))
    return Dialect::hf_gpt2;
  if (c.position == Position::rope && c.norm == ops::Norm::rmsnorm && gated) {
    if (llama_type(c) == "phi3") return Dialect::hf_phi3;  // refuses unsupported models
    return c.norm_place == NormPlace::pre ? Dialect::hf_llama : Dialect::hf_post;
  }
  throw DeckError(
      "no model of other programs has this model.norm, model.position, model.activation and "
      "model.n_kv_head together",
      "GPT-2 has layernorm, learned positions, n_kv_head = n_head and no gated activation, window, "
      "qk_norm, head_width, soft cap or further factor, and GPT-NeoX the same with rope; Llama has "
      "rmsnorm, rope and swiglu, and Gemma geglu");
}

std::string hf_config(const GptConfig& config, const std::string& dtype,
                      const std::string& tokens) {
  nlohmann::ordered_json json;
  if (const Dialect dialect = hf_dialect_of(config); dialect == Dialect::hf_gpt2)
    add_gpt2(json, config);
  else if (dialect == Dialect::hf_neox)
    add_neox(json, config);
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
