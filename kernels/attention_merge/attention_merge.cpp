// Merging of attention over sets of keys: checks and dispatch, the CPU twin, and the fp64
// reference.

#include "kernels/attention_merge/attention_merge.hpp"

#include <cmath>
#include <limits>

#include "kernels/cpu/parallel.hpp"
#include "kernels/cpu/ref_element.hpp"
#include "kernels/cpu/simd.hpp"
#include "kernels/dispatch.hpp"

namespace choir::ops {
namespace {

void check(const AttentionMerge& a) {
  const std::int64_t rows = a.part.shape.rows(), width = a.part.shape.back();
  const DType sums = sum_dtype_of(a.part.dtype);
  CHOIR_CHECK(a.heads >= 1 && width % a.heads == 0 && a.queries >= 1 && rows % a.queries == 0,
              "{} rows of {} with {} heads, {} queries", rows, width, a.heads, a.queries);
  check_tensor(a.part, a.part.dtype, rows * width, "attention over a set of keys");
  check_tensor(a.out, sums, rows * width, "merged attention");
  check_tensor(a.part_log_sum_exp, sums, rows * a.heads, "log_sum_exp of a set of keys");
  check_tensor(a.log_sum_exp, sums, rows * a.heads, "merged log_sum_exp");
}

}  // namespace

void attention_merge(const Stream& stream, const AttentionMerge& args) {
  check(args);
  stream.count(args.first ? 0 : 3.0 * static_cast<double>(args.part.count()),
               as_bytes(args.part) + (args.first ? 1 : 2) * as_bytes(args.out));
  if (on_cuda(stream)) return cuda::attention_merge(stream, args);
  if (!computes(stream)) return;
  with_element(args.part.dtype, [&](auto t) { cpu::attention_merge<decltype(t)>(args); });
}

}  // namespace choir::ops

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

namespace choir::ref {

void attention_merge(const ops::AttentionMerge& a) {
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  const std::int64_t rows = a.part.shape.rows(), head = a.part.shape.back() / a.heads;
  const auto at = [](const TensorView& x, std::int64_t i) { return load(x.data, x.dtype, i); };
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t h = 0; h < a.heads; ++h) {
      const std::int64_t of_lse = (r / a.queries * a.heads + h) * a.queries + r % a.queries;
      const double before = a.first ? kNothing : at(a.log_sum_exp, of_lse);
      const double more = at(a.part_log_sum_exp, of_lse);
      const double sum = std::exp(before) + std::exp(more);
      store(a.log_sum_exp.data, a.log_sum_exp.dtype, of_lse, std::log(sum));
      for (std::int64_t d = 0; d < head; ++d) {
        const std::int64_t i = (r * a.heads + h) * head + d;
        const double old = std::exp(before) > 0 ? std::exp(before) / sum * at(a.out, i) : 0;
        const double added = std::exp(more) > 0 ? std::exp(more) / sum * at(a.part, i) : 0;
        store(a.out.data, a.out.dtype, i, old + added);
      }
    }
}

}  // namespace choir::ref
