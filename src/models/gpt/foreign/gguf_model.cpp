#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <type_traits>

#include "choir/core/error.hpp"
#include "src/core/json_value.hpp"
#include "src/data/vocabulary/pre_tokenizers.hpp"
#include "src/data/vocabulary/vocabulary.hpp"
#include "src/deck/key_reader.hpp"
#include "src/models/gpt/foreign/gguf.hpp"

namespace choir {
namespace {

// llama.cpp's code for smollm3 omits rotary positions in every fourth layer.
constexpr std::int64_t kSmolLm3Bare = 4;
/// A float as the decimal number that it was rounded from: 1e-5, not 9.99999974737875e-06.
nlohmann::json meant(float value) {
  return std::stod(fmt::format("{}", value));
}

nlohmann::json as_json(const GgufValue& value) {
  return std::visit(
      [](const auto& held) -> nlohmann::json {
        using T = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<T, GgufArray>)
          return nlohmann::json::array();
        else if constexpr (std::is_same_v<T, float>)
          return meant(held);
        else
          return held;
      },
      value);
}

/// The key-value pairs of an architecture, without its prefix.
nlohmann::json keys_of(const GgufMetadata& metadata, const std::string& prefix) {
  nlohmann::json keys = nlohmann::json::object();
  for (const auto& [key, value] : metadata.pairs())
    if (key.starts_with(prefix)) keys[key.substr(prefix.size())] = as_json(value);
  return keys;
}

void read_common(KeyReader& keys, const GgufReader& reader, bool rotates_parts, GptConfig& c) {
  c.n_layer = keys.needed("block_count");
  c.n_head = keys.needed("attention.head_count");
  c.n_kv_head =
      keys.has("attention.head_count_kv") ? keys.needed("attention.head_count_kv") : c.n_head;
  c.n_embd = keys.needed("embedding_length");
  c.ffn_width = keys.needed("feed_forward_length");
  c.block_size = keys.needed("context_length");
  c.tied = reader.find("output.weight") == nullptr;
  const std::int64_t standard = c.n_embd % c.n_head == 0 ? c.n_embd / c.n_head : 0;
  const std::int64_t width = keys.whole("attention.key_length", standard);
  if (width != standard) c.own_head_width = width;
  keys.only("attention.value_length", width, "another width than attention.key_length");
  const std::int64_t rotated = keys.whole("rope.dimension_count", width);
  if (rotated != width && !rotates_parts)
    keys.problem("rope.dimension_count", "rotating a part of a head is not supported");
  if (rotated < width) c.rope_width = rotated;
  keys.only("expert_count", 0, "mixtures of experts are not supported");
  keys.only("expert_used_count", 0, "mixtures of experts are not supported");
  read_gguf_scaling(keys, c);
  c.window = keys.whole("attention.sliding_window", 0);
}

/// Llama.cpp's code has no windows in the other architectures.
void refuse_window(KeyReader& keys, GptConfig& c) {
  if (c.window > 0 && c.window < c.block_size)
    keys.problem("attention.sliding_window",
                 "a window shorter than context_length is not supported");
  c.window = 0;
}

/// The architectures of Gemma, what is fixed in llama.cpp's code for them, and the number of layers
/// from which it recognises a model whose scores are divided by sqrt(n_embd / n_head).
struct GgufGemma {
  std::string_view architecture;
  std::string_view hf_type;
  std::int64_t full_interval;  ///< one layer in this many has no window; 0: no windows
  std::int64_t layers_of_largest;
};
constexpr std::array<GgufGemma, 3> kGemmas{
    {{"gemma", "gemma", 0, 0}, {"gemma2", "gemma2", 2, 46}, {"gemma3", "gemma3_text", 6, 62}}};
constexpr double kLocalTheta = 10000;
// llama.cpp's code for olmo2 has no window in every fourth layer, if there are windows.
constexpr std::int64_t kOlmoFullInterval = 4;

double gemma_score_scale(const GgufGemma& gemma, const GptConfig& c) {
  const bool largest = gemma.layers_of_largest > 0 && c.n_layer == gemma.layers_of_largest;
  return 1 / std::sqrt(static_cast<double>(largest ? c.n_embd / c.n_head : c.head_width()));
}

/// Layers with a window rotate by angles that are not scaled.
void scale_full_layers(GptConfig& c) {
  if (c.rope_scaling.kind != ops::RopeScaling::Kind::none)
    c.rope_scaling_layers = ScaledLayers::full;
}

/// c has the keys of all architectures.
void read_gguf_gemma(KeyReader& keys, const GgufGemma& gemma, GptConfig& c) {
  c.activation = ops::Activation::geglu;
  c.norm_offset = true;
  c.embedding_scale = std::sqrt(static_cast<double>(c.n_embd));
  if (gemma.full_interval == 0) return refuse_window(keys, c);
  c.norm_place = NormPlace::both;
  c.attention_scale = gemma_score_scale(gemma, c);
  c.window = keys.needed("attention.sliding_window");
  c.window_skip_interval = gemma.full_interval;
  const bool second = gemma.architecture == "gemma2";
  c.attention_softcap = second ? keys.real("attn_logit_softcapping", 50) : 0;
  c.logit_softcap = keys.real("final_logit_softcapping", second ? 30 : 0);
  if (second) return;
  c.qk_norm = true;
  c.rope_local_theta = keys.real("rope.freq_base_swa", kLocalTheta);
  scale_full_layers(c);
}

/// OLMo 2, and OLMo 3 if there is a window.
void read_gguf_olmo(KeyReader& keys, GptConfig& c) {
  c.norm_place = NormPlace::post;
  c.qk_norm = true;
  c.qk_norm_span = QkNormSpan::width;
  // The list of the layers with a window agrees with llama.cpp's code, which does not read it.
  keys.harmless({"attention.sliding_window_pattern"});
  if (c.window == 0) return;
  c.window_skip_interval = kOlmoFullInterval;
  scale_full_layers(c);
}

/// llama.cpp has the window of Phi-3 in its files, though its code does not use it.
void read_gguf_phi(KeyReader& keys, GptConfig& c) {
  if (c.window >= c.block_size) c.window = 0;
  c.rope_scaling.original = keys.real("rope.scaling.original_context_length", 0);
  c.rope_scaling.attention_factor = keys.real("rope.scaling.attn_factor", 0);
}

/// Llama.cpp divides logits by its logit_scale.
void read_gguf_granite(KeyReader& keys, GptConfig& c) {
  const auto positive = [&](const char* key, double otherwise) {
    const double value = keys.real(key, otherwise);
    if (!(value > 0)) keys.problem(key, "a number above 0 is expected");
    return value > 0 ? value : 1;
  };
  c.embedding_scale = positive("embedding_scale", 1);
  c.residual_scale = positive("residual_scale", 1);
  c.logit_scale = 1 / positive("logit_scale", 1);
  if (keys.has("attention.scale")) c.attention_scale = positive("attention.scale", 1);
}

void read_gguf_gpt2(KeyReader& keys, GptConfig& c) {
  refuse_window(keys, c);
  c.norm_eps = keys.real("attention.layer_norm_epsilon", 1e-5);
  c.norm = ops::Norm::layernorm;
  c.activation = ops::Activation::gelu_tanh;
  c.position = Position::learned;
  c.bias = true;
}

void read_gguf_neox(KeyReader& keys, GptConfig& c) {
  refuse_window(keys, c);
  c.norm_eps = keys.real("attention.layer_norm_epsilon", 1e-5);
  c.rope_theta = keys.real("rope.freq_base", 10000);
  c.parallel_branches = keys.flag("use_parallel_residual", true);
  c.norm = ops::Norm::layernorm;
  c.activation = ops::Activation::gelu;
  c.position = Position::rope;
  c.bias = true;
}

void read_gguf_llama(KeyReader& keys, const std::string& architecture, GptConfig& c) {
  c.norm_eps = keys.real("attention.layer_norm_rms_epsilon", 1e-5);
  c.rope_theta = keys.real("rope.freq_base", 10000);
  c.norm = ops::Norm::rmsnorm;
  c.activation = ops::Activation::swiglu;
  c.position = Position::rope;
  c.bias = false;
  if (architecture == "smollm3" && c.n_layer >= kSmolLm3Bare) c.rope_skip_interval = kSmolLm3Bare;
  if (architecture == "qwen2") c.qkv_bias = Biases::yes;
  c.qk_norm = architecture == "qwen3";
  const auto* const gemma = std::find_if(kGemmas.begin(), kGemmas.end(), [&](const GgufGemma& one) {
    return one.architecture == architecture;
  });
  if (gemma != kGemmas.end()) return read_gguf_gemma(keys, *gemma, c);
  if (architecture == "olmo2") return read_gguf_olmo(keys, c);
  if (architecture == "phi3") return read_gguf_phi(keys, c);
  refuse_window(keys, c);
  if (architecture == "granite") read_gguf_granite(keys, c);
}

struct Architecture {
  std::string_view name;
  Dialect dialect;
};
constexpr std::array<Architecture, 12> kArchitectures{{{"gpt2", Dialect::gguf_gpt2},
                                                       {"gptneox", Dialect::gguf_gpt2},
                                                       {"llama", Dialect::gguf_llama},
                                                       {"smollm3", Dialect::gguf_llama},
                                                       {"granite", Dialect::gguf_llama},
                                                       {"qwen2", Dialect::gguf_qwen},
                                                       {"qwen3", Dialect::gguf_qwen},
                                                       {"gemma", Dialect::gguf_qwen},
                                                       {"gemma2", Dialect::gguf_qwen},
                                                       {"gemma3", Dialect::gguf_qwen},
                                                       {"olmo2", Dialect::gguf_qwen},
                                                       {"phi3", Dialect::gguf_phi3}}};
constexpr const char* kReadArchitectures =
    "gpt2, gptneox, llama, smollm3, granite, qwen2, qwen3, gemma, gemma2, gemma3, olmo2 and phi3 "
    "are read";

}  // namespace

