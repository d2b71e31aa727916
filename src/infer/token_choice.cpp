#include "choir/infer/token_choice.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "choir/core/error.hpp"
#include "choir/core/philox.hpp"

namespace choir {

TokenChooser::TokenChooser(const TokenChoice& choice, std::int64_t vocabulary)
    : choice_(choice),
      order_(static_cast<std::size_t>(vocabulary)),
      weight_(static_cast<std::size_t>(vocabulary)) {}

std::int32_t TokenChooser::choose(std::span<const float> logits, std::int64_t index) {
  CHOIR_CHECK(logits.size() == order_.size(), "{} logits for {} tokens", logits.size(),
              order_.size());
  std::iota(order_.begin(), order_.end(), 0);
  const auto logit_of = [&](std::int32_t token) {
    const float x = logits[static_cast<std::size_t>(token)];
    return std::isnan(x) ? -INFINITY : x;  // a diverged model must not break the order
  };
  // Ties go to the smaller id, so that the order is the same everywhere.
  std::sort(order_.begin(), order_.end(), [&](std::int32_t a, std::int32_t b) {
    const float x = logit_of(a), y = logit_of(b);
    return x != y ? x > y : a < b;
  });
  const double top = logit_of(order_.front());
  if (choice_.temperature <= 0 || std::isinf(top)) return order_.front();
  std::size_t kept = order_.size();
  if (choice_.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(choice_.top_k));
  double total = 0;
  for (std::size_t i = 0; i < kept; ++i) {
    weight_[i] = std::exp((logit_of(order_[i]) - top) / choice_.temperature);
    total += weight_[i];
  }
  double mass = 0;
  for (std::size_t i = 0; i < kept; ++i) {
    mass += weight_[i];
    if (mass >= choice_.top_p * total) kept = i + 1;
  }
  mass = std::accumulate(weight_.begin(), weight_.begin() + static_cast<std::ptrdiff_t>(kept), 0.0);
  const PhiloxBlock word =
      philox_at(philox_key(choice_.seed, "generate"), static_cast<std::uint64_t>(index));
  double left = uniform01(word[0]) * mass;
  for (std::size_t i = 0; i + 1 < kept; ++i) {
    left -= weight_[i];
    if (left < 0) return order_[i];
  }
  return order_[kept - 1];
}

}  // namespace choir
