// The scaling of rotary angles in GGUF files: keys for linear and yarn, for Llama 3 a tensor of
// divisors, from which its settings are found again, and for longrope two tensors.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numbers>

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
                                 std::int64_t width) {
  std::vector<float> divisors;
  if (scaling.kind != ops::RopeScaling::Kind::llama3) return divisors;
  for (std::int64_t i = 0; i < width / 2; ++i)
    divisors.push_back(static_cast<float>(ops::rope_frequency(theta, {}, width, i) /
                                          ops::rope_frequency(theta, scaling, width, i)));
  return divisors;
}

std::vector<std::pair<std::string, std::vector<float>>> gguf_angle_tensors(const GptConfig& c) {
  if (c.rope_scaling.kind != ops::RopeScaling::Kind::longrope) {
    std::vector<float> divisors = gguf_divisors(c.rope_theta, c.rope_scaling, c.rotated_width());
    if (divisors.empty()) return {};
    return {{std::string(kGgufDivisors), std::move(divisors)}};
  }
  const auto as_floats = [](const std::vector<std::string>& list) {
    const std::vector<double> factors = rope_factors(list);
    return std::vector<float>(factors.begin(), factors.end());
  };
  return {{std::string(kGgufLongFactors), as_floats(c.rope_long_factors)},
          {std::string(kGgufShortFactors), as_floats(c.rope_short_factors)}};
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
  const auto width = 2 * static_cast<std::int64_t>(divisors.size());
  const auto per_wavelength = [&](std::size_t i) {
    return ops::rope_frequency(theta, {}, width, static_cast<std::int64_t>(i)) /
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
  const auto width = 2 * static_cast<std::int64_t>(divisors.size());
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
    const double f = ops::rope_frequency(theta, {}, width, static_cast<std::int64_t>(i));
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

constexpr const char* kBetaFast = "rope.scaling.yarn_beta_fast";
constexpr const char* kBetaSlow = "rope.scaling.yarn_beta_slow";
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

}  // namespace

bool is_gguf_yarn(const ops::RopeScaling& s, bool has_ends) {
  const ops::RopeScaling plain{.kind = ops::RopeScaling::Kind::yarn, .factor = s.factor};
  const double factor = ops::rope_attention_factor(plain);
  const bool same_ends = s.beta_fast == plain.beta_fast && s.beta_slow == plain.beta_slow;
  return (has_ends || same_ends) && s.truncate && s.original == std::trunc(s.original) &&
         std::fabs(ops::rope_attention_factor(s) - factor) <= 1e-12 * factor;
}

void read_gguf_scaling(KeyReader& keys, GptConfig& c) {
  ops::RopeScaling& s = c.rope_scaling;
  const std::string type = keys.text("rope.scaling.type", "none");
  if (type == "none") return;
  if (type == "longrope") {  // read_gguf_longrope() reads the rest
    s.kind = ops::RopeScaling::Kind::longrope;
    keys.harmless({"rope.scaling.factor", "rope.scaling.finetuned"});
    return;
  }
  if (type != "linear" && type != "yarn") {
    keys.problem("rope.scaling.type",
                 "only linear, yarn and longrope scaling of rotary angles are supported");
    return;
  }
  s.factor = keys.real("rope.scaling.factor", 1);
  keys.harmless({"rope.scaling.finetuned"});
  if (type == "yarn") {
    s.kind = ops::RopeScaling::Kind::yarn;
    s.original = static_cast<double>(keys.needed("rope.scaling.original_context_length"));
    s.beta_fast = keys.real(kBetaFast, s.beta_fast);
    s.beta_slow = keys.real(kBetaSlow, s.beta_slow);
  } else {
    s.kind = ops::RopeScaling::Kind::linear;
    keys.harmless({"rope.scaling.original_context_length"});
  }
}

void read_gguf_divisors(const GgufReader& reader, GptConfig& c,
                        std::vector<std::string>& problems) {
  if (c.rope_scaling.kind == ops::RopeScaling::Kind::longrope)
    problems.emplace_back("rope.scaling.type = longrope: only phi3 is read with it");
  const TensorEntry* entry = reader.find(kGgufDivisors);
  if (entry == nullptr) return;
  std::optional<ops::RopeScaling> scaling;
  if (const std::int64_t pairs = entry->shape.count(); 2 * pairs == c.rotated_width()) {
    std::vector<float> divisors(static_cast<std::size_t>(pairs));
    reader.read(kGgufDivisors, 0, pairs, divisors.data(), DType::f32);
    scaling = own_scaling(reader.metadata(), c.rope_theta, divisors);
    if (!scaling) scaling = scaling_of_divisors(c.rope_theta, divisors);
  }
  if (scaling)
    c.rope_scaling = *scaling;
  else
    problems.push_back(
        fmt::format("{}: the divisors are not a Llama 3 scaling of rotary angles", kGgufDivisors));
}

void read_gguf_longrope(const GgufReader& reader, GptConfig& c,
                        std::vector<std::string>& problems) {
  using Kind = ops::RopeScaling::Kind;
  ops::RopeScaling& s = c.rope_scaling;
  bool found = false;
  for (const auto& [name, list] : {std::pair{kGgufShortFactors, &c.rope_short_factors},
                                   std::pair{kGgufLongFactors, &c.rope_long_factors}}) {
    const TensorEntry* entry = reader.find(std::string(name));
    if (entry == nullptr) continue;
    found = true;
    std::vector<float> factors(static_cast<std::size_t>(entry->shape.count()));
    reader.read(std::string(name), 0, entry->shape.count(), factors.data(), DType::f32);
    bool good = 2 * entry->shape.count() == c.rotated_width();
    for (const float factor : factors) {
      good = good && factor > 0 && std::isfinite(factor);
      list->push_back(fmt::format("{}", static_cast<double>(factor)));
    }
    if (!good)
      problems.push_back(
          fmt::format("{}: a number above 0 is expected for each pair of the {} "
                      "features of a head that rotate",
                      name, c.rotated_width()));
  }
  if (!found && s.kind != Kind::longrope && s.attention_factor == 0) {
    if (s.kind != Kind::yarn) s.original = 0;
    return;
  }
  if (c.rope_short_factors.empty() || c.rope_long_factors.empty() || !(s.original > 1)) {
    problems.push_back(fmt::format("longrope needs {}, {} and rope.scaling.original_context_length",
                                   kGgufShortFactors, kGgufLongFactors));
    return;
  }
  s.kind = Kind::longrope;
  s.factor = std::max(1.0, static_cast<double>(c.block_size) / s.original);
  // A factor that the lengths give is that of the formula.
  const double given = s.attention_factor;
  s.attention_factor = 0;
  const double usual = ops::rope_attention_factor(s);
  if (given > 0 && std::fabs(given - usual) > 1e-6 * usual) s.attention_factor = given;
}

void add_gguf_scaling(GgufMetadata& m, const ops::RopeScaling& scaling, const std::string& a) {
  using Kind = ops::RopeScaling::Kind;
  const auto real = [&](const std::string& key, double value) {
    m.add(a + key, static_cast<float>(value));
  };
  const bool yarn = scaling.kind == Kind::yarn;
  if (yarn || scaling.kind == Kind::linear) {
    m.add(a + "rope.scaling.type", std::string(yarn ? "yarn" : "linear"));
    real("rope.scaling.factor", scaling.factor);
  }
  if (yarn) {
    m.add(a + "rope.scaling.original_context_length", static_cast<std::uint32_t>(scaling.original));
    const ops::RopeScaling plain;
    if (scaling.beta_fast != plain.beta_fast) real(kBetaFast, scaling.beta_fast);
    if (scaling.beta_slow != plain.beta_slow) real(kBetaSlow, scaling.beta_slow);
  }
  if (scaling.kind == Kind::llama3)
    for (const auto& [key, value] : scaling_keys(scaling)) m.add(kOwnScaling + key, value);
}

}  // namespace choir