ForeignModel model_from_gguf(const GgufReader& reader, bool allow_unknown) {
  const GgufMetadata& metadata = reader.metadata();
  const auto* architecture = metadata.get<std::string>("general.architecture");
  if (architecture == nullptr)
    throw DeckError(fmt::format("'{}' has no general.architecture", reader.path()),
                    std::string("is it a model? ") + kReadArchitectures);
  const nlohmann::json held = keys_of(metadata, *architecture + ".");
  KeyReader keys(held, reader.path(), *architecture + ".");
  ForeignModel model;
  GptConfig& c = model.config;
  const auto* const known =
      std::find_if(kArchitectures.begin(), kArchitectures.end(),
                   [&](const Architecture& one) { return one.name == *architecture; });
  if (known == kArchitectures.end())
    refuse_problems(reader.path(), {fmt::format("general.architecture = {}: {}", *architecture,
                                                kReadArchitectures)});
  model.dialect = known->dialect;
  const bool neox = *architecture == "gptneox";
  read_common(keys, reader, neox || *architecture == "phi3", c);
  if (neox)
    read_gguf_neox(keys, c);
  else if (model.dialect == Dialect::gguf_gpt2)
    read_gguf_gpt2(keys, c);
  else
    read_gguf_llama(keys, *architecture, c);
  const TensorEntry& tokens = reader.at("token_embd.weight");
  c.vocab_size = tokens.shape.rank() == 2 ? tokens.shape[0] : 0;
  keys.only("vocab_size", c.vocab_size, "another number than the rows of token_embd.weight");
  std::vector<std::string> problems = keys.problems(allow_unknown);
  if (*architecture == "phi3")
    read_gguf_longrope(reader, c, problems);
  else
    read_gguf_divisors(reader, c, problems);
  refuse_problems(reader.path(), problems);
  return model;
}

