#include "src/models/gpt/synthetic_tokens.hpp"

#include "choir/core/philox.hpp"
#include "choir/data/tokens/batch.hpp"
#include "choir/models/gpt/gpt_config.hpp"

namespace choir {

SyntheticTokens::SyntheticTokens(std::uint64_t seed, std::int64_t rows, std::int64_t tokens,
                                 std::int64_t vocabulary, bool packed)
    : tokens_key_(philox_key(seed, "verify tokens")),
      length_key_(philox_key(seed, "verify lengths")),
      documents_key_(philox_key(seed, "verify documents")),
      rows_(rows),
      tokens_(tokens),
      vocabulary_(vocabulary),
      inputs_(static_cast<std::size_t>(rows * tokens)),
      targets_(inputs_.size()),
      begins_(packed ? inputs_.size() : 0),
      positions_(begins_.size()) {}

std::int64_t SyntheticTokens::length(std::int64_t sample) const {
  const PhiloxBlock word = philox_at(length_key_, static_cast<std::uint64_t>(sample));
  return static_cast<std::int64_t>(word[0] % static_cast<std::uint64_t>(tokens_ + 1));
}

void SyntheticTokens::write_documents(std::int64_t sample, std::int64_t row) {
  constexpr std::uint32_t kUsualTokens = 5;
  std::int32_t begin = 0;
  for (std::int64_t t = 0; t < tokens_; ++t) {
    const PhiloxBlock word = philox_at(documents_key_, static_cast<std::uint64_t>(sample),
                                       static_cast<std::uint64_t>(t));
    if (word[0] % kUsualTokens == 0) begin = static_cast<std::int32_t>(t);
    const auto at = static_cast<std::size_t>(row * tokens_ + t);
    begins_[at] = begin;
    positions_[at] = static_cast<std::int32_t>(t) - begin;
  }
}

ModelBatch SyntheticTokens::micro_batch(std::int64_t index) {
  const auto token = [&](std::int64_t sample, std::int64_t position) {
    const PhiloxBlock word = philox_at(tokens_key_, static_cast<std::uint64_t>(sample),
                                       static_cast<std::uint64_t>(position));
    return static_cast<std::int32_t>(word[0] % static_cast<std::uint64_t>(vocabulary_));
  };
  const std::int64_t first = index * rows_;
  for (std::int64_t row = 0; row < rows_; ++row) {
    const std::int64_t counted = length(first + row);
    if (!begins_.empty()) write_documents(first + row, row);
    for (std::int64_t t = 0; t < tokens_; ++t) {
      const auto at = static_cast<std::size_t>(row * tokens_ + t);
      inputs_[at] = token(first + row, t);
      targets_[at] = t < counted ? token(first + row, t + 1) : kIgnoredTarget;
    }
  }
  const Shape shape{rows_ * tokens_};
  ModelBatch batch = token_batch(rows_, {inputs_.data(), DType::i32, shape},
                                 {targets_.data(), DType::i32, shape}, first);
  if (!begins_.empty())
    add_documents(batch, {begins_.data(), DType::i32, shape},
                  {positions_.data(), DType::i32, shape});
  return batch;
}

std::int64_t SyntheticTokens::valid(std::int64_t first, std::int64_t count) const {
  std::int64_t sum = 0;
  for (std::int64_t sample = first; sample < first + count; ++sample) sum += length(sample);
  return sum;
}

}  // namespace choir
