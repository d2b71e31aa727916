#include "choir/parallel/sharding/parameter_gatherer.hpp"

#include <algorithm>
#include <utility>

#include "kernels/sums/sums.hpp"
#include "src/core/quantities.hpp"
#include "src/parallel/sharding/packed_parameters.hpp"

namespace choir {

ParameterGatherer::ParameterGatherer(ParameterStorage& storage, Device& device)
    : storage_(&storage), sharded_(storage.sharding().values_sharded()), stream_(device) {
  const Sharding& sharding = storage.sharding();
  const std::vector<Bucket>& buckets = storage.parameters().buckets();
  walked_ = static_cast<int>(
      std::count_if(buckets.begin(), buckets.end(), [](const Bucket& b) { return !b.beside; }));
  if (sharded_)
    ring_.emplace(storage.parameters(), BucketRing::Of::all, storage.precision().compute,
                  1 + sharding.prefetch(), device, sharding.gathers());
  else if (storage.packed() != nullptr)
    ring_.emplace(storage.parameters(), BucketRing::Of::packed, storage.precision().compute, 1,
                  device, sharding.gathers());
  if (sharding.slices() > 1 && !sharded_ && !device.host_visible())
    for (const Bucket& b : buckets) later_.push_back({.due = b.trainable});
  if (!storage.values_outside()) return;
  fetches_ = std::make_unique<SideStream>(device);
  free_ = std::make_unique<Event>(device);
  for (std::size_t b = 0; b < storage.parameters().buckets().size(); ++b)
    fetched_.push_back({.done = std::make_unique<Event>(device)});
}

void ParameterGatherer::acquire(int index) {
  if (!sharded_) gather_ahead(index);
  if (!ring_) return;
  CHOIR_CHECK(gather(index), "bucket {}: every slot of its shape is in use", bucket(index).name);
  for (int b = index; b >= 0; b = bucket(b).frozen) await(b);
  if (sharded_) prefetch(index);
}

void ParameterGatherer::await(int index) {
  if (!in_ring(index)) return;
  BucketRing::Slot& slot = *ring_->find(index);
  fetched(index);
  gathers().finish(slot.ticket);
  ++slot.users;
  storage_->parameters().bind_values(bucket(index), slot.memory);
}

void ParameterGatherer::release(int index) {
  if (!ring_) return;
  if (in_ring(index)) {
    BucketRing::Slot* slot = ring_->find(index);
    CHOIR_CHECK(slot != nullptr && slot->users > 0, "bucket {} is not in use", bucket(index).name);
    --slot->users;
  }
  if (bucket(index).frozen >= 0) release(bucket(index).frozen);
}

// Forward begins at the first bucket and goes up; after the last one the model turns round, and
// backward ends above the first bucket, whose values it does not need.
void ParameterGatherer::prefetch(int index) {
  const int end = walked_;
  const bool forward = index == 0 || (index > last_ && index != below(last_));
  last_ = index;
  int next = index;
  for (int ahead = 1; ahead <= storage_->sharding().prefetch(); ++ahead) {
    next = forward ? next + 1 : below(next);
    if (next <= 0 || next >= end || !gather(next)) return;
  }
}

int ParameterGatherer::below(int index) const {
  const int end = walked_;
  const auto tile = [&](int i) { return i >= 0 && i < end ? bucket(i).tile : 0; };
  int last = index;  // the last tile of this layer
  while (tile(last + 1) > 0) ++last;
  if (tile(index) == 0 && last > index) return last;
  if (tile(index) > 1) return index - 1;
  const int next = index - 1 - tile(index);  // the bucket before this layer
  return next < 0 ? -1 : next - tile(next);
}

// Returns false if no slot is free. Values that a slot still holds are not gathered again.
bool ParameterGatherer::gather(int index) {
  for (int b = index; b >= 0; b = bucket(b).frozen)
    if (in_ring(b) && !gather_alone(b)) return false;
  return true;
}

bool ParameterGatherer::gather_alone(int index) {
  if (ring_->find(index) != nullptr) return true;
  BucketRing::Slot* slot = ring_->claim(index, gathers());
  if (slot == nullptr) return false;
  const Bucket& b = bucket(index);
  const Sharding& sharding = storage_->sharding();
  const Range mine = sharded_ ? sharding.slice(b) : Range{0, b.size};
  const TensorView own = slot->memory.slice(mine.first, mine.count);
  fill(index, own);
  if (!sharded_ || sharding.slices() == 1) return true;
  fetched(index);
  slot->ticket = gathers().start([&]() -> CommRequest& {
    return sharding.gathers().start_all_gather(slot->memory.data,
                                               static_cast<std::size_t>(mine.count), own.dtype);
  });
  return true;
}

// The slot is free when the main stream gets here, because all work on its previous content was
// queued before.
void ParameterGatherer::fill(int index, const TensorView& own) {
  if (bucket(index).packed) return storage_->packed()->unpack(stream_, bucket(index), own);
  const TensorView from = storage_->gathered_from(bucket(index));
  if (!fetches_) return ops::cast(stream_, from, own);
  Fetch& fetch = fetched_[static_cast<std::size_t>(index)];
  free_->record(stream_);
  fetches_->stream().wait(*free_);
  fetches_->stream().copy_from_host(own.data, from.data, own.bytes());
  fetch.done->record(fetches_->stream());
  fetch.awaited = false;
}

void ParameterGatherer::fetched(int index) {
  if (!fetches_) return;
  Fetch& fetch = fetched_[static_cast<std::size_t>(index)];
  if (!fetch.awaited) stream_.wait(*fetch.done);
  fetch.awaited = true;
}

void ParameterGatherer::settle() {
  for (std::size_t b = 0; b < fetched_.size(); ++b) fetched(static_cast<int>(b));
}

void ParameterGatherer::publish(const Stream& stream) {
  storage_->refresh_copies(stream);
  if (storage_->sharding().slices() > 1 && !sharded_)
    for (const Bucket& b : storage_->parameters().buckets())
      if (!b.packed) start_gather(b);
  finish_update();
  for (Later& later : later_) later = {};
}

std::uint64_t ParameterGatherer::start_gather(const Bucket& b) {
  const Sharding& sharding = storage_->sharding();
  const TensorView values = storage_->whole_values(b);
  return gathers().start([&]() -> CommRequest& {
    return sharding.gathers().start_all_gather(
        values.data, static_cast<std::size_t>(sharding.slice(b).count), values.dtype);
  });
}

// The first bucket is needed before there is any work to hide its gather, so it is gathered while
// the others are updated.
void ParameterGatherer::updated(const Bucket& b) {
  if (storage_->sharding().slices() == 1 || sharded_) return;
  const auto index = static_cast<std::size_t>(&b - storage_->parameters().buckets().data());
  if (later_.empty() || index == 0)
    start_gather(b);
  else
    later_[index] = {.due = true};
}

void ParameterGatherer::gather_ahead(int index) {
  // Half of the limit of operations in flight: a full queue would wait for its oldest operation.
  constexpr int kAhead = Communicator::kMaxInFlight / 2;
  const int end = std::min(index + kAhead, static_cast<int>(later_.size()));
  for (int b = index; b < end; ++b) {
    Later& later = later_[static_cast<std::size_t>(b)];
    if (std::exchange(later.due, false)) later.ticket = start_gather(bucket(b));
  }
  if (later_.empty()) return;
  Later& own = later_[static_cast<std::size_t>(index)];
  if (own.ticket > 0) gathers().finish(std::exchange(own.ticket, 0));
}

void ParameterGatherer::complete_update() {
  for (int b = 0; b < static_cast<int>(later_.size()); ++b) gather_ahead(b);
}

void ParameterGatherer::forget() {
  settle();
  if (ring_) ring_->forget();
  if (later_.empty()) return;
  gathers().finish_all();
  for (std::size_t b = 0; b < later_.size(); ++b)
    later_[b] = {.due = storage_->parameters().buckets()[b].trainable};
}

double ParameterGatherer::finish_update() {
  const double start = now_seconds();
  gathers().finish_all();
  settle();
  if (ring_) ring_->forget();
  return now_seconds() - start;
}

void ParameterGatherer::add_to(MemoryPlan& plan) const {
  if (ring_ && ring_->bytes() > 0)
    plan.add("parameters, whole buckets", ring_->bytes(), ring_->shared());
}

}  // namespace choir
