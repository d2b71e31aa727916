#include "choir/optim/gradient_norm.hpp"

#include <algorithm>
#include <cmath>

#include "choir/ops/reduce.hpp"

namespace choir {
namespace {

std::int64_t chunks_of(const Parameter& p) {
  return (p.count() + ops::kNormChunk - 1) / ops::kNormChunk;
}

}  // namespace

GradientNorm::GradientNorm(const ParameterSet& parameters, Device& device, int places)
    : parameters_(&parameters), device_(&device) {
  for (const Parameter& p : parameters.parameters()) chunks_ += chunks_of(p);
  const std::int64_t sums = places * chunks_;
  memory_ = Buffer(device, static_cast<std::size_t>(sums + 1) * sizeof(double));
  device.zero(memory_.data(), memory_.bytes());
  const TensorView all{memory_.data(), DType::f64, {sums + 1}};
  square_sum_ = all.slice(0, 1);
  partials_ = all.slice(1, sums);
}

void GradientNorm::compute(const Stream& stream, Communicator& data, int place) {
  const TensorView sums = partials(place);
  // Chunk i is read by rank i * ranks / chunks; the others leave a zero there, so the sum over
  // ranks is exact and the tree below sees the same numbers whatever the number of ranks.
  const std::int64_t total = sums.count();
  const std::int64_t first = total * data.rank() / data.size();
  const std::int64_t last = total * (data.rank() + 1) / data.size();
  if (data.size() > 1) ops::zero(stream, sums);
  std::int64_t at = 0;
  for (const Parameter& p : parameters_->parameters()) {
    const std::int64_t begin = std::max(first, at), end = std::min(last, at + chunks_of(p));
    if (begin < end) {
      const std::int64_t from = (begin - at) * ops::kNormChunk;
      const std::int64_t to = std::min(p.count(), (end - at) * ops::kNormChunk);
      const TensorView flat = p.gradient.reshaped({p.count()});
      ops::sum_of_squares(stream, flat.slice(from, to - from), sums.slice(begin, end - begin));
    }
    at += chunks_of(p);
  }
  if (data.size() > 1)
    data.all_reduce(sums.data, static_cast<std::size_t>(total), DType::f64, ReduceOp::sum);
  ops::tree_sum(stream, sums, square_sum_);
}

std::vector<std::string> GradientNorm::not_finite(int place) const {
  std::vector<double> sums(static_cast<std::size_t>(chunks_));
  device_->copy_to_host(sums.data(), partials(place).data, sums.size() * sizeof(double));
  std::vector<std::string> names;
  auto sum = sums.begin();
  for (const Parameter& p : parameters_->parameters()) {
    const auto end = sum + chunks_of(p);
    if (!std::all_of(sum, end, [](double x) { return std::isfinite(x); })) names.push_back(p.name);
    sum = end;
  }
  return names;
}

}  // namespace choir
