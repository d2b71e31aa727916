#include "src/models/gpt/foreign/hugging_face.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "choir/core/json.hpp"
#include "choir/core/text.hpp"
#include "src/models/gpt/foreign/key_reader.hpp"

namespace choir {
namespace {

/// What a class of transformers assumes where the file is silent.
struct LlamaLike {
  std::string_view type;
  bool tied = false;
  bool needs_kv_heads = false;  ///< its default is a number of one model
  bool has_biases = false;      ///< attention_bias and mlp_bias are keys of it
  std::int64_t window = 0;      ///< 0: none
  std::int64_t bare_layer = 0;  ///< every so many-th layer has no rotary positions; 0: none
  double rope_theta = 10000;
};
constexpr std::array<LlamaLike, 3> kLlamaLike{{
    {.type = "llama", .has_biases = true},
    {.type = "mistral", .needs_kv_heads = true, .window = 4096},
    {.type = "smollm3",
     .tied = true,
     .needs_kv_heads = true,
     .has_biases = true,
     .bare_layer = 4,
     .rope_theta = 2e6},
}};

struct ActivationName {
  std::string_view there;
  ops::Activation activation;
};
constexpr std::array<ActivationName, 5> kActivations{{
    {"gelu_new", ops::Activation::gelu_tanh},
    {"gelu_pytorch_tanh", ops::Activation::gelu_tanh},
    {"gelu", ops::Activation::gelu},
    {"relu", ops::Activation::relu},
    {"silu", ops::Activation::silu},
}};

constexpr std::array<const char*, 3> kTokenIds{"bos_token_id", "eos_token_id", "pad_token_id"};

/// Keys that say nothing about what a forward pass computes. Dropout is none of a model that is
/// used, and fine-tuning has a key for it.
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
      std::find_if(kActivations.begin(), kActivations.end(),
                   [&](const ActivationName& one) { return one.there == activation; });
  if (known == kActivations.end())
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

/// The angles: version 5 has an object for them, version 4 two keys.
void read_rope(KeyReader& keys, const LlamaLike& like, GptConfig& c, const std::string& source,
               std::vector<std::string>& problems) {
  c.rope_theta = keys.real("rope_theta", like.rope_theta);
  keys.only("partial_rotary_factor", 1.0, "rotating a part of a head is not supported");
  keys.only("rope_interleaved", false, "pairs of neighbours are not supported");
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const nlohmann::json* held = keys.value(key);
    if (held == nullptr) continue;
    if (!held->is_object()) {
      keys.problem(key, "an object is expected");
      continue;
    }
    KeyReader rope(*held, source, std::string(key) + ".");
    const std::string type = rope.text("rope_type", rope.text("type", "default"));
    if (type != "default") rope.problem("rope_type", "scaled rotary angles are not supported");
    rope.only("partial_rotary_factor", 1.0, "rotating a part of a head is not supported");
    c.rope_theta = rope.real("rope_theta", c.rope_theta);
    // Of a scaling that is refused the other keys need no words.
    const auto more = rope.problems(type != "default");
    problems.insert(problems.end(), more.begin(), more.end());
  }
}

void check_layers(KeyReader& keys, const LlamaLike& like, const GptConfig& c) {
  if (const nlohmann::json* types = keys.value("layer_types")) {
    const bool full =
        types->is_array() && std::all_of(types->begin(), types->end(),
                                         [](const auto& type) { return type == "full_attention"; });
    if (!full) keys.problem("layer_types", "only \"full_attention\" is supported");
  }
  if (const nlohmann::json* with = keys.value("no_rope_layers")) {
    const bool all = with->is_array() && std::all_of(with->begin(), with->end(),
                                                     [](const auto& one) { return one == 1; });
    if (!all) keys.problem("no_rope_layers", "layers without rotary positions are not supported");
    keys.harmless({"no_rope_layer_interval"});
    return;
  }
  const std::int64_t every = keys.whole("no_rope_layer_interval", like.bare_layer);
  if (every > 0 && c.n_layer >= every)
    keys.problem(
        "no_rope_layer_interval",
        fmt::format("every {}th layer has no rotary positions, which is not supported", every));
}

void check_window(KeyReader& keys, const LlamaLike& like, const GptConfig& c) {
  const bool said = keys.value("sliding_window") != nullptr;
  keys.harmless({"max_window_layers"});
  const bool by_flag = like.window == 0 && keys.has("use_sliding_window");
  if (!keys.flag("use_sliding_window", !by_flag)) return;
  // Where the key is there, null means that there is none.
  const std::int64_t window = said                           ? keys.needed("sliding_window")
                              : keys.knows("sliding_window") ? 0
                                                             : like.window;
  if (window > 0 && window < c.block_size)
    keys.problem("sliding_window", fmt::format("a window of {} in sequences of {} is not supported",
                                               window, c.block_size));
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
  if (c.n_embd % c.n_head == 0)
    keys.only("head_dim", c.n_embd / c.n_head,
              "another head width than hidden_size / num_attention_heads is not supported");
  else
    keys.harmless({"head_dim"});
  keys.only("hidden_act", "silu", "only silu, of SwiGLU, is supported");
  keys.only("pretraining_tp", 1, "not supported");
  check_window(keys, like, c);
  check_layers(keys, like, c);
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
      std::find_if(kActivations.begin(), kActivations.end(),
                   [&](const ActivationName& one) { return one.activation == activation; });
  return known->there;
}

void add_tokens(nlohmann::ordered_json& json, const std::string& tokens) {
  if (tokens.empty()) return;
  const auto held = parsed_ordered_json(tokens);
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

void add_llama(nlohmann::ordered_json& json, const GptConfig& c) {
  json["architectures"] = {"LlamaForCausalLM"};
  json["model_type"] = "llama";
  json["vocab_size"] = c.vocab_size;
  json["max_position_embeddings"] = c.block_size;
  json["num_hidden_layers"] = c.n_layer;
  json["num_attention_heads"] = c.n_head;
  json["num_key_value_heads"] = c.n_kv_head;
  json["head_dim"] = c.head_width();
  json["hidden_size"] = c.n_embd;
  json["intermediate_size"] = c.ffn_width;
  json["hidden_act"] = "silu";
  json["attention_bias"] = json["mlp_bias"] = c.bias;
  json["attention_dropout"] = 0.0;
  json["rms_norm_eps"] = c.norm_eps;
  json["rope_theta"] = c.rope_theta;
  json["rope_scaling"] = nullptr;
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
      c.n_kv_head == c.n_head)
    return Dialect::hf_gpt2;
  if (c.position == Position::rope && c.norm == ops::Norm::rmsnorm && gated)
    return Dialect::hf_llama;
  throw DeckError(
      "no model of other programs has this model.norm, model.position, model.activation and "
      "model.n_kv_head together",
      "GPT-2 is layernorm, learned, no swiglu and n_kv_head = n_head; Llama rmsnorm, rope and "
      "swiglu");
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
