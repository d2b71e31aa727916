#include "src/optim/trained_norm.hpp"

#include <algorithm>
#include <cmath>

#include "choir/nn/parameter.hpp"
#include "kernels/sums/sums.hpp"

namespace choir {
namespace {

/// Cut chunks exchanged at a time: 4 MiB in f32.
constexpr std::int64_t kCutsAtATime = 64;
constexpr std::int64_t kChunk = ops::kNormChunk;

std::int64_t round_down(std::int64_t n) {
  return n / kChunk * kChunk;
}

std::int64_t round_up(std::int64_t n) {
  return round_down(n + kChunk - 1);
}

/// A tied weight counts once, as in all().
std::vector<const Parameter*> counted_parameters(const ParameterSet& parameters) {
  std::vector<const Parameter*> counted;
  for (const Parameter* p : parameters.all())
    if (p->trainable) counted.push_back(p);
  return counted;
}

}  // namespace

TrainedNorm::TrainedNorm(const ParameterStorage& storage, Device& device, const Options& options)
    : storage_(&storage), of_(options.of), device_(&device), exact_(options.exact) {
  for (const Parameter* whole : counted_parameters(storage.parameters()))
    for (const Parameter* p = whole; p != nullptr; p = p->next_tile) add_sums(p, whole);
  const std::int64_t kept = options.places * count_, chunks = exact_ ? 0 : mine_;
  const std::int64_t most = exact_ ? 0 : *std::ranges::max_element(of_ranks_);
  memory_ = Buffer(device, static_cast<std::size_t>(1 + kept + most) * sizeof(double));
  device.zero(memory_.data(), memory_.bytes());
  const TensorView all{memory_.data(), DType::f64, {1 + kept + chunks}};
  square_sum_ = all.slice(0, 1);
  sums_ = all.slice(1, kept);
  chunk_sums_ = all.slice(1 + kept, chunks);
  make_windows(storage);
  if (exact_ && storage.sharding().slices() > 1) find_cuts();
  if (cuts_.empty()) return;
  const std::int64_t room =
      std::min(kCutsAtATime, static_cast<std::int64_t>(cuts_.size())) * kChunk;
  const Precision& precision = storage.precision();
  const DType type = of_ == Of::gradients ? precision.gradient : precision.master;
  border_memory_ = Buffer(device, static_cast<std::size_t>(room) * size_of(type));
  border_ = {border_memory_.data(), type, {room}};
}

void TrainedNorm::add_sums(const Parameter* p, const Parameter* whole) {
  of_ranks_.resize(std::max(of_ranks_.size(), static_cast<std::size_t>(p->split.ranks)));
  for (int rank = 0; rank < p->split.ranks; ++rank) {
    const bool mine = p->resident() && rank == p->split.rank;
    const std::int64_t turn = mine_;
    std::int64_t chunks = 0;
    for (const LocalRange& range : owned_ranges(*p, rank)) {
      const std::int64_t of_part = round_up(range.count) / kChunk;
      if (mine)
        parts_.push_back({p,
                          {range.first, range.count},
                          of_part,
                          exact_ ? count_ + chunks : turn + chunks,
                          turn + chunks});
      chunks += of_part;
    }
    if (chunks == 0) continue;
    if (mine) mine_ += chunks;
    if (p->resident()) of_ranks_[static_cast<std::size_t>(rank)] += chunks;
    if (mine && !exact_) totals_.push_back({turn, chunks, count_});
    runs_.push_back({p, whole, exact_ ? chunks : 1});
    count_ += runs_.back().count;
  }
}

void TrainedNorm::find_cuts() {
  for (const Part& part : parts_) {
    const Parameter& p = *part.parameter;
    const std::int64_t slice = storage_->sharding().slice(storage_->bucket_of(p)).count;
    for (std::int64_t c = 0; c < part.chunks; ++c) {
      const Range chunk = overlap({part.elements.first + c * kChunk, kChunk}, part.elements);
      const std::int64_t first = p.offset + chunk.first, last = p.offset + chunk.end() - 1;
      if (first / slice != last / slice) cuts_.push_back({&p, chunk, part.at + c});
    }
  }
}

void TrainedNorm::compute(const Stream& stream, std::span<Communicator* const> holders, int place) {
  collect(stream, place);
  reduce(holders, place);
  total(stream, place);
}

void TrainedNorm::collect(const Stream& stream, int place) {
  const TensorView of_model = sums(place), chunks = exact_ ? of_model : chunk_sums_;
  // Chunks that a rank does not sum stay zero, so that the sum over ranks is exact (except where
  // data ranks sum their slices, and all of them get the same result) and the tree below adds the
  // same numbers.
  ops::zero(stream, of_model);
  if (!exact_) ops::zero(stream, chunks);
  if (storage_->sharding().slices() == 1) {
    sum_shares(stream, chunks);
  } else {
    if (storage_->sharding().replica() == 0) sum_slices(stream, chunks);
    if (exact_) sum_cuts(stream, chunks);
  }
  summed_.clear();
  for (const Total& total : totals_)
    summed_.push_back({chunks.slice(total.turn, total.chunks), of_model.slice(total.sum, 1)});
  ops::tree_sums(stream, summed_);
}

void TrainedNorm::reduce(std::span<Communicator* const> holders, int place) const {
  const TensorView of_model = sums(place);
  const auto sum_over = [&](Communicator& ranks) {
    if (ranks.size() > 1)
      ranks.all_reduce(of_model.data, static_cast<std::size_t>(of_model.count()), DType::f64,
                       ReduceOp::sum);
  };
  sum_over(storage_->sharding().data());
  for (Communicator* ranks : holders) sum_over(*ranks);
}

void TrainedNorm::total(const Stream& stream, int place) const {
  ops::tree_sum(stream, sums(place), square_sum_);
}

// Every data rank has the whole gradient; each of them reads a run of its chunks.
void TrainedNorm::sum_shares(const Stream& stream, const TensorView& chunks) {
  const Communicator& data = storage_->sharding().data();
  const std::int64_t first = mine_ * data.rank() / data.size();
  const std::int64_t last = mine_ * (data.rank() + 1) / data.size();
  summed_.clear();
  for (const Part& part : parts_) {
    // Range of chunks in the part.
    const std::int64_t begin = std::max<std::int64_t>(0, first - part.turn);
    const std::int64_t end = std::min(part.chunks, last - part.turn);
    if (begin >= end) continue;
    const std::int64_t from = begin * kChunk;
    const std::int64_t to = std::min(part.elements.count, end * kChunk);
    summed_.push_back({own_part(*part.parameter).slice(part.elements.first + from, to - from),
                       chunks.slice(part.at + begin, end - begin)});
  }
  sum_squares(stream);
}

// Sums the piece before the first chunk boundary, and the elements after it.
void TrainedNorm::sum_slices(const Stream& stream, const TensorView& chunks) {
  summed_.clear();
  for (const Part& part : parts_) {
    const Range mine = storage_->owned(*part.parameter), counted = overlap(mine, part.elements);
    if (counted.count == 0) continue;
    const TensorView own = own_part(*part.parameter);
    // Range of elements in the part.
    const std::int64_t first = counted.first - part.elements.first, last = first + counted.count;
    const auto sum = [&](std::int64_t from, std::int64_t to) {
      if (from >= to) return;
      const std::int64_t chunk = from / kChunk, end = round_up(to) / kChunk;
      summed_.push_back({own.slice(part.elements.first + from - mine.first, to - from),
                         chunks.slice(part.at + chunk, end - chunk)});
    };
    // sum_cuts() sums the pieces of chunks that a slice boundary cuts.
    const bool cut_at_end = last < part.elements.count;
    if (!exact_) sum(first, std::min(round_up(first), last));
    sum(round_up(first), exact_ && cut_at_end ? round_down(last) : last);
  }
  sum_squares(stream);
}

void TrainedNorm::make_windows(const ParameterStorage& storage) {
  if (of_ != Of::gradients || !storage.gradients_apart()) return;
  window_bytes_ = static_cast<std::size_t>(round_up(storage.offload_chunk())) *
                  size_of(storage.precision().gradient);
  windows_.emplace(*device_, window_bytes_);
}

void TrainedNorm::sum_squares(const Stream& stream) {
  windows_ ? sum_squares_outside(stream) : ops::sums_of_squares(stream, summed_);
}

// Tensors that are longer than a window are cut between chunks. A read fetches those that lie close
// together in the slices, with the few elements between them.
void TrainedNorm::sum_squares_outside(const Stream& stream) {
  pieces_.clear();
  fetches_.clear();
  const auto most = static_cast<std::int64_t>(
      window_bytes_ / size_of(storage_->precision().gradient) / kChunk * kChunk);
  for (const ops::Summed& one : summed_) {
    for (std::int64_t at = 0; at < one.x.count(); at += most) {
      const TensorView x = one.x.slice(at, std::min(most, one.x.count() - at));
      const auto* const from = static_cast<const std::byte*>(x.data);
      Fetch* last = fetches_.empty() ? nullptr : &fetches_.back();
      if (last == nullptr || from < last->from || from + x.bytes() > last->from + window_bytes_)
        last = &fetches_.emplace_back(Fetch{pieces_.size(), 0, from, 0});
      last->bytes = std::max(last->bytes, static_cast<std::size_t>(from - last->from) + x.bytes());
      ++last->count;
      pieces_.push_back({x, one.sums.slice(at / kChunk, round_up(x.count()) / kChunk)});
    }
  }
  windows_->each(
      stream, std::ssize(fetches_),
      [&](std::int64_t i) {
        const Fetch& fetch = fetches_[static_cast<std::size_t>(i)];
        windows_->start(stream, fetch.from, fetch.bytes);
      },
      [&](std::int64_t i, void* memory) {
        const Fetch& fetch = fetches_[static_cast<std::size_t>(i)];
        const std::span<ops::Summed> here(pieces_.data() + fetch.first, fetch.count);
        for (ops::Summed& piece : here)
          piece.x.data = static_cast<std::byte*>(memory) +
                         (static_cast<const std::byte*>(piece.x.data) - fetch.from);
        ops::sums_of_squares(stream, here);
      });
}

// Every rank puts its pieces into a row of chunks that are zero elsewhere; the sum over ranks is
// the row of whole chunks. The first data rank adds their squares.
void TrainedNorm::sum_cuts(const Stream& stream, const TensorView& chunks) {
  Communicator& group = storage_->sharding().group();
  const std::size_t room = static_cast<std::size_t>(border_.count() / kChunk);
  for (std::size_t next = 0; next < cuts_.size(); next += room) {
    const std::size_t count = std::min(room, cuts_.size() - next);
    const auto place = [&](std::size_t i) { return static_cast<std::int64_t>(i) * kChunk; };
    const TensorView row = border_.slice(0, place(count));
    ops::zero(stream, row);
    for (std::size_t i = 0; i < count; ++i) {
      const Cut& cut = cuts_[next + i];
      const Range mine = storage_->owned(*cut.parameter), piece = overlap(mine, cut.elements);
      if (piece.count == 0) continue;
      const TensorView from = own_part(*cut.parameter).slice(piece.first - mine.first, piece.count);
      const TensorView to = row.slice(place(i) + piece.first - cut.elements.first, piece.count);
      windows_ ? stream.copy_from_host(to.data, from.data, from.bytes())
               : ops::copy(stream, from, to);
    }
    group.all_reduce(row.data, static_cast<std::size_t>(row.count()), row.dtype, ReduceOp::sum);
    if (storage_->sharding().data().rank() != 0) continue;
    summed_.clear();
    for (std::size_t i = 0; i < count; ++i)
      summed_.push_back({row.slice(place(i), cuts_[next + i].elements.count),
                         chunks.slice(cuts_[next + i].chunk, 1)});
    ops::sums_of_squares(stream, summed_);
  }
}

std::vector<TrainedNorm::Tensor> TrainedNorm::tensors() const {
  std::vector<Tensor> list;
  std::int64_t first = 0;
  for (const Run& run : runs_) {
    if (list.empty() || list.back().name != run.whole->name)
      list.push_back({run.whole->name, first});
    first += run.count;
  }
  return list;
}

std::vector<std::string> TrainedNorm::not_finite(int place) const {
  std::vector<double> host(static_cast<std::size_t>(count_));
  device_->copy_to_host(host.data(), sums(place).data, host.size() * sizeof(double));
  std::vector<std::string> names;
  auto sum = host.begin();
  for (const Run& run : runs_) {
    const auto end = sum + run.count;
    const std::string& name = run.parameter->name;
    const bool named = !names.empty() && names.back() == name;
    if (!named && !std::all_of(sum, end, [](double x) { return std::isfinite(x); }))
      names.push_back(name);
    sum = end;
  }
  return names;
}

}  // namespace choir
