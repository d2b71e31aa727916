#include "choir/optim/gradient_norm.hpp"

#include <algorithm>

#include "choir/ops/clip.hpp"
#include "choir/ops/reduce.hpp"

namespace choir {
namespace {

std::int64_t chunks_of(const Parameter& p) {
  return (p.count() + ops::kNormChunk - 1) / ops::kNormChunk;
}

}  // namespace

GradientNorm::GradientNorm(const ParameterSet& parameters, Device& device)
    : parameters_(&parameters) {
  std::int64_t chunks = 0;
  for (const Parameter& p : parameters.parameters()) chunks += chunks_of(p);
  memory_ = Buffer(device, static_cast<std::size_t>(chunks + 3) * sizeof(double));
  const TensorView all{memory_.data(), DType::f64, {chunks + 3}};
  scalars_ = all.slice(0, 3);
  partials_ = all.slice(3, chunks);
}

void GradientNorm::compute(const Stream& stream, Communicator& data, double max_norm) {
  // Chunk i is read by rank i * ranks / chunks; the others leave a zero there, so the sum over
  // ranks is exact and the tree below sees the same numbers whatever the number of ranks.
  const std::int64_t total = partials_.count();
  const std::int64_t first = total * data.rank() / data.size();
  const std::int64_t last = total * (data.rank() + 1) / data.size();
  if (data.size() > 1) ops::zero(stream, partials_);
  std::int64_t at = 0;
  for (const Parameter& p : parameters_->parameters()) {
    const std::int64_t begin = std::max(first, at), end = std::min(last, at + chunks_of(p));
    if (begin < end) {
      const std::int64_t from = (begin - at) * ops::kNormChunk;
      const std::int64_t to = std::min(p.count(), (end - at) * ops::kNormChunk);
      const TensorView flat = p.gradient.reshaped({p.count()});
      ops::sum_of_squares(stream, flat.slice(from, to - from), partials_.slice(begin, end - begin));
    }
    at += chunks_of(p);
  }
  if (data.size() > 1)
    data.all_reduce(partials_.data, static_cast<std::size_t>(total), DType::f64, ReduceOp::sum);
  ops::tree_sum(stream, partials_, scalars_.slice(0, 1));
  ops::clip_factor(stream, scalars_.slice(0, 1), max_norm, norm(), clip_factor());
}

}  // namespace choir
