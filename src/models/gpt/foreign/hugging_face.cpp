// Reads config.json of transformers as the configuration of a GPT.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/core/json_document.hpp"
#include "src/core/json_value.hpp"
#include "src/core/text.hpp"
#include "src/deck/key_reader.hpp"
#include "src/models/gpt/foreign/foreign_model.hpp"
#include "src/models/gpt/gpt_config.hpp"

namespace choir {

/// Defaults of a class of transformers for keys that the file does not have.
struct LlamaLike {
  std::string_view type;
  Dialect dialect = Dialect::hf_llama;
  bool tied = false;
  bool needs_kv_heads = false;  ///< its default is a number of one model
  bool has_biases = false;      ///< attention_bias and mlp_bias are keys of it
  bool qkv_bias = false;        ///< queries, keys and values always have biases
  bool qk_norm = false;
  QkNormSpan qk_norm_span = QkNormSpan::head;
  double norm_eps = 1e-6;
  std::int64_t head_width = 0;      ///< 0: hidden_size / num_attention_heads
  std::int64_t window = 0;          ///< 0: none, unless use_sliding_window
  bool window_if_given = false;     ///< then one that the file has is used
  bool windowless = false;          ///< its class has no window, whatever the file says
  std::int64_t unwindowed = 0;      ///< first layers that then have no window
  bool windows_where_bare = false;  ///< then only layers without rotary positions have one
  std::int64_t bare_layer = 0;      ///< interval of layers without rotary positions; 0: none
  double rope_theta = 10000;
  double rotated = 0;         ///< fraction of a head that rotates; 0: all, and there is no key
  bool longrope = false;      ///< longrope is its only scaling of angles
  bool scaling_full = false;  ///< only layers without a window have scaled angles
  bool gemma = false;         ///< GeGLU, norms of 1 + weight, embeddings times sqrt(hidden_size)
  NormPlace norm_place = NormPlace::pre;
  bool score_scalar = false;  ///< scores are divided by sqrt(query_pre_attn_scalar)
  double score_cap = 0, logit_cap = 0;
  std::int64_t full_interval = 0;  ///< one layer in this many has no window; 0: see above
  double local_theta = 0;          ///< of layers with a window; 0: rope_theta

