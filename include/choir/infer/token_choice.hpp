#pragma once
// Choosing the next token from logits: temperature, top-k, top-p. On the host, deterministic in the
// seed.
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
  std::vector<std::int32_t> stop;  ///< nothing follows one of these tokens
};

class TokenChooser {
 public:
  TokenChooser(const TokenChoice& choice, std::int64_t vocabulary);
  /// The token for logits [V]; `index` is the running number of the token, the only state.
  std::int32_t choose(std::span<const float> logits, std::int64_t index);

 private:
  static float logit_of(std::span<const float> logits, std::int32_t token);
  static std::int32_t likeliest(std::span<const float> logits);
  /// The tokens of a vocabulary in the order of their logits are never sorted as a whole: they lie
  /// in buckets by how far they are below the likeliest, and only the bucket in which something
  /// ends is put in order.
  struct Bucket {
    std::size_t count = 0;
    double weight = 0;
  };
  static constexpr std::size_t kBuckets = 1024;
  void weigh(std::span<const float> logits, float top);
  std::vector<std::int32_t> in_order(std::size_t bucket, std::span<const float> logits) const;
  /// The likeliest tokens, up to and with the first at which `ends` says so: that is `last`. Or
  /// all, and no last one.
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
