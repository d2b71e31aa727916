#include "choir/nn/layers/dropout.hpp"

#include <algorithm>

#include "choir/nn/layers/linear.hpp"
#include "kernels/dropout/dropout.hpp"
#include "kernels/fused_bias/fused_bias.hpp"
#include "kernels/sums/sums.hpp"

namespace choir {
namespace {

/// The number nearest to `x` in a type of elements.
double rounded(double x, DType type) {
  if (type == DType::bf16) return static_cast<float>(bf16(static_cast<float>(x)));
  return type == DType::f16 ? static_cast<float>(f16(static_cast<float>(x))) : x;
}

/// Zeroes the rows past the end of the last sequence.
void zero_padding(Pass& pass, const Tensor& x) {
  const std::int64_t real = std::clamp<std::int64_t>(
      pass.sequence().rows() - pass.first_share_row(), 0, pass.share_rows());
  if (real < pass.share_rows()) ops::zero(pass.stream(), x.slice(real, pass.share_rows() - real));
}

}  // namespace

// A share takes up to three calls: the end of a sequence that begins elsewhere, whole sequences,
// and the beginning of one, because the op counts samples from the first row.
ops::Dropout Dropout::call_from(const Pass& pass, std::int64_t row, const Tensor& in,
                                const Tensor& out) const {
  const Sequence& sequence = pass.sequence();
  const std::int64_t first = pass.first_share_row();
  const std::int64_t last = std::min(first + pass.share_rows(), sequence.rows());
  const Sequence::Run run = sequence.run(row < sequence.run(0).rows ? 0 : 1);
  const std::int64_t tokens = run.tokens, there = row - run.first_row, inside = there % tokens;
  const std::int64_t end = std::min(last, run.first_row + run.rows);
  const std::int64_t whole = (end - row) / tokens * tokens;
  const std::int64_t count =
      inside > 0 || whole == 0 ? std::min(tokens - inside, end - row) : whole;
  const std::int64_t sample = there / tokens;
  return {.in = in.slice(row - first, count),
          .out = out.slice(row - first, count),
          .probability = probability(pass),
          .factor = type_ == FactorType::of_elements ? rounded(factor_, in.dtype) : factor_,
          .key = philox_key(pass.seed(), name_),
          .first_sample = pass.first_sample() + sample,
          .first_sample_on_device = pass.first_sample_on_device(),
          .sample_ids = sequence.sample_ids ? sequence.sample_ids + sample : nullptr,
          .tokens = tokens,
          .first_position = run.first_position + inside};
}

std::optional<ops::Dropout> Dropout::whole_call(const Pass& pass, const Tensor& in,
                                                const Tensor& out) const {
  const bool identity = probability(pass) == 0 && factor_ == 1;
  const bool some = pass.share_rows() > 0 && pass.first_share_row() < pass.sequence().rows();
  if (identity || !some || pass.stream().device().plans_for() != DeviceKind::cuda) return {};
  const ops::Dropout call = call_from(pass, pass.first_share_row(), in, out);
  if (call.in.shape.rows() != in.shape.rows()) return {};
  return call;
}

void Dropout::run(Pass& pass, const Tensor& in, const Tensor& out, const TensorView& d_bias) const {
  const std::int64_t first = pass.first_share_row();
  const std::int64_t last = std::min(first + pass.share_rows(), pass.sequence().rows());
  for (std::int64_t row = first; row < last;) {
    const ops::Dropout call = call_from(pass, row, in, out);
    const std::int64_t count = call.in.shape.rows();
    if (d_bias.empty()) {
      ops::dropout(pass.stream(), call);
    } else {
      const Tensor workspace = pass.scratch(
          ops::bias_gradient_workspace(pass.stream(), count, in.shape.back()), "bias gradient");
      ops::dropout(pass.stream(), call, {.d_bias = d_bias, .workspace = workspace});
    }
    row += count;
  }
}

void Dropout::forward(Pass& pass, Tensor& x) const {
  if (probability(pass) == 0 && factor_ == 1) return;
  run(pass, x, x);
}

Tensor Dropout::backward(Pass& pass, const Tensor& d_y) const {
  if (is_identity()) return d_y;
  Tensor d_x = pass.allocate(d_y.shape, "dropout gradient");
  run(pass, d_y, d_x);
  zero_padding(pass, d_x);
  return d_x;
}

Tensor Dropout::backward_through(Pass& pass, const Tensor& d_y, Linear& below) const {
  const TensorView d_bias = is_identity() ? TensorView{} : below.early_bias(pass);
  if (d_bias.empty()) return below.backward(pass, backward(pass, d_y));
  const Tensor d_x = pass.allocate(d_y.shape, "dropout gradient");
  run(pass, d_y, d_x, d_bias);
  zero_padding(pass, d_x);
  return below.backward(pass, d_x, true);
}

Tensor Dropout::backward_through(Pass& pass, const BranchGradient& d_y, Linear& below) const {
  if (!d_y.dropped) return backward_through(pass, d_y.d_y, below);
  return below.backward(pass, d_y.d_y, d_y.bias_done);
}

Tensor Dropout::backward(Pass& pass, const BranchGradient& d_y) const {
  CHOIR_CHECK(!d_y.bias_done, "the bias of a layer that adds it itself");
  return d_y.dropped ? d_y.d_y : backward(pass, d_y.d_y);
}

}  // namespace choir
