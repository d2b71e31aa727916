#include "choir/infer/token_choice.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "choir/core/error.hpp"
#include "choir/core/philox.hpp"

namespace choir {
namespace {
constexpr std::size_t kFirstSorted = 64;
}

TokenChooser::TokenChooser(const TokenChoice& choice, std::int64_t vocabulary)
    : choice_(choice), order_(static_cast<std::size_t>(vocabulary)) {}

// Ties go to the smaller id, so that the order is the same everywhere. Most choices fall on one of
// the first few, so no more of a large vocabulary is sorted than is looked at.
void TokenChooser::sort_to(std::size_t count, std::span<const float> logits) {
  if (count <= sorted_) return;
  const auto before = [&](std::int32_t a, std::int32_t b) {
    const float x = logit_of(logits, a), y = logit_of(logits, b);
    return x != y ? x > y : a < b;
  };
  const auto begin = order_.begin() + static_cast<std::ptrdiff_t>(sorted_);
  sorted_ = std::min(std::max({count, 4 * sorted_, kFirstSorted}), order_.size());
  const auto end = order_.begin() + static_cast<std::ptrdiff_t>(sorted_);
  if (end != order_.end()) std::nth_element(begin, end, order_.end(), before);
  std::sort(begin, end, before);
}

float TokenChooser::logit_of(std::span<const float> logits, std::int32_t token) {
  const float x = logits[static_cast<std::size_t>(token)];
  return std::isnan(x) ? -INFINITY : x;  // a diverged model must not break the order
}

// The block that has the largest, and then where. A NaN is larger than nothing.
std::int32_t TokenChooser::likeliest(std::span<const float> logits) {
  constexpr std::size_t kLanes = 16, kBlock = 32 * kLanes;
  const auto larger = [](float x, float y) { return x > y ? x : y; };
  float top = -INFINITY;
  std::size_t first = 0;
  for (std::size_t begin = 0; begin < logits.size(); begin += kBlock) {
    const std::size_t end = std::min(begin + kBlock, logits.size());
    std::array<float, kLanes> most;
    most.fill(-INFINITY);
    std::size_t i = begin;
    for (; i + kLanes <= end; i += kLanes)
      for (std::size_t j = 0; j < kLanes; ++j) most[j] = larger(logits[i + j], most[j]);
    for (; i < end; ++i) most[0] = larger(logits[i], most[0]);
    const float here = *std::ranges::max_element(most);
    if (here > top) top = here, first = begin;
  }
  if (std::isinf(top) && top < 0) return 0;
  return static_cast<std::int32_t>(std::ranges::find(logits.subspan(first), top) -
                                   logits.subspan(first).begin() +
                                   static_cast<std::ptrdiff_t>(first));
}

std::int32_t TokenChooser::choose(std::span<const float> logits, std::int64_t index) {
  CHOIR_CHECK(logits.size() == order_.size(), "{} logits for {} tokens", logits.size(),
              order_.size());
  const std::int32_t best = likeliest(logits);
  const double top = logit_of(logits, best);
  if (choice_.temperature <= 0 || std::isinf(top)) return best;
  std::iota(order_.begin(), order_.end(), 0);
  sorted_ = 0;
  std::size_t kept = order_.size();
  if (choice_.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(choice_.top_k));
  if (kept < order_.size()) sort_to(kept, logits);
  double total = 0;
  const auto weight_of = [&](std::size_t i) {
    return std::exp((logit_of(logits, order_[i]) - top) / choice_.temperature);
  };
  for (std::size_t i = 0; i < kept; ++i) total += weight_of(i);
  double mass = 0;
  if (choice_.top_p < 1)
    for (std::size_t i = 0; i < kept; ++i) {
      sort_to(i + 1, logits);
      mass += weight_of(i);
      if (mass >= choice_.top_p * total) kept = i + 1;
    }
  else
    mass = total;
  const PhiloxBlock word =
      philox_at(philox_key(choice_.seed, "generate"), static_cast<std::uint64_t>(index));
  double left = uniform01(word[0]) * mass;
  for (std::size_t i = 0; i + 1 < kept; ++i) {
    sort_to(i + 1, logits);
    left -= weight_of(i);
    if (left < 0) return order_[i];
  }
  return order_[kept - 1];
}

}  // namespace choir
