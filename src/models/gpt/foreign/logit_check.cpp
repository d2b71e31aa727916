#include "src/models/gpt/foreign/logit_check.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "src/core/text.hpp"
#include "src/models/gpt/generator.hpp"
#include "src/models/gpt/gpt.hpp"

namespace choir {
namespace {

std::int32_t checked_id(double id, const GptConfig& config, const std::string& what) {
  if (id >= 0 && id < static_cast<double>(config.vocab_size) && id == std::floor(id))
    return static_cast<std::int32_t>(id);
  throw DeckError(fmt::format("{}: {} is no token of the model", what, id),
                  fmt::format("ids are from 0 to {}", config.vocab_size - 1));
}

void check_count(std::size_t count, const GptConfig& config, const std::string& what) {
  if (count >= 1 && static_cast<std::int64_t>(count) <= config.block_size) return;
  throw DeckError(fmt::format("{}: {} ids", what, count),
                  fmt::format("give 1 to {}, the model's block_size", config.block_size));
}

}  // namespace

Logits logits_of(ModelInstance& instance, const std::vector<std::int32_t>& ids) {
  Logits logits;
  logits.values = Generator(instance).logits(ids);
  logits.shape = {static_cast<std::int64_t>(ids.size()), instance.as<Gpt>().config().vocab_size};
  logits.in_f32 = instance.options().precision.compute != DType::f64;
  return logits;
}

void write_logits(const std::string& path, const Logits& logits) {
  if (!logits.in_f32) {
    std::vector<double> values = logits.values;
    return write_npy(path, {values.data(), DType::f64, logits.shape});
  }
  std::vector<float> values(logits.values.begin(), logits.values.end());
  write_npy(path, {values.data(), DType::f32, logits.shape});
}

std::vector<std::int32_t> parse_ids(const std::string& text, const GptConfig& config,
                                    const std::string& what) {
  std::vector<std::int32_t> ids;
  for (const std::string& word : split(text, ',')) {
    const std::string_view digits = trim(word);
    std::int64_t id = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), id);
    if (error != std::errc() || end != digits.data() + digits.size())
      throw DeckError(fmt::format("{}: '{}' is no number", what, word),
                      "give ids with commas between them: 3,17,5");
    ids.push_back(checked_id(static_cast<double>(id), config, what));
  }
  check_count(ids.size(), config, what);
  return ids;
}

std::vector<std::int32_t> ids_of(const NpyArray& array, const GptConfig& config,
                                 const std::string& what) {
  if (array.shape.rank() != 1)
    throw DeckError(fmt::format("'{}' has the shape {}", what, to_string(array.shape)),
                    "the ids of one sequence have one dimension");
  check_count(array.values.size(), config, what);
  std::vector<std::int32_t> ids;
  for (const double id : array.values) ids.push_back(checked_id(id, config, what));
  return ids;
}

double logit_tolerance(const GptConfig& c, double largest, bool in_f32) {
  const double unit = in_f32 ? std::numeric_limits<float>::epsilon() / 2
                             : std::numeric_limits<double>::epsilon() / 2;
  const auto longest = static_cast<double>(std::max({c.n_embd, c.ffn_width, c.block_size}));
  return unit * largest * static_cast<double>(8 * c.n_layer + 2) * std::sqrt(longest);
}

LogitDifference compare_logits(const GptConfig& config, const Logits& ours, const NpyArray& given,
                               double tolerance, const std::string& what) {
  if (ours.shape != given.shape)
    throw DataError(fmt::format("'{}' has the shape {}, the logits of this model {}", what,
                                to_string(given.shape), to_string(ours.shape)),
                    "a row for each id, a column for each token");
  LogitDifference result;
  double largest = 0;
  for (std::size_t i = 0; i < ours.values.size(); ++i) {
    const double difference = std::abs(ours.values[i] - given.values[i]);
    largest = std::max(largest, std::abs(given.values[i]));
    if (difference <= result.largest) continue;
    const auto at = static_cast<std::int64_t>(i);
    result.largest = std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
    result.row = at / ours.shape.back();
    result.column = at % ours.shape.back();
  }
  result.tolerance =
      tolerance > 0 ? tolerance : logit_tolerance(config, largest, ours.in_f32 || given.in_f32);
  return result;
}

}  // namespace choir
