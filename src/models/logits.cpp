#include "choir/models/logits.hpp"

#include "choir/ops/copy_rows.hpp"
#include "kernels/sums/sums.hpp"
#include "src/models/token_losses.hpp"

namespace choir {

TokenLosses::TokenLosses(Pass& pass, const ModelBatch& batch, const TokenTargets& of,
                         std::int64_t most_rows)
    : pass_(pass), batch_(batch), of_(of) {
  const std::int64_t rows = pass.sequence().rows();
  losses_ = pass.allocate_statistic(of.z_loss > 0 ? Shape{2, rows} : Shape{rows}, "losses");
  if (pass.tensor().size() == 1) return;
  const ops::ParallelCrossEntropy sizes{.label_smoothing = of.label_smoothing};
  local_maxima_ = pass.allocate_statistic({most_rows}, "maxima");
  maxima_ = pass.allocate_statistic({most_rows}, "maxima");
  sums_ = pass.allocate_statistic({most_rows, sizes.sums_per_row()}, "sums of exponentials");
}

void TokenLosses::compute(const TensorView& logits, std::int64_t first, bool write_gradient) {
  const TensorAxis& axis = pass_.tensor();
  const TokenTargets& of = of_;
  const std::int64_t rows = pass_.sequence().rows(), n = logits.shape.rows();
  const TensorView losses = losses_.reshaped({losses_.count()});
  const ops::CrossEntropy call{
      .logits = logits,
      .targets = of.targets.reshaped({rows}).slice(first, n),
      .losses = losses.slice(first, n),
      .vocabulary = of.vocabulary,
      .scale = batch_.scale,
      .device_scale = batch_.device_scale(),
      .write_gradient = write_gradient,
      .label_smoothing = of.label_smoothing,
      .weights = of.weights.empty() ? TensorView{} : of.weights.reshaped({rows}).slice(first, n),
      .z_loss = of.z_loss,
      .z_losses = of.z_loss > 0 ? losses.slice(rows + first, n) : TensorView{},
      .map = {of.logit_scale, of.logit_softcap}};
  if (axis.size() == 1)
    ops::cross_entropy(pass_.stream(), call);
  else
    compute_parallel({.logits = call.logits,
                      .targets = call.targets,
                      .losses = call.losses,
                      .vocabulary = call.vocabulary,
                      .first_column = axis.rank() * logits.shape.back(),
                      .scale = call.scale,
                      .device_scale = call.device_scale,
                      .write_gradient = call.write_gradient,
                      .label_smoothing = call.label_smoothing,
                      .weights = call.weights,
                      .z_loss = call.z_loss,
                      .z_losses = call.z_losses,
                      .map = call.map});
}

/// Runs the three kernels of the operation and the reductions between them.
void TokenLosses::compute_parallel(ops::ParallelCrossEntropy call) {
  const std::int64_t rows = call.logits.shape.rows();
  const TensorAxis& axis = pass_.tensor();
  Communicator& ranks = *axis.communicator;
  const TensorView maxima = maxima_.slice(0, rows), sums = sums_.slice(0, rows);
  call.local_maxima = local_maxima_.slice(0, rows);
  call.maxima = maxima;
  call.sums = sums;
  ops::cross_entropy_maxima(pass_.stream(), call);
  ranks.all_reduce(maxima.data, static_cast<std::size_t>(rows), maxima.dtype, ReduceOp::max);
  ops::cross_entropy_sums(pass_.stream(), call);
  ranks.all_reduce(sums.data, static_cast<std::size_t>(sums.count()), sums.dtype, ReduceOp::sum,
                   axis.order);
  ops::cross_entropy_finish(pass_.stream(), call);
}

void TokenLosses::add_to_loss() const {
  const TokenTargets& of = of_;
  const std::int64_t rows = pass_.sequence().rows();
  const TensorView losses = losses_.reshaped({losses_.count()});
  const LossTargets used = {.unmasked = of.targets};
  pass_.add_loss(0, losses.slice(0, rows), used);
  if (of.z_loss > 0) pass_.add_loss(of.z_term, losses.slice(rows, rows), used);
}

Tensor token_losses(Pass& pass, const Tensor& logits, const ModelBatch& batch,
                    const TokenTargets& of) {
  TokenLosses losses(pass, batch, of, pass.sequence().rows());
  losses.compute(logits, 0, pass.training());
  losses.add_to_loss();
  pass.save(logits);  // they hold their gradient now
  return losses.losses();
}

Tensor gather_columns(Pass& pass, const Tensor& part) {
  const TensorAxis& axis = pass.tensor();
  if (axis.size() == 1) return part;
  const std::int64_t rows = part.shape.rows(), n = part.shape.back();
  const Tensor parts = pass.allocate({axis.size() * rows, n}, "logits of all ranks");
  ops::copy(pass.stream(), part, parts.slice(axis.rank() * rows, rows));
  axis.communicator->all_gather(parts.data, static_cast<std::size_t>(part.count()), part.dtype);
  if (rows == 1) return parts.reshaped({1, axis.size() * n});
  Tensor whole = pass.allocate({rows, axis.size() * n}, "logits");
  for (std::int64_t r = 0; r < axis.size(); ++r)
    ops::copy_rows(pass.stream(), part.dtype, rows, n, {parts.slice(r * rows, rows).data, n},
                   {static_cast<std::byte*>(whole.data) +
                        static_cast<std::size_t>(r * n) * size_of(part.dtype),
                    axis.size() * n});
  return whole;
}

Tensor without_padding(Pass& pass, const Tensor& logits, std::int64_t symbols) {
  const std::int64_t rows = logits.shape.rows(), columns = logits.shape.back();
  if (columns == symbols) return logits;
  Tensor tight = pass.allocate({rows, symbols}, "logits");
  ops::copy_rows(pass.stream(), logits.dtype, rows, symbols, {logits.data, columns},
                 {tight.data, symbols});
  return tight;
}

Tensor last_positions(Pass& pass, const Tensor& rows) {
  const Sequence& sequence = pass.sequence();
  const std::int64_t width = rows.shape.back();
  Tensor last = pass.allocate({sequence.batch, width}, "last position");
  auto* data = static_cast<std::byte*>(rows.data);
  const std::int64_t first = (sequence.tokens - 1) * width;
  ops::copy_rows(
      pass.stream(), rows.dtype, sequence.batch, width,
      {data + static_cast<std::size_t>(first) * size_of(rows.dtype), sequence.tokens * width},
      {last.data, width});
  return last;
}

}  // namespace choir
