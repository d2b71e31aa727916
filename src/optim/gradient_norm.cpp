#include "choir/optim/gradient_norm.hpp"

#include <algorithm>
#include <cmath>

#include "choir/ops/reduce.hpp"

namespace choir {
namespace {

/// Cut chunks exchanged at a time: 4 MiB in f32.
constexpr std::int64_t kCutsAtATime = 64;

std::int64_t chunks_of(const Parameter& p) {
  return (p.count() + ops::kNormChunk - 1) / ops::kNormChunk;
}

Range overlap(const Range& a, const Range& b) {
  const std::int64_t first = std::max(a.first, b.first), end = std::min(a.end(), b.end());
  return {first, std::max<std::int64_t>(0, end - first)};
}

}  // namespace

GradientNorm::GradientNorm(const ParameterStorage& storage, Device& device, int places, bool exact)
    : storage_(&storage), device_(&device), exact_(exact && storage.sharding().slices() > 1) {
  for (const Parameter& p : storage.parameters().parameters()) chunks_ += chunks_of(p);
  const std::int64_t sums = places * chunks_;
  memory_ = Buffer(device, static_cast<std::size_t>(sums + 1) * sizeof(double));
  device.zero(memory_.data(), memory_.bytes());
  const TensorView all{memory_.data(), DType::f64, {sums + 1}};
  square_sum_ = all.slice(0, 1);
  partials_ = all.slice(1, sums);
  if (exact_) find_cuts();
  if (cuts_.empty()) return;
  const std::int64_t room =
      std::min(kCutsAtATime, static_cast<std::int64_t>(cuts_.size())) * ops::kNormChunk;
  const DType type = storage.precision().gradient;
  border_memory_ = Buffer(device, static_cast<std::size_t>(room) * size_of(type));
  border_ = {border_memory_.data(), type, {room}};
}

void GradientNorm::find_cuts() {
  std::int64_t at = 0;
  for (const Parameter& p : storage_->parameters().parameters()) {
    const std::int64_t slice = storage_->sharding().slice(storage_->bucket_of(p)).count;
    for (std::int64_t c = 0; c < chunks_of(p); ++c, ++at) {
      const Range chunk = overlap({c * ops::kNormChunk, ops::kNormChunk}, {0, p.count()});
      const std::int64_t first = p.offset + chunk.first, last = p.offset + chunk.end() - 1;
      if (first / slice != last / slice) cuts_.push_back({&p, chunk, at});
    }
  }
}

void GradientNorm::compute(const Stream& stream, int place) {
  const TensorView sums = partials(place);
  Communicator& data = storage_->sharding().data();
  // What a rank does not sum it leaves zero, so that the sum over ranks is exact (but for the
  // pieces of a cut chunk) and the tree below sees the same numbers whatever the number of ranks.
  if (data.size() > 1) ops::zero(stream, sums);
  if (storage_->sharding().slices() == 1) {
    sum_shares(stream, sums);
  } else {
    if (storage_->sharding().replica() == 0) sum_slices(stream, sums);
    if (exact_) sum_cuts(stream, sums);
  }
  if (data.size() > 1)
    data.all_reduce(sums.data, static_cast<std::size_t>(sums.count()), DType::f64, ReduceOp::sum);
  ops::tree_sum(stream, sums, square_sum_);
}

// Every rank has the whole gradient: chunk i is read by rank i * ranks / chunks.
void GradientNorm::sum_shares(const Stream& stream, const TensorView& sums) const {
  const Communicator& data = storage_->sharding().data();
  const std::int64_t total = sums.count();
  const std::int64_t first = total * data.rank() / data.size();
  const std::int64_t last = total * (data.rank() + 1) / data.size();
  std::int64_t at = 0;
  for (const Parameter& p : storage_->parameters().parameters()) {
    const std::int64_t begin = std::max(first, at), end = std::min(last, at + chunks_of(p));
    if (begin < end) {
      const std::int64_t from = (begin - at) * ops::kNormChunk;
      const std::int64_t to = std::min(p.count(), (end - at) * ops::kNormChunk);
      const TensorView flat = storage_->owned_part(storage_->gradients(storage_->bucket_of(p)), p);
      ops::sum_of_squares(stream, flat.slice(from, to - from), sums.slice(begin, end - begin));
    }
    at += chunks_of(p);
  }
}

// The piece before the first border of chunks, and what follows it.
void GradientNorm::sum_slices(const Stream& stream, const TensorView& sums) const {
  std::int64_t at = 0;
  for (const Parameter& p : storage_->parameters().parameters()) {
    const Range mine = storage_->owned(p);
    const TensorView own = storage_->owned_part(storage_->gradients(storage_->bucket_of(p)), p);
    const auto sum = [&](std::int64_t from, std::int64_t to) {
      if (from >= to) return;
      const std::int64_t chunk = from / ops::kNormChunk;
      const std::int64_t end = (to + ops::kNormChunk - 1) / ops::kNormChunk;
      ops::sum_of_squares(stream, own.slice(from - mine.first, to - from),
                          sums.slice(at + chunk, end - chunk));
    };
    const std::int64_t border =
        (mine.first + ops::kNormChunk - 1) / ops::kNormChunk * ops::kNormChunk;
    // Pieces that sum_cuts() will see whole are left to it.
    const bool cut_at_end = mine.end() < p.count();
    const std::int64_t whole =
        exact_ && cut_at_end ? mine.end() / ops::kNormChunk * ops::kNormChunk : mine.end();
    if (!exact_) sum(mine.first, std::min(border, mine.end()));
    sum(border, whole);
    at += chunks_of(p);
  }
}

// Every rank puts its pieces into a row of chunks that are zero elsewhere; the sum is the chunks.
// The first rank of all adds their squares.
void GradientNorm::sum_cuts(const Stream& stream, const TensorView& sums) const {
  Communicator& group = storage_->sharding().group();
  const std::size_t room = static_cast<std::size_t>(border_.count() / ops::kNormChunk);
  for (std::size_t next = 0; next < cuts_.size(); next += room) {
    const std::size_t count = std::min(room, cuts_.size() - next);
    const TensorView row = border_.slice(0, static_cast<std::int64_t>(count) * ops::kNormChunk);
    ops::zero(stream, row);
    for (std::size_t i = 0; i < count; ++i) {
      const Cut& cut = cuts_[next + i];
      const Parameter& p = *cut.parameter;
      const Range mine = storage_->owned(p), piece = overlap(mine, cut.elements);
      if (piece.count == 0) continue;
      const TensorView own = storage_->owned_part(storage_->gradients(storage_->bucket_of(p)), p);
      ops::copy(stream, own.slice(piece.first - mine.first, piece.count),
                row.slice(static_cast<std::int64_t>(i) * ops::kNormChunk + piece.first -
                              cut.elements.first,
                          piece.count));
    }
    group.all_reduce(row.data, static_cast<std::size_t>(row.count()), row.dtype, ReduceOp::sum);
    if (storage_->sharding().data().rank() != 0) continue;
    for (std::size_t i = 0; i < count; ++i)
      ops::sum_of_squares(
          stream,
          row.slice(static_cast<std::int64_t>(i) * ops::kNormChunk, cuts_[next + i].elements.count),
          sums.slice(cuts_[next + i].chunk, 1));
  }
}

std::vector<std::string> GradientNorm::not_finite(int place) const {
  std::vector<double> sums(static_cast<std::size_t>(chunks_));
  device_->copy_to_host(sums.data(), partials(place).data, sums.size() * sizeof(double));
  std::vector<std::string> names;
  auto sum = sums.begin();
  for (const Parameter& p : storage_->parameters().parameters()) {
    const auto end = sum + chunks_of(p);
    if (!std::all_of(sum, end, [](double x) { return std::isfinite(x); })) names.push_back(p.name);
    sum = end;
  }
  return names;
}

}  // namespace choir