  bool has_local_angles() const { return local_theta > 0 || scaling_full; }
  bool multipliers = false;  ///< of embedding, branches, scores and logits
};
/// Reads the rotary angles; the width of heads is known. Version 5 has an object for them, version
/// 4 two keys. Appends problems of keys inside the object.
void read_rope(KeyReader& keys, const LlamaLike& like, GptConfig& c, const std::string& source,
               std::vector<std::string>& problems);
/// Reads which layers have no rotary positions; n_layer is known.
void read_bare_layers(KeyReader& keys, const LlamaLike& like, GptConfig& c);
/// Reads which layers have a window, and its length; n_layer and block_size are known.
void read_window(KeyReader& keys, const LlamaLike& like, GptConfig& c);

namespace {

/// A number that the scaling requires.
double needed_real(KeyReader& keys, const std::string& key) {
  if (!keys.has(key)) keys.problem(key, "this scaling of rotary angles needs it");
  return keys.real(key, 1);
}

/// The factor of rotated queries and keys: a given one, one from two numbers of DeepSeek, or 0 for
/// that of the formula.
double read_attention_factor(KeyReader& keys, double factor) {
  const double given = keys.real("attention_factor", 0);
  const auto grown = [&](double by) { return factor <= 1 ? 1 : 0.1 * by * std::log(factor) + 1; };
  const double scale = keys.real("mscale", 0), all = keys.real("mscale_all_dim", 0);
  if (given > 0) return given;
  return scale > 0 && all > 0 ? grown(scale) / grown(all) : 0;
}

ops::RopeScaling read_scaling(KeyReader& keys, const std::string& type, std::int64_t positions) {
  using Kind = ops::RopeScaling::Kind;
  ops::RopeScaling s;
  s.factor = needed_real(keys, "factor");
  if (s.factor < 1) keys.problem("factor", "at least 1 is expected");
  if (type == "linear") {
    s.kind = Kind::linear;
    keys.harmless({"original_max_position_embeddings"});
  } else if (type == "llama3") {
    s.kind = Kind::llama3;
    s.original = needed_real(keys, "original_max_position_embeddings");
    s.low = needed_real(keys, "low_freq_factor");
    s.high = needed_real(keys, "high_freq_factor");
  } else {
    s.kind = Kind::yarn;
    s.original = keys.real("original_max_position_embeddings", static_cast<double>(positions));
    s.beta_fast = keys.real("beta_fast", 32);
    s.beta_slow = keys.real("beta_slow", 1);
    s.truncate = keys.flag("truncate", true);
    keys.harmless({"finetuned"});  // true or false, the angles are the same
    s.attention_factor = read_attention_factor(keys, s.factor);
  }
  return s;
}

/// A list of factors, as a deck has them.
std::vector<std::string> read_factors(KeyReader& keys, const std::string& key) {
  std::vector<std::string> factors;
  const nlohmann::json* list = keys.value(key);
  bool good = list != nullptr && list->is_array();
  for (std::size_t i = 0; good && i < list->size(); ++i) {
    good = list->at(i).is_number() && list->at(i).get<double>() > 0;
    if (good) factors.push_back(dumped(list->at(i)));
  }
  if (!good) keys.problem(key, "a list of numbers above 0 is expected");
  return factors;
}

/// Phi-3's own key of the original length, `outside` the scaling, has precedence over the other.
void read_longrope(KeyReader& keys, double outside, GptConfig& c) {
  constexpr double kUsualLength = 4096;  // of the class, if the file has none
  ops::RopeScaling& s = c.rope_scaling;
  s.kind = ops::RopeScaling::Kind::longrope;
  s.original = keys.real("original_max_position_embeddings", kUsualLength);
  if (outside > 0) s.original = outside;
  if (!(s.original > 1)) {
    keys.problem("original_max_position_embeddings", "a length above 1 is expected");
    s.original = 2;
  }
  const double factor = static_cast<double>(c.block_size) / s.original;
  s.factor = std::max(1.0, keys.real("factor", factor));
  s.attention_factor = keys.real("attention_factor", 0);
  if (s.attention_factor < 0) keys.problem("attention_factor", "a number above 0 is expected");
  c.rope_short_factors = read_factors(keys, "short_factor");
  c.rope_long_factors = read_factors(keys, "long_factor");
}

/// The fraction of a head that rotates; 0 for models that have no such key.
double rotated_part(KeyReader& keys, double otherwise) {
  if (otherwise == 0) {
    keys.only("partial_rotary_factor", 1.0, "rotating a part of a head is not supported");
    return 0;
  }
  const double part = keys.real("partial_rotary_factor", otherwise);
  if (!(part > 0 && part <= 1))
    keys.problem("partial_rotary_factor", "a number above 0 and up to 1 is expected");
  return part > 0 && part <= 1 ? part : 1;
}

}  // namespace

void read_rope(KeyReader& keys, const LlamaLike& like, GptConfig& c, const std::string& source,
               std::vector<std::string>& problems) {
  c.rope_theta = keys.real("rope_theta", like.rope_theta);
  if (like.local_theta > 0)
    c.rope_local_theta = keys.real("rope_local_base_freq", like.local_theta);
  double rotated = rotated_part(keys, like.rotated);
  keys.only("rope_interleaved", false, "pairs of neighbours are not supported");
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const nlohmann::json* held = keys.value(key);
    if (held == nullptr) continue;
    if (!held->is_object()) {
      keys.problem(key, "an object is expected");
      continue;
    }
    std::string prefix = std::string(key) + ".";
    if (like.has_local_angles() && held->contains("sliding_attention")) {
      KeyReader kinds(*held, source, prefix);
      const nlohmann::json *full = kinds.value("full_attention"),
                           *local = kinds.value("sliding_attention");
      if (full == nullptr || !full->is_object() || local == nullptr || !local->is_object()) {
        keys.problem(key, "objects full_attention and sliding_attention are expected");
        continue;
      }
      KeyReader of_local(*local, source, prefix + "sliding_attention.");
      of_local.only("rope_type", "default", "scaling of the angles of local layers");
      c.rope_local_theta = of_local.real("rope_theta", c.rope_local_theta);
      if (like.scaling_full) {
        of_local.only("rope_theta", KeyReader(*full, source).real("rope_theta", like.rope_theta),
                      "another base of the angles of local layers");
        c.rope_local_theta = 0;
      }
      for (const auto& more : {kinds.problems(false), of_local.problems(false)})
        problems.insert(problems.end(), more.begin(), more.end());
      held = full, prefix += "full_attention.";
    }
    KeyReader rope(*held, source, prefix);
    const std::string type = rope.text("rope_type", rope.text("type", "default"));
    rope.harmless({"type"});
    // Older files of Phi-3 have other words for longrope.
    const bool known = like.longrope ? type == "longrope" || type == "su" || type == "yarn"
                                     : type == "linear" || type == "llama3" || type == "yarn";
    if (known && like.longrope)
      read_longrope(rope, keys.real("original_max_position_embeddings", 0), c);
    else if (known)
      c.rope_scaling = read_scaling(rope, type, c.block_size);
    else if (type != "default")
      rope.problem(rope.has("rope_type") ? "rope_type" : "type",
                   fmt::format("only {} scaling of rotary angles is supported",
                               like.longrope ? "longrope" : "linear, llama3 and yarn"));
    rotated = rotated_part(rope, rotated);
    c.rope_theta = rope.real("rope_theta", c.rope_theta);
    // If the scaling itself is refused, unknown keys of it are not reported.
    const auto more = rope.problems(type != "default" && !known);
    problems.insert(problems.end(), more.begin(), more.end());
  }
  const auto width = static_cast<std::int64_t>(static_cast<double>(c.head_width()) * rotated);
  if (rotated > 0 && width < c.head_width()) c.rope_width = width;
  const std::int64_t pairs = c.rotated_width() / 2;
  if (like.longrope && c.rope_scaling.kind == ops::RopeScaling::Kind::longrope &&
      (std::ssize(c.rope_short_factors) != pairs || std::ssize(c.rope_long_factors) != pairs))
    keys.problem("rope_scaling",
                 fmt::format("short_factor and long_factor have {} and {} numbers "
                             "for {} pairs of features that rotate",
                             c.rope_short_factors.size(), c.rope_long_factors.size(), pairs));
  if (like.has_local_angles() && c.window > 0 &&
      c.rope_scaling.kind != ops::RopeScaling::Kind::none)
    c.rope_scaling_layers = ScaledLayers::full;
  if (c.window == 0) c.rope_local_theta = 0;  // no layer has them
}

