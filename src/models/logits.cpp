#include "choir/models/logits.hpp"

#include "choir/ops/copy_rows.hpp"
#include "kernels/cross_entropy/cross_entropy.hpp"
#include "kernels/sums/sums.hpp"

namespace choir {
namespace {

/// Runs the three kernels of the operation and the reductions between them.
void parallel_cross_entropy(Pass& pass, ops::ParallelCrossEntropy call) {
  const std::int64_t rows = pass.sequence().rows();
  Communicator& ranks = *pass.tensor().communicator;
  const Tensor local = pass.allocate_statistic({rows}, "maxima");
  const Tensor maxima = pass.allocate_statistic({rows}, "maxima");
  const Tensor sums = pass.allocate_statistic({rows, call.sums_per_row()}, "sums of exponentials");
  call.local_maxima = local;
  call.maxima = maxima;
  call.sums = sums;
  ops::cross_entropy_maxima(pass.stream(), call);
  ranks.all_reduce(maxima.data, static_cast<std::size_t>(rows), maxima.dtype, ReduceOp::max);
  ops::cross_entropy_sums(pass.stream(), call);
  ranks.all_reduce(sums.data, static_cast<std::size_t>(sums.count()), sums.dtype, ReduceOp::sum,
                   pass.tensor().order);
  ops::cross_entropy_finish(pass.stream(), call);
}

}  // namespace

Tensor token_losses(Pass& pass, const Tensor& logits, const ModelBatch& batch,
                    const TokenTargets& of) {
  const TensorAxis& axis = pass.tensor();
  Tensor losses = pass.allocate_statistic({pass.sequence().rows()}, "losses");
  const ops::CrossEntropy call{.logits = logits,
                               .targets = of.targets,
                               .losses = losses,
                               .vocabulary = of.vocabulary,
                               .scale = batch.scale,
                               .device_scale = batch.device_scale(),
                               .write_gradient = pass.training(),
                               .label_smoothing = of.label_smoothing,
                               .weights = of.weights};
  if (axis.size() == 1)
    ops::cross_entropy(pass.stream(), call);
  else
    parallel_cross_entropy(pass, {.logits = call.logits,
                                  .targets = call.targets,
                                  .losses = call.losses,
                                  .vocabulary = call.vocabulary,
                                  .first_column = axis.rank() * logits.shape.back(),
                                  .scale = call.scale,
                                  .device_scale = call.device_scale,
                                  .write_gradient = call.write_gradient,
                                  .label_smoothing = call.label_smoothing,
                                  .weights = call.weights});
  pass.save(logits);  // they hold their gradient now
  return losses;
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
