#include "src/data/text/streamed_source.hpp"

#include <algorithm>

#include "choir/core/error.hpp"
#include "src/core/hash.hpp"
#include "src/data/text/documents.hpp"

namespace choir {

std::vector<std::int64_t> tokens_of_units(const TextIndex& index) {
  std::vector<std::int64_t> tokens;
  for (const TextIndex::Unit& unit : index.units) tokens.push_back(unit.tokens);
  return tokens;
}

UnitsAhead::UnitsAhead(const StreamedText& text, const UnitOrder& order, std::int64_t first,
                       std::int64_t stride, int threads)
    : text_(text), order_(order), next_(first), stride_(stride), threads_(threads) {
  CHOIR_CHECK(threads >= 1 && stride >= 1, "{} threads, stride {}", threads, stride);
  {
    const std::lock_guard lock(mutex_);
    extend(first);
  }
  for (int i = 0; i < threads; ++i) running_.emplace_back([this] { work(); });
}

UnitsAhead::~UnitsAhead() {
  stop();
  for (std::thread& thread : running_) thread.join();
}

void UnitsAhead::stop() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  changed_.notify_all();
}

std::int64_t UnitsAhead::encoded() const {
  const std::lock_guard lock(mutex_);
  return begun_;
}

/// Adds slots up to `place`, and for as many units behind it as there are threads.
void UnitsAhead::extend(std::int64_t place) {
  const std::int64_t last = place + stride_ * threads_;
  for (; next_ <= last; next_ += stride_) {
    slots_.push_back(std::make_unique<Slot>());
    slots_.back()->place = next_;
  }
  changed_.notify_all();
}

void UnitsAhead::encode(Slot& slot) const {
  const std::size_t unit = order_.unit_at(slot.place);
  UnitIds made = encode_unit(text_.source, unit, text_.vocabulary, [this] { return stop_.load(); });
  if (stop_) return;
  const TextIndex::Unit& expected = text_.index.units[unit];
  const std::uint32_t crc = crc32c(made.ids.data(), made.ids.size() * sizeof(std::int32_t));
  if (std::ssize(made.ids) != expected.tokens || crc != expected.crc)
    throw DataError(fmt::format("{} changed after it was indexed: it has {} tokens, and had {}",
                                text_.source.place_of(unit), made.ids.size(), expected.tokens),
                    "start again, so that it is indexed anew");
  slot.ids = std::move(made.ids);
}

void UnitsAhead::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    Slot* mine = nullptr;
    changed_.wait(lock, [&] {
      const auto free = std::ranges::find_if(slots_, [](const auto& s) { return !s->taken; });
      mine = free == slots_.end() ? nullptr : free->get();
      return mine != nullptr || stop_;
    });
    if (stop_) return;
    mine->taken = true;
    ++begun_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      encode(*mine);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    mine->failure = failure;
    mine->ready = true;
    changed_.notify_all();
  }
}

const std::vector<std::int32_t>& UnitsAhead::tokens(std::int64_t place, std::int64_t least) {
  std::unique_lock lock(mutex_);
  extend(place);
  const auto at = [this](std::int64_t wanted) {
    return std::ranges::find_if(slots_, [&](const auto& s) { return s->place == wanted; });
  };
  const auto found = at(place);
  CHOIR_CHECK(found != slots_.end(), "place {} was forgotten", place);
  Slot& slot = **found;
  changed_.wait(lock, [&] { return slot.ready || stop_; });
  if (!slot.ready) throw CommError("reading was abandoned while a text was encoded");
  if (slot.failure) std::rethrow_exception(slot.failure);
  while (slots_.front()->place < least && slots_.front()->ready) slots_.pop_front();
  return slot.ids;
}

namespace {

/// The first place that a rank owns, at or behind the one of a sample.
std::int64_t first_owned(UnitOrder& units, std::int64_t sample, int rank, int size) {
  const std::int64_t first = units.segments(sample, 1).front().pieces.front().place;
  const std::int64_t before = first % size;
  return first + (rank - before + size) % size;
}

}  // namespace

StreamedSource::StreamedSource(Communicator& comm, const std::string& name,
                               std::shared_ptr<const StreamedText> text, const RowShape& shape,
                               std::uint64_t seed, const MicroBatchOrder& order, int threads)
    : text_(std::move(text)),
      shape_(shape),
      order_(order),
      comm_(comm.duplicate(name)),
      group_(*comm_),
      units_(tokens_of_units(text_->index), shape.block_size, seed),
      ahead_(std::make_unique<UnitsAhead>(
          *text_, units_, first_owned(units_, order.first_sample, group_.rank(), group_.size()),
          group_.size(), threads)) {}

void StreamedSource::load_step(std::int64_t step) {
  const std::int64_t samples = order_.per_step * shape_.rows;
  segments_ = units_.segments(order_.first_sample + step * samples, samples);
  const std::int64_t least = segments_.front().pieces.front().place;
  std::int64_t count = 0;
  for (const UnitOrder::Segment& segment : segments_)
    count += segment.samples * shape_.block_size + 1;
  tokens_.resize(static_cast<std::size_t>(count));
  const auto for_pieces = [this](const auto& use) {
    std::int32_t* to = tokens_.data();
    for (const UnitOrder::Segment& segment : segments_)
      for (const UnitOrder::Piece& piece : segment.pieces) use(piece, to), to += piece.count;
  };
  const auto owner_of = [this](const UnitOrder::Piece& piece) {
    return static_cast<int>(piece.place % group_.size());
  };
  group_.agree([&] {
    for_pieces([&](const UnitOrder::Piece& piece, std::int32_t* to) {
      if (owner_of(piece) != group_.rank()) return;
      const std::vector<std::int32_t>& ids = ahead_->tokens(piece.place, least);
      std::copy_n(ids.begin() + piece.first, piece.count, to);
    });
  });
  if (group_.size() > 1)
    for_pieces([&](const UnitOrder::Piece& piece, std::int32_t* to) {
      group_.broadcast(to, static_cast<std::size_t>(piece.count) * sizeof *to, owner_of(piece));
    });
  step_ = step;
}

void StreamedSource::fill(std::int64_t call, Batch& batch) {
  if (const std::int64_t step = call / order_.per_rank; step != step_) load_step(step);
  batch.micro_batch = order_.micro_batch(call);
  batch.first_sample = order_.first_sample + batch.micro_batch * shape_.rows;
  batch.valid = shape_.rows * shape_.block_size;
  auto* inputs = batch.inputs.as<std::int32_t>();
  auto* targets = batch.targets.as<std::int32_t>();
  const std::int32_t* begin = tokens_.data();
  std::size_t segment = 0;
  for (std::int64_t row = 0; row < shape_.rows; ++row) {
    const std::int64_t sample = batch.first_sample + row;
    while (sample >= segments_[segment].sample + segments_[segment].samples)
      begin += segments_[segment++].samples * shape_.block_size + 1;
    const std::int32_t* from = begin + (sample - segments_[segment].sample) * shape_.block_size;
    inputs = std::copy_n(from, shape_.block_size, inputs);
    targets = std::copy_n(from + 1, shape_.block_size, targets);
  }
  if (shape_.documents) separate_documents(shape_.document_end, shape_.rows, batch);
}

void StreamedSource::abandon() {
  group_.abandon();
  ahead_->stop();
}

}  // namespace choir