namespace {

/// The interval n if the first layer that differs is layer n; 0 if none differs.
std::int64_t interval_of(const std::vector<bool>& another) {
  const auto first = std::find(another.begin(), another.end(), true);
  return first == another.end() ? 0 : first - another.begin() + 1;
}

bool repeats(const std::vector<bool>& another, std::int64_t interval) {
  for (std::size_t i = 0; i < another.size(); ++i) {
    const bool last = interval > 0 && (static_cast<std::int64_t>(i) + 1) % interval == 0;
    if (another[i] != last) return false;
  }
  return true;
}

}  // namespace

void read_bare_layers(KeyReader& keys, const LlamaLike& like, GptConfig& c) {
  const std::int64_t every = keys.whole("no_rope_layer_interval", like.bare_layer);
  const nlohmann::json* with = keys.value("no_rope_layers");
  c.rope_skip_interval = every;
  if (with != nullptr) {
    std::vector<bool> bare;
    for (const auto& one : *with) bare.push_back(one == 0);
    c.rope_skip_interval = interval_of(bare);
    if (!with->is_array() || static_cast<std::int64_t>(bare.size()) != c.n_layer ||
        !repeats(bare, c.rope_skip_interval))
      keys.problem("no_rope_layers",
                   "only every n-th of all layers can be without rotary positions");
  }
  if (c.rope_skip_interval > c.n_layer) c.rope_skip_interval = 0;
}

