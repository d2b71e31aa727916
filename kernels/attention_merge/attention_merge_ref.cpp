#include <cmath>
#include <limits>

#include "kernels/attention_merge/attention_merge.hpp"
#include "kernels/cpu/ref_element.hpp"

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