namespace {

/// Refuses a Gemma that llama.cpp's code would compute otherwise.
void require_gguf_gemma(const GgufGemma& gemma, const GptConfig& c) {
  const auto refuse = [&](const std::string& key, const std::string& why) {
    throw DeckError(
        fmt::format("llama.cpp's {} {}, not this model.{}", gemma.architecture, why, key),
        "export --format hf supports it");
  };
  if (!c.tied && gemma.architecture != "gemma3") refuse("tied", "has no head of its own");
  if (gemma.architecture == "gemma2") {  // divides by caps of 0
    if (c.attention_softcap == 0) refuse("attention_softcap = 0", "has soft caps");
    if (c.logit_softcap == 0) refuse("logit_softcap = 0", "has soft caps");
  }
  if (gemma.full_interval > 0 &&
      (c.window == 0 || c.window_skip_interval != gemma.full_interval || c.window_first_layer > 0))
    refuse("window_skip_interval",
           fmt::format("has a window except in every layer number {}", gemma.full_interval));
}

void require_gguf_olmo(const GptConfig& c) {
  const auto refuse = [](const std::string& why) {
    throw DeckError("llama.cpp's olmo2 " + why, "export --format hf supports it");
  };
  if (c.tied) refuse("has a head of its own, and this model.tied is true");
  if (c.window > 0 && (c.window_skip_interval != kOlmoFullInterval || c.window_first_layer > 0))
    refuse(
        fmt::format("has a window except in every layer number {}, not this "
                    "model.window_skip_interval",
                    kOlmoFullInterval));
}

const GgufGemma* gemma_of(const GptConfig& c) {
  const std::string_view type = hf_type_of(c);
  const auto* const gemma = std::find_if(kGemmas.begin(), kGemmas.end(),
                                         [&](const GgufGemma& one) { return one.hf_type == type; });
  return gemma == kGemmas.end() ? nullptr : gemma;
}

/// llama.cpp's name for the architecture of a model with rotary positions.
std::string gguf_architecture(const GptConfig& c) {
  using Kind = ops::RopeScaling::Kind;
  const std::string_view type = hf_type_of(c);
  const GgufGemma* const gemma = gemma_of(c);
  const bool olmo = type.starts_with("olmo");
  if (gemma != nullptr) require_gguf_gemma(*gemma, c);
  if (olmo) require_gguf_olmo(c);
  if (c.window > 0 && gemma == nullptr && !olmo)
    throw DeckError(
        "llama.cpp has no window in these models, and would see more than "
        "model.attention_window",
        "export --format hf supports it");
  if (c.rope_scaling.kind == Kind::yarn && !is_gguf_yarn(c.rope_scaling, olmo))
    throw DeckError(
        "llama.cpp has no model.rope_beta_fast, rope_beta_slow, rope_truncate or "
        "rope_attention_factor for these models, and only a whole rope_original",
        "export --format hf supports it");
  if (gemma != nullptr) return std::string(gemma->architecture);
  if (olmo) return "olmo2";
  if (type == "granite" || type == "phi3") return std::string(type);
  if (type == "gpt_neox") return "gptneox";
  if (c.rope_skip_interval == 0) return c.qk_norm ? "qwen3" : c.has(c.qkv_bias) ? "qwen2" : "llama";
  if (c.rope_skip_interval != kSmolLm3Bare)
    throw DeckError(fmt::format("llama.cpp leaves rotary positions out of every {}th layer, not "
                                "model.rope_skip_interval = {}",
                                kSmolLm3Bare, c.rope_skip_interval),
                    "export --format hf supports it");
  return "smollm3";
}

/// llama.cpp's number for a file whose matrices have this type.
std::uint32_t file_type(Encoding type) {
  switch (type) {
    case Encoding::f32:
      return 0;
    case Encoding::f16:
      return 1;
    case Encoding::q8_0:
      return 7;
    case Encoding::q5_0:
      return 8;
    case Encoding::q4_k:
      return 14;
    default:
      CHOIR_CHECK(type == Encoding::bf16, "a file of {}", name_of(type));
      return 32;
  }
}

}  // namespace

