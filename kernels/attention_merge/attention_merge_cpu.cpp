#include <cmath>
#include <limits>

#include "kernels/attention_merge/attention_merge.hpp"
#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/simd.hpp"

namespace choir::cpu {

template <class T>
void attention_merge(const ops::AttentionMerge& a) {
  using S = Sum<T>;
  constexpr S kNothing = -std::numeric_limits<S>::infinity();
  const std::int64_t width = a.part.shape.back(), head = width / a.heads;
  const auto* const part = static_cast<const T*>(a.part.data);
  const auto* const part_lse = static_cast<const S*>(a.part_log_sum_exp.data);
  auto* const out = static_cast<S*>(a.out.data);
  auto* const lse = static_cast<S*>(a.log_sum_exp.data);
  parallel_ranges(a.part.shape.rows(), width, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t r = first; r < last; ++r)
      for (std::int64_t h = 0; h < a.heads; ++h) {
        const std::int64_t of_lse = (r / a.queries * a.heads + h) * a.queries + r % a.queries;
        const S before = a.first ? kNothing : lse[of_lse], more = part_lse[of_lse];
        const S most = std::max(before, more);
        const S old = before == kNothing ? S(0) : std::exp(before - most);
        const S added = more == kNothing ? S(0) : std::exp(more - most);
        const S sum = old + added, inverse = sum > 0 ? 1 / sum : S(0);
        lse[of_lse] = sum > 0 ? most + std::log(sum) : kNothing;
        const T* const from = part + r * width + h * head;
        S* const to = out + r * width + h * head;
        for (std::int64_t d = 0; d < head; ++d) {
          const S kept = old > 0 ? old * inverse * to[d] : S(0);
          to[d] = kept + added * inverse * static_cast<S>(from[d]);
        }
      }
  });
}

template void attention_merge<double>(const ops::AttentionMerge&);
template void attention_merge<float>(const ops::AttentionMerge&);
template void attention_merge<bf16>(const ops::AttentionMerge&);
template void attention_merge<f16>(const ops::AttentionMerge&);

}  // namespace choir::cpu
