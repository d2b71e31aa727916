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

/// Tolerance of comparisons: divisors are f32, and their differences lose some digits.
constexpr double kSame = 1e-5;

/// The multiple of `grid` that `value` was rounded from, or `value` if none is near.
double meant(double value, double grid) {
  const double round = std::round(value / grid) * grid;
  return std::fabs(round - value) <= 1e-3 * grid + kSame * std::fabs(value) ? round : value;
}

}  // namespace

std::vector<float> gguf_divisors(double theta, const ops::RopeScaling& scaling,
                                 std::int64_t head_width) {
  std::vector<float> divisors;
  if (scaling.kind != ops::RopeScaling::Kind::llama3) return divisors;
  for (std::int64_t i = 0; i < head_width / 2; ++i)
    divisors.push_back(static_cast<float>(ops::rope_frequency(theta, {}, head_width, i) /
                                          ops::rope_frequency(theta, scaling, head_width, i)));
  return divisors;
}

namespace {

/// True if the scaling has these divisors.
bool has_divisors(double theta, const ops::RopeScaling& scaling, std::span<const float> divisors) {
  const auto again = gguf_divisors(theta, scaling, 2 * static_cast<std::int64_t>(divisors.size()));
  for (std::size_t i = 0; i < divisors.size(); ++i)
    if (!(std::fabs(again[i] - divisors[i]) <= kSame * divisors[i])) return false;
  return !divisors.empty();
}

/// A scaling for divisors of which at most one, `between`, is neither 1 nor `factor`. The ratios
/// are then free within limits: `high` is near that of Llama 3.1, or smaller if it has to be, and
/// `original` is whole.
std::optional<ops::RopeScaling> scaling_of_few(double theta, std::span<const float> divisors,
                                               double factor, std::optional<std::size_t> between) {
  const auto head_width = 2 * static_cast<std::int64_t>(divisors.size());
  const auto per_wavelength = [&](std::size_t i) {
    return ops::rope_frequency(theta, {}, head_width, static_cast<std::int64_t>(i)) /
           (2 * std::numbers::pi);
  };
  const auto slow = std::find_if(divisors.begin(), divisors.end(),
                                 [&](float d) { return d >= factor * (1 - kSame); });
  if (!(factor > 1 + kSame) || slow == divisors.end()) return {};
  for (const double high : {4.0, 2.0, 8.0, 1.5, 1.25, 1.1, 1.01}) {
    ops::RopeScaling scaling{.kind = ops::RopeScaling::Kind::llama3,
                             .factor = meant(factor, 0.5),
                             .original = 0,
                             .low = 1,
                             .high = high};
    if (between) {
      const double s = (1.0 / divisors[*between] - 1 / factor) / (1 - 1 / factor);
      const double p = per_wavelength(*between);
      scaling.original = std::round(((high - 1) * s + 1) / p);
      scaling.high = 1 + (scaling.original * p - 1) / s;
    } else {
      const auto first = static_cast<std::size_t>(slow - divisors.begin());
      scaling.original = std::floor(1 / per_wavelength(first));
    }
    if (scaling.high > 1 && has_divisors(theta, scaling, divisors)) return scaling;
  }
  return {};
}

}  // namespace

// Between the two wavelengths 1 / divisor = (1 - s) / factor + s, where s is linear in the
// frequency: s = original / (high - low) / wavelength - low / (high - low).
std::optional<ops::RopeScaling> scaling_of_divisors(double theta, std::span<const float> divisors) {
  const auto head_width = 2 * static_cast<std::int64_t>(divisors.size());
  if (divisors.empty()) return {};
  const double factor = *std::max_element(divisors.begin(), divisors.end());
  struct Point {
    double per_wavelength, s;
  };
  std::vector<Point> between;
  std::optional<std::size_t> one;  // index of a point
  for (std::size_t i = 0; i < divisors.size(); ++i) {
    const double d = divisors[i];
    if (!(d > 1 + kSame) || !(d < factor * (1 - kSame))) continue;
    const double f = ops::rope_frequency(theta, {}, head_width, static_cast<std::int64_t>(i));
    one = i;
    between.push_back({f / (2 * std::numbers::pi), (1 / d - 1 / factor) / (1 - 1 / factor)});
  }
  if (between.size() < 2) return scaling_of_few(theta, divisors, factor, one);
  const Point &first = between.front(), &last = between.back();
  const double slope = (first.s - last.s) / (first.per_wavelength - last.per_wavelength);
  const double below = slope * first.per_wavelength - first.s;
  if (!(slope > 0) || !(below > 0)) return {};
  ops::RopeScaling scaling{.kind = ops::RopeScaling::Kind::llama3,
                           .factor = meant(factor, 0.5),
                           .original = meant(slope / below, 1),
                           .low = 1,
                           .high = meant(1 + 1 / below, 0.5)};
  if (!has_divisors(theta, scaling, divisors)) return {};
  return scaling;
}