namespace {

/// Finds the layers that have the window from a list of layer types.
void read_layer_types(KeyReader& keys, const nlohmann::json& types, GptConfig& c) {
  std::vector<bool> full;
  bool known = types.is_array() && static_cast<std::int64_t>(types.size()) == c.n_layer;
  for (const auto& type : types) {
    full.push_back(type == "full_attention");
    known = known && (full.back() || type == "sliding_attention");
  }
  c.window_first_layer = c.window_skip_interval = 0;
  if (known && std::all_of(full.begin(), full.end(), [](bool one) { return one; })) {
    c.window = 0;
    return;
  }
  if (known && full.front()) {
    c.window_first_layer = std::find(full.begin(), full.end(), false) - full.begin();
    known = std::none_of(full.begin() + c.window_first_layer, full.end(), [](bool x) { return x; });
  } else if (known) {
    c.window_skip_interval = interval_of(full);
    known = repeats(full, c.window_skip_interval);
  }
  if (!known)
    keys.problem("layer_types",
                 "full_attention is supported only in the first layers or in every n-th layer of "
                 "sliding_attention");
  else if (c.window == 0)
    keys.problem("sliding_window", "layer_types names layers with a window");
}

}  // namespace

void read_window(KeyReader& keys, const LlamaLike& like, GptConfig& c) {
  if (like.windowless)
    return keys.harmless(
        {"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"});
  const bool said = keys.has("sliding_window"), always = like.window > 0;
  const std::int64_t size = said                           ? keys.needed("sliding_window")
                            : keys.knows("sliding_window") ? 0
                                                           : like.window;
  keys.harmless({"sliding_window"});
  const bool used = keys.flag("use_sliding_window", always || like.window_if_given);
  const std::int64_t first = keys.whole("max_window_layers", like.unwindowed);
  const bool alternates = like.full_interval > 0;
  const std::int64_t interval =
      alternates ? keys.whole("sliding_window_pattern", like.full_interval) : 0;
  if (alternates)
    keys.only("_sliding_window_pattern", interval, "another number than sliding_window_pattern");
  keys.only("sliding_window_size", size, "another number than sliding_window");
  const nlohmann::json* types = keys.value("layer_types");
  c.window = used ? size : 0;
  if (types != nullptr) {
    read_layer_types(keys, *types, c);
  } else if (c.window > 0 && like.windows_where_bare) {
    keys.problem("use_sliding_window", "a window in layers without rotary positions alone");
  } else if (interval > 0) {
    c.window_skip_interval = interval;
  } else if (c.window > 0 && !always) {
    c.window_first_layer = first;
  }
  // A window that hides nothing is equivalent to none, unless its layers differ in their angles.
  if (alternates) return;
  if (c.window >= c.block_size || c.window_first_layer >= c.n_layer) c.window = 0;
  if (c.window == 0) c.window_first_layer = c.window_skip_interval = 0;
}

