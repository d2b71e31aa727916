#include "choir/parallel/sharding/parameter_gatherer.hpp"

#include <algorithm>

#include "choir/core/clock.hpp"
#include "choir/ops/reduce.hpp"

namespace choir {

ParameterGatherer::ParameterGatherer(ParameterStorage& storage, Device& device)
    : storage_(&storage), stream_(device) {
  const Sharding& sharding = storage.sharding();
  const std::vector<Bucket>& buckets = storage.parameters().buckets();
  walked_ = static_cast<int>(
      std::count_if(buckets.begin(), buckets.end(), [](const Bucket& b) { return !b.beside; }));
  if (sharding.values_sharded())
    ring_.emplace(storage.parameters(), BucketRing::Of::all, storage.precision().compute,
                  1 + sharding.prefetch(), device, sharding.group());
  if (!storage.values_outside()) return;
  fetches_ = std::make_unique<SideStream>(device);
  free_ = std::make_unique<Event>(device);
  for (std::size_t b = 0; b < storage.parameters().buckets().size(); ++b)
    fetched_.push_back({.done = std::make_unique<Event>(device)});
}

void ParameterGatherer::acquire(int index) {
  if (!ring_) return;
  CHOIR_CHECK(gather(index), "bucket {}: every slot of its shape is in use", bucket(index).name);
  await(index);
  if (bucket(index).frozen >= 0) await(bucket(index).frozen);
  prefetch(index);
}

void ParameterGatherer::await(int index) {
  BucketRing::Slot& slot = *ring_->find(index);
  fetched(index);
  queue_.finish(slot.ticket);
  ++slot.users;
  storage_->parameters().bind_values(bucket(index), slot.memory);
}

void ParameterGatherer::release(int index) {
  if (!ring_) return;
  BucketRing::Slot* slot = ring_->find(index);
  CHOIR_CHECK(slot != nullptr && slot->users > 0, "bucket {} is not in use", bucket(index).name);
  --slot->users;
  if (bucket(index).frozen >= 0) release(bucket(index).frozen);
}

// Forward begins at the first bucket and goes up; at the last one the model turns round, and
// backward ends above the first, whose values it has no use for.
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
  int last = index;  // of the tiles of this layer
  while (tile(last + 1) > 0) ++last;
  if (tile(index) == 0 && last > index) return last;
  if (tile(index) > 1) return index - 1;
  const int next = index - 1 - tile(index);  // the bucket before this layer
  return next < 0 ? -1 : next - tile(next);
}

// False: no slot is free. What a slot still has is not gathered again.
bool ParameterGatherer::gather(int index) {
  const int beside = bucket(index).frozen;
  return gather_alone(index) && (beside < 0 || gather_alone(beside));
}

bool ParameterGatherer::gather_alone(int index) {
  if (ring_->find(index) != nullptr) return true;
  BucketRing::Slot* slot = ring_->claim(index, queue_);
  if (slot == nullptr) return false;
  const Bucket& b = bucket(index);
  const Sharding& sharding = storage_->sharding();
  const Range mine = sharding.slice(b);
  const TensorView own = slot->memory.slice(mine.first, mine.count);
  fill(index, own);
  if (sharding.slices() == 1) return true;
  fetched(index);
  slot->ticket = queue_.start([&]() -> CommRequest& {
    return sharding.group().start_all_gather(slot->memory.data,
                                             static_cast<std::size_t>(mine.count), own.dtype);
  });
  return true;
}

// The slot is free when the main stream gets here: what had it has been queued before.
void ParameterGatherer::fill(int index, const TensorView& own) {
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
  for (const Bucket& b : storage_->parameters().buckets()) updated(b);
  finish_update();
}

void ParameterGatherer::updated(const Bucket& b) {
  const Sharding& sharding = storage_->sharding();
  if (sharding.slices() == 1 || ring_) return;
  const TensorView values = storage_->whole_values(b);
  queue_.start([&]() -> CommRequest& {
    return sharding.group().start_all_gather(
        values.data, static_cast<std::size_t>(sharding.slice(b).count), values.dtype);
  });
}

double ParameterGatherer::finish_update() {
  const double start = now_seconds();
  queue_.finish_all();
  forget();
  return now_seconds() - start;
}

void ParameterGatherer::add_to(MemoryPlan& plan) const {
  if (ring_) plan.add("parameters, whole buckets", ring_->bytes(), ring_->shared());
}

}  // namespace choir
