#include "choir/optim/gradient_norm.hpp"

#include <algorithm>
#include <cmath>

#include "choir/nn/shard.hpp"
#include "choir/ops/reduce.hpp"

namespace choir {
namespace {

std::vector<LocalRange> counted_ranges(const Parameter& p, int rank, NegativeControl control) {
  const bool whole = p.shard.split_dim < 0;
  if (whole && control == NegativeControl::replicated_twice) return {{0, p.count()}};
  return owned_ranges(p, rank);
}

}  // namespace

GradientNorm::GradientNorm(const ParameterSet& parameters, Device& device, int places,
                           NegativeControl control)
    : device_(&device) {
  for (const Parameter& p : parameters.parameters())
    for (int rank = 0; rank < p.split.ranks; ++rank)
      for (const LocalRange& range : counted_ranges(p, rank, control)) {
        const std::int64_t chunks = (range.count + ops::kNormChunk - 1) / ops::kNormChunk;
        parts_.push_back({&p, rank, range.first, range.count, chunks});
        chunks_ += chunks;
      }
  const std::int64_t sums = places * chunks_;
  memory_ = Buffer(device, static_cast<std::size_t>(sums + 1) * sizeof(double));
  device.zero(memory_.data(), memory_.bytes());
  const TensorView all{memory_.data(), DType::f64, {sums + 1}};
  square_sum_ = all.slice(0, 1);
  partials_ = all.slice(1, sums);
}

void GradientNorm::compute(const Stream& stream, Communicator& data, Communicator& tensor,
                           int place) {
  const TensorView sums = partials(place);
  // Chunk i is read by data rank i * ranks / chunks; the others leave a zero there, so the sum over
  // ranks is exact and the tree below sees the same numbers whatever the number of ranks.
  const std::int64_t total = sums.count();
  const std::int64_t first = total * data.rank() / data.size();
  const std::int64_t last = total * (data.rank() + 1) / data.size();
  if (data.size() * tensor.size() > 1) ops::zero(stream, sums);
  std::int64_t at = 0;
  for (const Part& part : parts_) {
    const std::int64_t begin = std::max(first, at), end = std::min(last, at + part.chunks);
    if (begin < end && part.rank == tensor.rank()) {
      const std::int64_t from = (begin - at) * ops::kNormChunk;
      const std::int64_t to = std::min(part.count, (end - at) * ops::kNormChunk);
      const TensorView& gradient = part.parameter->gradient;
      const TensorView flat = gradient.reshaped({gradient.count()});
      ops::sum_of_squares(stream, flat.slice(part.first + from, to - from),
                          sums.slice(begin, end - begin));
    }
    at += part.chunks;
  }
  for (Communicator* ranks : {&data, &tensor})
    if (ranks->size() > 1)
      ranks->all_reduce(sums.data, static_cast<std::size_t>(total), DType::f64, ReduceOp::sum);
  ops::tree_sum(stream, sums, square_sum_);
}

std::vector<std::string> GradientNorm::not_finite(int place) const {
  std::vector<double> sums(static_cast<std::size_t>(chunks_));
  device_->copy_to_host(sums.data(), partials(place).data, sums.size() * sizeof(double));
  std::vector<std::string> names;
  auto sum = sums.begin();
  for (const Part& part : parts_) {
    const auto end = sum + part.chunks;
    const std::string& name = part.parameter->name;
    const bool named = !names.empty() && names.back() == name;
    if (!named && !std::all_of(sum, end, [](double x) { return std::isfinite(x); }))
      names.push_back(name);
    sum = end;
  }
  return names;
}

}  // namespace choir