Dialect gguf_dialect_of(const GptConfig& c) {
  const Dialect dialect = hf_dialect_of(c);
  if (dialect == Dialect::hf_gpt2) {
    if (c.activation != ops::Activation::gelu_tanh)
      throw DeckError(
          "llama.cpp runs GPT-2 with model.activation = \"gelu_tanh\" only",
          "train with model.activation=gelu_tanh for llama.cpp; export --format hf supports "
          "other activations");
    return Dialect::gguf_gpt2;
  }
  if (dialect == Dialect::hf_neox) {
    if (c.activation != ops::Activation::gelu)
      throw DeckError("llama.cpp runs GPT-NeoX with model.activation = \"gelu\" only",
                      "export --format hf supports other activations");
    if (c.rope_scaling.kind != ops::RopeScaling::Kind::none)
      throw DeckError("llama.cpp has no GPT-NeoX with model.rope_scaling",
                      "export --format hf supports it");
    return Dialect::gguf_gpt2;
  }
  if (c.bias)
    throw DeckError("llama.cpp has no Llama with model.bias = true",
                    "export --format hf supports it");
  gguf_architecture(c);  // refuses unsupported models
  if (dialect == Dialect::hf_phi3) return Dialect::gguf_phi3;
  return c.qk_norm || c.has(c.qkv_bias) || c.norm_offset ? Dialect::gguf_qwen : Dialect::gguf_llama;
}

