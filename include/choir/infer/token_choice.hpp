#pragma once
// Choosing the next token from logits: temperature, top-k, top-p. On the host, deterministic in the
// seed.
#include <cstdint>
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
  /// At least so many of `order_`, from the likeliest on.
  void sort_to(std::size_t count, std::span<const float> logits);

  TokenChoice choice_;
  std::vector<std::int32_t> order_;
  std::size_t sorted_ = 0;  ///< at the front of it
};

}  // namespace choir