namespace {

constexpr std::string_view kTokenizer = "tokenizer.";
// Types of tokens in llama.cpp.
constexpr std::int32_t kNormal = 1, kUnused = 5, kByte = 6;
// llama.cpp's code for smollm3 omits rotary positions in every fourth layer.
constexpr std::int64_t kSmolLm3Bare = 4;
// Our own keys for the settings behind the divisors, which do not follow from them exactly.
const std::string kOwnScaling = "choir.rope_scaling.";

std::vector<std::pair<std::string, double>> scaling_keys(const ops::RopeScaling& s) {
  return {{"factor", s.factor}, {"original", s.original}, {"low", s.low}, {"high", s.high}};
}

/// The scaling of our own keys, if the file has them and it has these divisors.
std::optional<ops::RopeScaling> own_scaling(const GgufMetadata& metadata, double theta,
                                            std::span<const float> divisors) {
  ops::RopeScaling s{.kind = ops::RopeScaling::Kind::llama3};
  for (const auto& [key, to] : {std::pair("factor", &s.factor),
                                {"original", &s.original},
                                {"low", &s.low},
                                {"high", &s.high}}) {
    const auto* value = metadata.get<double>(kOwnScaling + key);
    if (value == nullptr) return {};
    *to = *value;
  }
  if (!has_divisors(theta, s, divisors)) return {};
  return s;
}

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

/// True for YaRN as llama.cpp computes it without further keys: the ramp and the attention factor
/// of the paper, and whole lengths.
bool is_plain_yarn(const ops::RopeScaling& s) {
  const ops::RopeScaling plain;
  return s.beta_fast == plain.beta_fast && s.beta_slow == plain.beta_slow && s.truncate &&
         s.attention_factor == 0 && s.original == std::trunc(s.original);
}

/// Reads the scaling of rotary angles that llama.cpp describes by keys.
void read_gguf_scaling(KeyReader& keys, GptConfig& c) {
  ops::RopeScaling& s = c.rope_scaling;
  const std::string type = keys.text("rope.scaling.type", "none");
  if (type == "none") return;
  if (type != "linear" && type != "yarn") {
    keys.problem("rope.scaling.type",
                 "only linear and yarn scaling of rotary angles are supported");
    return;
  }
  s.factor = keys.real("rope.scaling.factor", 1);
  keys.harmless({"rope.scaling.finetuned"});
  if (type == "yarn") {
    s.kind = ops::RopeScaling::Kind::yarn;
    s.original = static_cast<double>(keys.needed("rope.scaling.original_context_length"));
  } else {
    s.kind = ops::RopeScaling::Kind::linear;
    keys.harmless({"rope.scaling.original_context_length"});
  }
}

void read_common(KeyReader& keys, const GgufReader& reader, GptConfig& c) {
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
  keys.only("rope.dimension_count", width, "rotating a part of a head is not supported");
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

double gemma_score_scale(const GgufGemma& gemma, const GptConfig& c) {
  const bool largest = gemma.layers_of_largest > 0 && c.n_layer == gemma.layers_of_largest;
  return 1 / std::sqrt(static_cast<double>(largest ? c.n_embd / c.n_head : c.head_width()));
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
  c.rope_scaling_layers = ScaledLayers::full;
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
  refuse_window(keys, c);
  if (architecture == "granite") read_gguf_granite(keys, c);
}

constexpr const char* kReadArchitectures =
    "gpt2, llama, qwen2, qwen3, smollm3, gemma, gemma2, gemma3 and granite are read";

std::string character_token(const std::string& piece) {
  return piece == " " ? "\u2581" : piece;
}

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
  if (*architecture == "gpt2") {
    model.dialect = Dialect::gguf_gpt2;
  } else if (*architecture == "llama" || *architecture == "smollm3" || *architecture == "granite") {
    model.dialect = Dialect::gguf_llama;
  } else if (*architecture == "qwen2" || *architecture == "qwen3" || *architecture == "gemma" ||
             *architecture == "gemma2" || *architecture == "gemma3") {
    model.dialect = Dialect::gguf_qwen;
  } else {
    refuse_problems(reader.path(), {fmt::format("general.architecture = {}: {}", *architecture,
                                                kReadArchitectures)});
  }
  read_common(keys, reader, c);
  if (model.dialect == Dialect::gguf_gpt2)
    read_gguf_gpt2(keys, c);
  else
    read_gguf_llama(keys, *architecture, c);
  const TensorEntry& tokens = reader.at("token_embd.weight");
  c.vocab_size = tokens.shape.rank() == 2 ? tokens.shape[0] : 0;
  keys.only("vocab_size", c.vocab_size, "another number than the rows of token_embd.weight");
  std::vector<std::string> problems = keys.problems(allow_unknown);
  if (const TensorEntry* entry = reader.find(kGgufDivisors)) {
    std::optional<ops::RopeScaling> scaling;
    if (const std::int64_t pairs = entry->shape.count(); 2 * pairs == c.head_width()) {
      std::vector<float> divisors(static_cast<std::size_t>(pairs));
      reader.read(kGgufDivisors, 0, pairs, divisors.data(), DType::f32);
      scaling = own_scaling(metadata, c.rope_theta, divisors);
      if (!scaling) scaling = scaling_of_divisors(c.rope_theta, divisors);
    }
    if (scaling)
      c.rope_scaling = *scaling;
    else
      problems.push_back(fmt::format("{}: the divisors are not a Llama 3 scaling of rotary angles",
                                     kGgufDivisors));
  }
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
  const double scale = gemma_score_scale(gemma, c);
  if (c.attention_scale > 0 && std::fabs(c.attention_scale - scale) > 1e-6 * scale)
    refuse("attention_scale", fmt::format("multiplies scores by {:.6g}", scale));
  if (gemma.full_interval > 0 &&
      (c.window == 0 || c.window_skip_interval != gemma.full_interval || c.window_first_layer > 0))
    refuse("window_skip_interval",
           fmt::format("has a window except in every layer number {}", gemma.full_interval));
}

/// llama.cpp's name for the architecture of a model with rotary positions.
std::string gguf_architecture(const GptConfig& c) {
  using Kind = ops::RopeScaling::Kind;
  const std::string_view type = hf_type_of(c);
  const auto* const gemma = std::find_if(kGemmas.begin(), kGemmas.end(),
                                         [&](const GgufGemma& one) { return one.hf_type == type; });
  if (gemma != kGemmas.end()) require_gguf_gemma(*gemma, c);
  if (c.window > 0 && gemma == kGemmas.end())
    throw DeckError(
        "llama.cpp has no window in these models, and would see more than "
        "model.attention_window",
        "export --format hf supports it");
  if (c.rope_scaling.kind == Kind::yarn && !is_plain_yarn(c.rope_scaling))
    throw DeckError(
        "llama.cpp has no model.rope_beta_fast, rope_beta_slow, rope_truncate or "
        "rope_attention_factor for these models, and only a whole rope_original",
        "export --format hf supports it");
  if (gemma != kGemmas.end()) return std::string(gemma->architecture);
  if (type == "granite") return "granite";
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
  if (c.bias)
    throw DeckError("llama.cpp has no Llama with model.bias = true",
                    "export --format hf supports it");
  gguf_architecture(c);  // refuses unsupported models
  return c.qk_norm || c.has(c.qkv_bias) || c.norm_offset ? Dialect::gguf_qwen : Dialect::gguf_llama;
}

namespace {

/// The keys of factors, soft caps and windows; `a` is the prefix of the architecture.
void add_gemma_or_granite(GgufMetadata& m, const GptConfig& c, const std::string& a) {
  const auto real = [&](const char* key, double value) {
    m.add(a + key, static_cast<float>(value));
  };
  if (a == "granite.") {
    real("embedding_scale", c.embedding_scale);
    real("residual_scale", c.residual_scale);
    real("logit_scale", 1 / c.logit_scale);
    if (c.attention_scale > 0) real("attention.scale", c.attention_scale);
  }
  if (a != "gemma2." && a != "gemma3.") return;
  m.add(a + "attention.sliding_window", static_cast<std::uint32_t>(c.window));
  // A cap that is absent has llama.cpp's default, and one of 0 is none.
  if (a == "gemma2.") real("attn_logit_softcapping", c.attention_softcap);
  if (a == "gemma2." || c.logit_softcap > 0) real("final_logit_softcapping", c.logit_softcap);
  if (a == "gemma3.")
    real("rope.freq_base_swa", c.rope_local_theta > 0 ? c.rope_local_theta : c.rope_theta);
}

}  // namespace

GgufMetadata gguf_metadata(const GptConfig& c, Encoding type, const std::string& name) {
  const bool gpt2 = gguf_dialect_of(c) == Dialect::gguf_gpt2;
  const std::string architecture = gpt2 ? "gpt2" : gguf_architecture(c), a = architecture + ".";
  const auto u32 = [](std::int64_t value) { return static_cast<std::uint32_t>(value); };
  GgufMetadata m;
  m.add("general.architecture", architecture);
  m.add("general.type", std::string("model"));
  m.add("general.name", name);
  m.add("general.file_type", file_type(type));
  if (block_elements(type) > 1) m.add("general.quantization_version", std::uint32_t{2});
  m.add(a + "context_length", u32(c.block_size));
  m.add(a + "embedding_length", u32(c.n_embd));
  m.add(a + "block_count", u32(c.n_layer));
  m.add(a + "feed_forward_length", u32(c.ffn_width));
  m.add(a + "attention.head_count", u32(c.n_head));
  m.add(a + "attention.head_count_kv", u32(c.n_kv_head));
  m.add(a + "vocab_size", u32(c.vocab_size));
  const auto eps = static_cast<float>(c.norm_eps);
  if (gpt2) {
    m.add(a + "attention.layer_norm_epsilon", eps);
  } else {
    m.add(a + "attention.layer_norm_rms_epsilon", eps);
    m.add(a + "rope.dimension_count", u32(c.head_width()));
    m.add(a + "rope.freq_base", static_cast<float>(c.rope_theta));
    if (c.own_head_width > 0) {
      m.add(a + "attention.key_length", u32(c.head_width()));
      m.add(a + "attention.value_length", u32(c.head_width()));
    }
    add_gemma_or_granite(m, c, a);
    using Kind = ops::RopeScaling::Kind;
    const ops::RopeScaling& scaling = c.rope_scaling;
    const bool yarn = scaling.kind == Kind::yarn;
    if (yarn || scaling.kind == Kind::linear) {
      m.add(a + "rope.scaling.type", std::string(yarn ? "yarn" : "linear"));
      m.add(a + "rope.scaling.factor", static_cast<float>(scaling.factor));
    }
    if (yarn)
      m.add(a + "rope.scaling.original_context_length",
            u32(static_cast<std::int64_t>(scaling.original)));
    if (scaling.kind == Kind::llama3)
      for (const auto& [key, value] : scaling_keys(scaling)) m.add(kOwnScaling + key, value);
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

bool has_tokenizer(const GgufMetadata& metadata) {
  const auto* model = metadata.get<std::string>("tokenizer.ggml.model");
  return !tokenizer_of(metadata).pairs().empty() && !(model != nullptr && *model == "none");
}

GgufMetadata tokenizer_of(const GgufMetadata& metadata) {
  GgufMetadata tokenizer;
  for (const auto& [key, value] : metadata.pairs())
    if (key.starts_with(kTokenizer)) tokenizer.add(key, value);
  return tokenizer;
}

namespace {

/// llama.cpp's name of the rule by which the tokenizer splits text.
std::string pre_tokenizer_name(const nlohmann::json& file) {
  std::vector<nlohmann::json> steps{file.value("pre_tokenizer", nlohmann::json())};
  if (steps[0].is_object() && steps[0].contains("pretokenizers"))
    steps = steps[0]["pretokenizers"].get<std::vector<nlohmann::json>>();
  bool digits = false;
  std::string expression;
  for (const auto& step : steps) {
    const std::string type = step.is_object() ? step.value("type", "") : "";
    if (type == "Digits") digits = step.value("individual_digits", false);
    if (type == "ByteLevel" && step.value("use_regex", true))
      expression = expression_of(Splitter::gpt2);
    if (type == "Split" && step.contains("pattern") && step["pattern"].contains("Regex"))
      expression = step["pattern"]["Regex"].get<std::string>();
  }
  const auto splitter = splitter_of_expression(expression);
  if (splitter == Splitter::gpt2) return digits ? "smollm" : "gpt-2";
  if (splitter == Splitter::llama3 && !digits) return "llama-bpe";
  if (splitter == Splitter::qwen2 && !digits) return "qwen2";
  if (splitter == Splitter::tekken && !digits) return "tekken";
  if (splitter == Splitter::o200k && !digits) return "gpt-4o";
  throw DeckError("llama.cpp does not support how this tokenizer splits text",
                  "--format hf keeps its tokenizer.json");
}

/// True if the tokenizer puts a token behind every text.
bool ends_texts(const nlohmann::json& step) {
  if (!step.is_object()) return false;
  if (step.contains("processors"))
    return std::any_of(step["processors"].begin(), step["processors"].end(), ends_texts);
  if (!step.contains("single") || step["single"].empty()) return false;
  return step["single"].back().contains("SpecialToken");
}

GgufMetadata tokenizer_of_bpe(const Vocabulary& vocabulary, std::int64_t vocab_size) {
  constexpr std::int32_t kControl = 3, kUserDefined = 4;
  const nlohmann::json file = json_unless_broken(vocabulary.to_json());
  const auto& model = file["model"];
  const auto rows = static_cast<std::size_t>(std::max<std::int64_t>(vocab_size, vocabulary.size()));
  std::vector<std::string> tokens(rows), merges;
  std::vector<std::int32_t> types(rows, kUnused);
  for (std::size_t id = 0; id < rows; ++id) tokens[id] = fmt::format("[PAD{}]", id);
  const auto put = [&](std::size_t id, const std::string& token, std::int32_t type) {
    tokens.at(id) = token;
    types.at(id) = type;
  };
  for (const auto& [token, id] : model["vocab"].items()) put(id.get<std::size_t>(), token, kNormal);
  if (file.contains("added_tokens"))
    for (const auto& added : file["added_tokens"])
      put(added["id"].get<std::size_t>(), added["content"].get<std::string>(),
          added.value("special", false) ? kControl : kUserDefined);
  for (const auto& merge : model["merges"])
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  if (merges.empty())
    throw DeckError("llama.cpp cannot read a tokenizer without merges",
                    "--format hf keeps its tokenizer.json");
  GgufMetadata m;
  m.add("tokenizer.ggml.model", std::string("gpt2"));
  m.add("tokenizer.ggml.pre", pre_tokenizer_name(file));
  m.add("tokenizer.ggml.tokens", GgufArray(std::move(tokens)));
  m.add("tokenizer.ggml.token_type", GgufArray(std::move(types)));
  m.add("tokenizer.ggml.merges", GgufArray(std::move(merges)));
  if (ends_texts(file.value("post_processor", nlohmann::json())))
    m.add("tokenizer.ggml.add_eos_token", true);
  return m;
}

/// Adds the tokens that begin and end a text.
void add_text_ends(const Vocabulary& vocabulary, GgufMetadata& m) {
  const auto start = vocabulary.text_start();
  if (!start.empty())
    m.add("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(start.front()));
  if (const auto end = vocabulary.end_of_text())
    m.add("tokenizer.ggml.eos_token_id", static_cast<std::uint32_t>(*end));
  m.add("tokenizer.ggml.add_bos_token", !start.empty());
}

}  // namespace

GgufMetadata tokenizer_of_vocabulary(const std::string& json, std::int64_t vocab_size) {
  GgufMetadata m;
  if (json.empty()) {
    m.add("tokenizer.ggml.model", std::string("none"));
    return m;
  }
  const Vocabulary vocabulary = Vocabulary::from_json(json, "the checkpoint");
  if (vocabulary.kind() == VocabularyKind::bpe ||
      vocabulary.kind() == VocabularyKind::sentencepiece) {
    m = vocabulary.kind() == VocabularyKind::bpe ? tokenizer_of_bpe(vocabulary, vocab_size)
                                                 : gguf_of_sentencepiece(vocabulary, vocab_size);
    add_text_ends(vocabulary, m);
    return m;
  }
  const bool bytes = vocabulary.kind() == VocabularyKind::byte;
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
  for (std::int32_t id = 0; id < vocab_size; ++id) {
    const bool known = id < vocabulary.size();
    tokens.push_back(!known  ? fmt::format("[PAD{}]", id)
                     : bytes ? fmt::format("<0x{:02X}>", id)
                             : character_token(vocabulary.piece(id)));
    types.push_back(!known ? kUnused : bytes ? kByte : kNormal);
  }
  m.add("tokenizer.ggml.model", std::string("llama"));
  m.add("tokenizer.ggml.pre", std::string("default"));
  m.add("tokenizer.ggml.scores", GgufArray(std::vector<float>(tokens.size(), 0.0f)));
  m.add("tokenizer.ggml.tokens", GgufArray(std::move(tokens)));
  m.add("tokenizer.ggml.token_type", GgufArray(std::move(types)));
  m.add("tokenizer.ggml.add_bos_token", false);
  m.add("tokenizer.ggml.add_eos_token", false);
  m.add("tokenizer.ggml.add_space_prefix", false);
  return m;
}

}  // namespace choir