void fold_score_scale(const GptConfig& c, std::vector<TensorPart>& parts) {
  const GgufGemma* const gemma = c.norm_offset ? gemma_of(c) : nullptr;
  if (gemma == nullptr || c.attention_scale == 0) return;
  const double factor = c.attention_scale / gemma_score_scale(*gemma, c);
  if (std::fabs(factor - 1) <= 1e-9) return;
  for (TensorPart& part : parts) {
    const bool norm = part.own.ends_with(".attention.query_norm.weight");
    const bool query = part.own.ends_with(".attention.qkv.weight") && part.first_row == 0;
    if (c.qk_norm ? norm : query) part.factor = factor;
  }
}

namespace {

/// The keys of factors, soft caps, windows and parts of heads; `a` is the prefix of the
/// architecture.
void add_own_keys(GgufMetadata& m, const GptConfig& c, const std::string& a) {
  const auto real = [&](const char* key, double value) {
    m.add(a + key, static_cast<float>(value));
  };
  if (a == "granite.") {
    real("embedding_scale", c.embedding_scale);
    real("residual_scale", c.residual_scale);
    real("logit_scale", 1 / c.logit_scale);
    if (c.attention_scale > 0) real("attention.scale", c.attention_scale);
  }
  if (a == "phi3.") {
    const bool longrope = c.rope_scaling.kind == ops::RopeScaling::Kind::longrope;
    m.add(a + "rope.scaling.original_context_length",
          longrope ? static_cast<std::uint32_t>(c.rope_scaling.original)
                   : static_cast<std::uint32_t>(c.block_size));
    if (longrope) real("rope.scaling.attn_factor", ops::rope_attention_factor(c.rope_scaling));
  }
  if (a == "olmo2." && c.window > 0) {
    m.add(a + "attention.sliding_window", static_cast<std::uint32_t>(c.window));
    std::vector<bool> windows;
    for (std::int64_t layer = 0; layer < c.n_layer; ++layer)
      windows.push_back(c.kind_of(layer).window > 0);
    m.add(a + "attention.sliding_window_pattern", GgufArray(std::move(windows)));
  }
  if (a != "gemma2." && a != "gemma3.") return;
  m.add(a + "attention.sliding_window", static_cast<std::uint32_t>(c.window));
  // A cap that is absent has llama.cpp's default.
  if (a == "gemma2.") real("attn_logit_softcapping", c.attention_softcap);
  if (a == "gemma2." || c.logit_softcap > 0) real("final_logit_softcapping", c.logit_softcap);
  if (a == "gemma3.")
    real("rope.freq_base_swa", c.rope_local_theta > 0 ? c.rope_local_theta : c.rope_theta);
}

}  // namespace

