#pragma once
// Division of attention's backward pass into tasks, the same for every implementation.
#include <algorithm>
#include <cstdint>

#include "choir/ops/attention.hpp"

namespace choir {

/// Key blocks index, index + count, ... of one (sample, K/V head). They are strided because with a
/// causal mask more queries see the early keys.
struct KeyShare {
  std::int64_t index = 0, count = 1;
};

/// Shares per K/V head: 1 if the heads alone keep the threads busy. Each further share costs a
/// partial d_q.
inline std::int64_t key_shares(const ops::AttentionProblem& p, std::int64_t key_blocks,
                               int threads) {
  const std::int64_t heads = p.batch * p.kv_heads;
  if (heads >= 2 * threads || heads % threads == 0) return 1;
  return std::clamp<std::int64_t>((2 * threads + heads - 1) / heads, 1, key_blocks);
}

/// parts[0] += parts[1] + ..., in order.
template <class T>
void add_shares(T* parts, std::int64_t shares, std::int64_t count) {
  for (std::int64_t s = 1; s < shares; ++s)
    for (std::int64_t i = 0; i < count; ++i) parts[i] += parts[s * count + i];
}

}  // namespace choir
