#include "src/run/token_choice.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "choir/core/error.hpp"
#include "choir/core/philox.hpp"

namespace choir {
namespace {

/// The best of all logits, computed in lanes that compilers vectorise. `better` receives a logit
/// and the best so far, and must not choose a NaN.
template <class Better>
float fold(std::span<const float> logits, float best, const Better& better) {
  constexpr std::size_t kLanes = 16;
  std::array<float, kLanes> lanes;
  lanes.fill(best);
  std::size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes)
    for (std::size_t j = 0; j < kLanes; ++j) lanes[j] = better(logits[i + j], lanes[j]);
  for (; i < logits.size(); ++i) lanes[0] = better(logits[i], lanes[0]);
  for (const float lane : lanes) best = better(lane, best);
  return best;
}

}  // namespace

TokenChooser::TokenChooser(const TokenChoice& choice, std::int64_t vocabulary)
    : choice_(choice),
      weights_(static_cast<std::size_t>(vocabulary)),
      bucket_of_(static_cast<std::size_t>(vocabulary)) {}

float TokenChooser::logit_of(std::span<const float> logits, std::int32_t token) {
  const float x = logits[static_cast<std::size_t>(token)];
  return std::isnan(x) ? -INFINITY : x;  // NaN from a diverged model must not break the order
}

std::int32_t TokenChooser::likeliest(std::span<const float> logits) {
  const float top = fold(logits, -INFINITY, [](float x, float y) { return x > y ? x : y; });
  if (std::isinf(top) && top < 0) return 0;
  return static_cast<std::int32_t>(std::ranges::find(logits, top) - logits.begin());
}

// The buckets cover the range of the logits, at most down to weights of e^-32, below which tokens
// are hardly ever drawn; the last bucket holds the rest.
void TokenChooser::weigh(std::span<const float> logits, float top) {
  constexpr float kFarthest = 32;
  buckets_.fill({});
  const auto scale = static_cast<float>(1 / choice_.temperature);
  const float lowest = fold(logits, top, [](float x, float y) { return x < y ? x : y; });
  const float per_unit =
      static_cast<float>(kBuckets - 1) / std::clamp((top - lowest) * scale, 0x1p-60f, kFarthest);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const float below = (top - logits[i]) * scale;  // a NaN goes to the last bucket, with weight 0
    const float at = below * per_unit;
    const std::size_t bucket =
        at < static_cast<float>(kBuckets - 1) ? static_cast<std::size_t>(at) : kBuckets - 1;
    weights_[i] = std::isnan(below) ? 0.0f : std::exp(-below);
    bucket_of_[i] = static_cast<std::uint16_t>(bucket);
    buckets_[bucket].weight += weights_[i];
    ++buckets_[bucket].count;
  }
}

// Ties are ordered by id, so the order is the same everywhere.
std::vector<std::int32_t> TokenChooser::in_order(std::size_t bucket,
                                                 std::span<const float> logits) const {
  std::vector<std::int32_t> tokens;
  tokens.reserve(buckets_[bucket].count);
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (bucket_of_[i] == bucket) tokens.push_back(static_cast<std::int32_t>(i));
  std::ranges::stable_sort(tokens, [&](std::int32_t a, std::int32_t b) {
    return logit_of(logits, a) > logit_of(logits, b);
  });
  return tokens;
}

TokenChooser::Prefix TokenChooser::prefix(std::span<const float> logits,
                                          const std::function<bool(const Prefix&)>& ends) const {
  Prefix before;
  for (std::size_t bucket = 0; bucket < kBuckets; ++bucket) {
    const Bucket& here = buckets_[bucket];
    if (here.count == 0) continue;
    const Prefix behind{before.count + here.count, before.weight + here.weight, before.last};
    if (!ends(behind)) {
      before = behind;
      continue;
    }
    for (const std::int32_t token : in_order(bucket, logits)) {
      ++before.count;
      before.weight += static_cast<double>(weights_[static_cast<std::size_t>(token)]);
      before.last = token;
      if (ends(before)) break;
    }
    return before;
  }
  return before;
}

std::int32_t TokenChooser::choose(std::span<const float> logits, std::int64_t index) {
  CHOIR_CHECK(logits.size() == weights_.size(), "{} logits for {} tokens", logits.size(),
              weights_.size());
  const std::int32_t best = likeliest(logits);
  const float top = logit_of(logits, best);
  if (choice_.temperature <= 0 || std::isinf(top)) return best;
  weigh(logits, top);
  const auto most =
      choice_.top_k > 0 ? static_cast<std::size_t>(choice_.top_k) : std::size_t{SIZE_MAX};
  Prefix kept = prefix(logits, [&](const Prefix& p) { return p.count >= most; });
  if (choice_.top_p < 1) {
    const double enough = choice_.top_p * kept.weight;
    kept = prefix(logits, [&](const Prefix& p) { return p.count >= most || p.weight >= enough; });
  }
  const PhiloxBlock word =
      philox_at(philox_key(choice_.seed, "generate"), static_cast<std::uint64_t>(index));
  const double drawn = uniform01(word[0]) * kept.weight;
  return prefix(logits, [&](const Prefix& p) { return p.count >= kept.count || p.weight > drawn; })
      .last;
}

}  // namespace choir