GgufMetadata gguf_metadata(const GptConfig& c, Encoding type, const std::string& name) {
  const bool gpt2 = gguf_dialect_of(c) == Dialect::gguf_gpt2 && c.position == Position::learned;
  const bool neox = !gpt2 && c.norm == ops::Norm::layernorm;
  const std::string architecture = gpt2 ? "gpt2" : gguf_architecture(c), a = architecture + ".";
  const auto u32 = [](std::int64_t value) { return static_cast<std::uint32_t>(value); };
  GgufMetadata m;
  m.add("general.architecture", architecture);
  m.add("general.type", std::string("model"));
  m.add("general.name", name);
  m.add("general.file_type", file_type(type));
  if (block_elements(type) > 1) m.add("general.quantization_version", std::uint32_t{2});
  m.add(a + "context_length", u32(described_length(c)));
  m.add(a + "embedding_length", u32(c.n_embd));
  m.add(a + "block_count", u32(c.n_layer));
  m.add(a + "feed_forward_length", u32(c.ffn_width));
  m.add(a + "attention.head_count", u32(c.n_head));
  m.add(a + "attention.head_count_kv", u32(c.n_kv_head));
  m.add(a + "vocab_size", u32(c.vocab_size));
  const auto eps = static_cast<float>(c.norm_eps);
  if (neox) m.add(a + "use_parallel_residual", c.parallel_branches);
  m.add(a + (gpt2 || neox ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon"),
        eps);
  if (!gpt2) {
    m.add(a + "rope.dimension_count", u32(c.rotated_width()));
    m.add(a + "rope.freq_base", static_cast<float>(c.rope_theta));
    if (c.own_head_width > 0) {
      m.add(a + "attention.key_length", u32(c.head_width()));
      m.add(a + "attention.value_length", u32(c.head_width()));
    }
    add_own_keys(m, c, a);
    add_gguf_scaling(m, c.rope_scaling, a);
  }
  return m;
}

namespace {

bool is_always_float(const TensorPart& part) {
  return part.shape.rank() == 1 || part.name.starts_with("position_embd");
}

}  // namespace

Encoding gguf_encoding(const TensorPart& part, Encoding type, bool tied) {
  if (is_always_float(part)) return Encoding::f32;
  const bool head = part.name == (tied ? "token_embd.weight" : "output.weight");
  std::vector<Encoding> wanted{type};
  if (type == Encoding::q4_k)
    wanted = head ? std::vector{Encoding::q6_k, Encoding::q8_0} : std::vector{type, Encoding::q5_0};
  const auto fits = [&](Encoding one) { return part.shape.back() % block_elements(one) == 0; };
  const auto found = std::find_if(wanted.begin(), wanted.end(), fits);
  return found == wanted.end() ? Encoding::f32 : *found;
}

std::map<Encoding, std::int64_t> gguf_matrices(const std::vector<TensorPart>& parts, Encoding type,
                                               bool tied) {
  std::map<Encoding, std::int64_t> matrices;
  for (const TensorPart& part : parts)
    if (!is_always_float(part)) ++matrices[gguf_encoding(part, type, tied)];
  return matrices;
}

Encoding gguf_stored_type(const std::map<Encoding, std::int64_t>& matrices, Encoding type) {
  if (matrices.contains(type) || matrices.empty()) return type;
  return std::max_element(matrices.begin(), matrices.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

}  // namespace choir