namespace {

constexpr std::array<LlamaLike, 12> kLlamaLike{{
    {.type = "llama", .has_biases = true, .windowless = true},
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
    {.type = "gemma", .tied = true, .needs_kv_heads = true, .head_width = 256, .gemma = true},
    {.type = "gemma2",
     .dialect = Dialect::hf_post,
     .tied = true,
     .needs_kv_heads = true,
     .head_width = 256,
     .window = 4096,
     .gemma = true,
     .norm_place = NormPlace::both,
     .score_scalar = true,
     .score_cap = 50,
     .logit_cap = 30,
     .full_interval = 2},
    {.type = "gemma3_text",
     .dialect = Dialect::hf_post,
     .tied = true,
     .needs_kv_heads = true,
     .qk_norm = true,
     .head_width = 256,
     .window = 4096,
     .rope_theta = 1e6,
     .gemma = true,
     .norm_place = NormPlace::both,
     .score_scalar = true,
     .full_interval = 6,
     .local_theta = 1e4},
    {.type = "granite", .has_biases = true, .multipliers = true},
    {.type = "olmo2",
     .dialect = Dialect::hf_post,
     .qk_norm = true,
     .qk_norm_span = QkNormSpan::width,
     .norm_eps = 1e-5,
     .norm_place = NormPlace::post},
    {.type = "olmo3",
     .dialect = Dialect::hf_post,
     .qk_norm = true,
     .qk_norm_span = QkNormSpan::width,
     .norm_eps = 1e-5,
     .window = 4096,
     .rope_theta = 5e5,
     .scaling_full = true,
     .norm_place = NormPlace::post,
     .full_interval = 4},
    {.type = "phi3",
     .dialect = Dialect::hf_phi3,
     .norm_eps = 1e-5,
     .window_if_given = true,
     .rotated = 1,
     .longrope = true},
}};

struct ActivationName {
  std::string_view there;
  ops::Activation activation;
};
constexpr std::array<ActivationName, 8> kActivationNames{{
    {"gelu_new", ops::Activation::gelu_tanh},
    {"gelu_pytorch_tanh", ops::Activation::gelu_tanh},
    {"gelu_fast", ops::Activation::gelu_tanh},
    {"gelu", ops::Activation::gelu},
    {"gelu_python", ops::Activation::gelu},
    {"relu", ops::Activation::relu},
    {"silu", ops::Activation::silu},
    {"swish", ops::Activation::silu},
}};

/// Keys of the class of all configurations, and of tools, without effect on a forward pass.
constexpr std::string_view kHarmless =
    "architectures model_type bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id "
    "dtype torch_dtype initializer_range transformers_version use_cache _name_or_path "
    "name_or_path transformers.js_config attention_dropout is_llama_config id2label label2id "
    "tokenizer_class gradient_checkpointing output_attentions output_hidden_states return_dict "
    "torchscript _from_model_config task_specific_params _attn_implementation_autoset "
    "_attn_implementation attn_implementation _flash_attn_2_enabled _commit_hash "
    "chunk_size_feed_forward problem_type finetuning_task num_labels _num_labels is_decoder "
    "use_bfloat16 xla_device tf_legacy_loss output_past predict_special_tokens "
    "max_sequence_length model_max_length unsloth_version unsloth_fixed mask_token_id "
    "cls_token_id decoder_start_token_id";
/// Settings of generation, which version 4 writes here, too; they travel with the tokenizer.
constexpr std::string_view kOfGeneration =
    "bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping "
    "encoder_no_repeat_ngram_size exponential_decay_length_penalty forced_bos_token_id "
    "forced_eos_token_id length_penalty max_length max_new_tokens min_length "
    "no_repeat_ngram_size num_beam_groups num_beams num_return_sequences output_scores "
    "penalty_alpha prefix remove_invalid_values repetition_penalty return_dict_in_generate "
    "suppress_tokens temperature top_k top_p typical_p";

/// Accepts keys that do not affect a forward pass. Dropout is not used in inference, and
/// fine-tuning has its own key for it.
void pass_over(KeyReader& keys) {
  keys.harmless(split(kHarmless, ' '));
  keys.harmless(split(kOfGeneration, ' '));
  keys.only("is_encoder_decoder", false, "only decoders are read");
  keys.only("tie_encoder_decoder", false, "only decoders are read");
  keys.only("add_cross_attention", false, "cross-attention is not supported");
  keys.only("pruned_heads", nlohmann::json::object(), "removed heads are not supported");
  keys.only("use_mrope", false, "rotary angles in three dimensions are not supported");
  keys.only("n_special", 0, "further rows of the embedding are not supported");
  // The tensors of bitsandbytes carry their own descriptions, which dequantised() reads.
  if (const nlohmann::json* config = keys.value("quantization_config");
      config != nullptr &&
      !(config->contains("quant_method") && config->at("quant_method") == "bitsandbytes"))
    keys.problem("quantization_config",
                 "of quantised weights only those of bitsandbytes (nf4, int8) are read; save the "
                 "model in bf16");
}

/// A name in small letters and without underscores.
std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : name)
    if (c != '_') plain += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return plain;
}

