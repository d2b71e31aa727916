#pragma once
// Sampling of the next token from logits: temperature, top-k, top-p. It runs on the host and is
// deterministic in the seed.
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace choir {

struct TokenChoice {
  double temperature = 1.0;  ///< 0: always the most likely token
  int top_k = 0;             ///< keep the k most likely; 0: all
  double top_p = 1.0;        ///< keep the smallest set of probability >= p
  std::uint64_t seed = 0;
  std::vector<std::int32_t> stop;  ///< tokens that end the text
};

class TokenChooser {
 public:
  TokenChooser(const TokenChoice& choice, std::int64_t vocabulary);
  /// Samples a token from logits [V]. `index` is the running number of the token, the only state.
  std::int32_t choose(std::span<const float> logits, std::int64_t index);

 private:
  static float logit_of(std::span<const float> logits, std::int32_t token);
  static std::int32_t likeliest(std::span<const float> logits);
  /// The vocabulary is never sorted as a whole: tokens are put into buckets by the distance of
  /// their logit from the highest, and only the bucket in which a prefix ends is sorted.
  struct Bucket {
    std::size_t count = 0;
    double weight = 0;
  };
  static constexpr std::size_t kBuckets = 1024;
  void weigh(std::span<const float> logits, float top);
  std::vector<std::int32_t> in_order(std::size_t bucket, std::span<const float> logits) const;
  /// The most likely tokens up to and including the first for which `ends` is true, which is
  /// `last`; or all tokens without a last one.
  struct Prefix {
    std::size_t count = 0;
    double weight = 0;
    std::int32_t last = 0;
  };
  Prefix prefix(std::span<const float> logits,
                const std::function<bool(const Prefix&)>& ends) const;

  TokenChoice choice_;
  std::vector<float> weights_;  ///< exp((logit - largest) / temperature) of each token
  std::vector<std::uint16_t> bucket_of_;
  std::array<Bucket, kBuckets> buckets_;
};

}  // namespace choir
