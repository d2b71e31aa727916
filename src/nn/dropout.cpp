#include "choir/nn/dropout.hpp"

#include <algorithm>

#include "choir/ops/dropout.hpp"
#include "choir/ops/reduce.hpp"

namespace choir {
namespace {

/// Rows of `in` that lie together in whole sequences, or in one: the op counts samples from the
/// first of them.
void run(Pass& pass, const PhiloxKey& key, double probability, const TensorView& in,
         const TensorView& out, std::int64_t first_row) {
  const std::int64_t tokens = pass.sequence().tokens;
  ops::dropout(pass.stream(),
               {.in = in,
                .out = out,
                .probability = probability,
                .key = key,
                .first_sample = pass.first_sample() + first_row / tokens,
                .first_sample_on_device = pass.first_sample_on_device(),
                .tokens = tokens,
                .first_position = pass.sequence().first_position + first_row % tokens});
}

void run(Pass& pass, const PhiloxKey& key, double probability, const Tensor& in,
         const Tensor& out) {
  const std::int64_t tokens = pass.sequence().tokens, first = pass.first_share_row();
  const std::int64_t last = std::min(first + pass.share_rows(), pass.sequence().rows());
  for (std::int64_t row = first; row < last;) {
    // The end of a sequence that begins elsewhere, whole sequences, the beginning of one.
    const std::int64_t inside = row % tokens;
    const std::int64_t whole = (last - row) / tokens * tokens;
    const std::int64_t count =
        inside > 0 || whole == 0 ? std::min(tokens - inside, last - row) : whole;
    run(pass, key, probability, in.slice(row - first, count), out.slice(row - first, count), row);
    row += count;
  }
}

/// Rows past the end of the last sequence.
void zero_padding(Pass& pass, const Tensor& x) {
  const std::int64_t real = std::clamp<std::int64_t>(
      pass.sequence().rows() - pass.first_share_row(), 0, pass.share_rows());
  if (real < pass.share_rows()) ops::zero(pass.stream(), x.slice(real, pass.share_rows() - real));
}

}  // namespace

void Dropout::forward(Pass& pass, Tensor& x) const {
  if (probability_ == 0 || !pass.training()) return;
  // What is not saved is drawn again.
  const bool other = pass.breaks(NegativeControl::mask_redrawn) && !pass.saves();
  run(pass, philox_key(pass.seed() + (other ? 1 : 0), name_), probability_, x, x);
}

Tensor Dropout::backward(Pass& pass, const Tensor& d_y) const {
  if (probability_ == 0) return d_y;
  Tensor d_x = pass.allocate(d_y.shape, "dropout gradient");
  run(pass, philox_key(pass.seed(), name_), probability_, d_y, d_x);
  zero_padding(pass, d_x);
  return d_x;
}

}  // namespace choir