/// Accepts code of the model's own if its classes have the names of those in transformers, which
/// then uses its own classes, too: {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}.
void read_auto_map(KeyReader& keys, std::string type) {
  const nlohmann::json* map = keys.value("auto_map");
  if (map == nullptr) return;
  if (type.ends_with("_text")) type.resize(type.size() - 5);
  const std::string family = plain_name(type);
  const auto known = [&](const std::string& loader, const nlohmann::json& name) {
    if (loader.starts_with("AutoTokenizer")) return true;
    if (!name.is_string()) return false;
    const std::string path = name.get<std::string>();
    const std::string there = plain_name(path.substr(path.rfind('.') + 1));
    for (const char* kind : {"config", "model", "forcausallm", "lmheadmodel",
                             "forsequenceclassification", "fortokenclassification"})
      if (there == family + kind) return true;
    return false;
  };
  bool all = map->is_object();
  for (const auto& [loader, name] : map->items()) all = all && known(loader, name);
  if (!all) keys.problem("auto_map", "code of the model's own may compute something else");
}

/// Reads an activation without a gate.
void read_activation(KeyReader& keys, const char* key, const char* otherwise, GptConfig& c) {
  const std::string activation = keys.text(key, otherwise);
  const auto known =
      std::find_if(kActivationNames.begin(), kActivationNames.end(),
                   [&](const ActivationName& one) { return one.there == activation; });
  if (known == kActivationNames.end())
    keys.problem(key, "gelu_new, gelu, relu and silu are supported");
  else
    c.activation = known->activation;
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
  read_activation(keys, "activation_function", "gelu_new", c);
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

void read_neox(KeyReader& keys, GptConfig& c, const std::string& source,
               std::vector<std::string>& problems) {
  c.n_layer = keys.needed("num_hidden_layers");
  c.n_head = c.n_kv_head = keys.needed("num_attention_heads");
  c.n_embd = keys.needed("hidden_size");
  c.ffn_width = keys.needed("intermediate_size");
  c.block_size = keys.needed("max_position_embeddings");
  c.norm_eps = keys.real("layer_norm_eps", 1e-5);
  read_activation(keys, "hidden_act", "gelu", c);
  c.tied = keys.flag("tie_word_embeddings", false);
  c.parallel_branches = keys.flag("use_parallel_residual", true);
  keys.only("attention_bias", true, "attention without biases beside other layers with them");
  keys.harmless({"hidden_dropout", "classifier_dropout"});
  c.bias = true;
  c.norm = ops::Norm::layernorm;
  c.position = Position::rope;
  // Version 4 has names of its own for the two keys of angles.
  const LlamaLike like{.type = "gpt_neox",
                       .rope_theta = keys.real("rotary_emb_base", 10000),
                       .rotated = keys.real("rotary_pct", 0.25)};
  if (!(like.rotated > 0 && like.rotated <= 1))
    return keys.problem("rotary_pct", "a number above 0 and up to 1 is expected");
  read_rope(keys, like, c, source, problems);
}

/// Reads the keys that only the Gemmas have; n_embd is known.
void read_gemma(KeyReader& keys, const LlamaLike& like, GptConfig& c) {
  c.norm_offset = true;
  c.embedding_scale = std::sqrt(static_cast<double>(c.n_embd));
  // The first files of Gemma have hidden_act = "gelu", and mean the tanh form of it all the same.
  // The classes with hidden_activation compute the other form if it is "gelu".
  for (const char* key : {"hidden_act", "hidden_activation"}) {
    const std::string name = keys.text(key, "gelu_pytorch_tanh");
    const bool meant = name == "gelu" && key == std::string_view("hidden_act");
    if (name != "gelu_pytorch_tanh" && !meant)
      keys.problem(key, "only gelu_pytorch_tanh, of GeGLU, is supported");
  }
  keys.only("attention_bias", false, "biases of attention alone are not supported");
  keys.only("use_bidirectional_attention", false, "attention to later tokens is not supported");
  keys.harmless({"cache_implementation"});
  if (!like.score_scalar) return;
  const double scalar = keys.real("query_pre_attn_scalar", 256);
  if (!(scalar > 0)) keys.problem("query_pre_attn_scalar", "a number above 0 is expected");
  c.attention_scale = 1 / std::sqrt(scalar > 0 ? scalar : 1);
  const auto cap = [&](const char* key, double otherwise) {
    const double given = keys.knows(key) && !keys.has(key) ? 0 : keys.real(key, otherwise);
    if (given < 0) keys.problem(key, "a number of at least 0 is expected");
    keys.harmless({key});
    return given < 0 ? 0 : given;
  };
  // The class of Gemma 3 has the key of scores and does not use it.
  const double scores = cap("attn_logit_softcapping", like.score_cap);
  c.attention_softcap = like.qk_norm ? 0 : scores;
  c.logit_softcap = cap("final_logit_softcapping", like.logit_cap);
}

/// Reads the multipliers of Granite.
void read_multipliers(KeyReader& keys, GptConfig& c) {
  const auto positive = [&](const char* key) {
    const double value = keys.real(key, 1);
    if (!(value > 0)) keys.problem(key, "a number above 0 is expected");
    return value > 0 ? value : 1;
  };
  c.embedding_scale = positive("embedding_multiplier");
  c.residual_scale = positive("residual_multiplier");
  c.attention_scale = positive("attention_multiplier");
  c.logit_scale = 1 / positive("logits_scaling");
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
  c.norm_eps = keys.real("rms_norm_eps", like.norm_eps);
  c.norm_place = like.norm_place;
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
  c.qk_norm_span = like.qk_norm_span;
  const std::int64_t width = keys.has("head_dim") ? keys.needed("head_dim") : like.head_width;
  keys.harmless({"head_dim"});
  if (width * c.n_head != c.n_embd) c.own_head_width = width;
  c.activation = like.gemma ? ops::Activation::geglu : ops::Activation::swiglu;
  if (like.gemma) read_gemma(keys, like, c);
  if (const std::string gate = keys.text("hidden_act", "silu");
      !like.gemma && gate != "silu" && gate != "swish")
    keys.problem("hidden_act", "only silu, of SwiGLU, is supported");
  if (like.multipliers) read_multipliers(keys, c);
  keys.only("pretraining_tp", 1, "not supported");
  if (like.dialect == Dialect::hf_phi3 || like.norm_place == NormPlace::post)
    keys.only("attention_bias", false, "biases of attention alone are not supported");
  // Phi-3 chooses its list of angles by the latter, and has none. Phi-4-mini has keys of a model
  // that mixes kinds of attention.
  if (like.dialect == Dialect::hf_phi3) {
    keys.harmless({"embd_pdrop", "resid_pdrop", "original_max_position_embeddings"});
    keys.only("full_attn_mod", 1, "attention in some layers alone is not supported");
    keys.only("interpolate_factor", 1, "interpolated positions are not supported");
  }
  keys.only("lm_head_bias", false, "a bias of the head is not supported");
  if (!like.has_biases && !like.gemma) {
    // The classes of Mistral and Qwen2 have no such key, and the same biases whatever it says.
    if (like.dialect == Dialect::hf_llama) keys.harmless({"attention_bias"});
    keys.only("mlp_bias", false, "biases of the feed-forward layers are not supported");
  }
  read_window(keys, like, c);
  read_bare_layers(keys, like, c);
  read_rope(keys, like, c, source, problems);
  c.norm = ops::Norm::rmsnorm;
  c.position = Position::rope;
}

std::string known_types() {
  std::string text = "gpt2, gpt_neox";
  for (const LlamaLike& like : kLlamaLike) text += fmt::format(", {}", like.type);
  return text;
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
  read_auto_map(keys, type);
  c.vocab_size = keys.needed("vocab_size");
  const auto like = std::find_if(kLlamaLike.begin(), kLlamaLike.end(),
                                 [&](const LlamaLike& one) { return one.type == type; });
  if (type == "gpt2") {
    model.dialect = Dialect::hf_gpt2;
    read_gpt2(keys, c);
  } else if (type == "gpt_neox") {
    model.dialect = Dialect::hf_neox;
    read_neox(keys, c, source, problems);
  } else if (like != kLlamaLike.end()) {
    model.dialect = like->dialect;
    read_llama(keys, *like, c, source, problems);
  } else {
    const bool sees = type == "gemma3" || type == "paligemma";
    keys.problem("model_type",
                 (sees ? "parts for images are not supported, only gemma3_text; " : "") +
                     std::string("these are read: ") + known_types());
    refuse_problems(source, keys.problems(true));
  }
  const auto more = keys.problems(allow_unknown);
  problems.insert(problems.end(), more.begin(), more.end());
  refuse_problems(source, problems);
  return model;
}

}  // namespace choir
