#include "choir/parallel/sharding/bucket_ring.hpp"

#include <algorithm>

#include "src/comm/null_communicator.hpp"

namespace choir {

CommMemory::CommMemory(Device& device, Communicator& comm, std::size_t bytes) {
  const bool alone = comm.size() == 1 && !device.host_visible();
  if (device.kind() == DeviceKind::null || alone)
    own_ = Buffer(device, bytes);
  else
    shared_ = comm.allocate(bytes);
  if (device.kind() == DeviceKind::null) count_as_allocated(comm, own_.data(), bytes);
  device.zero(data(), bytes);
}

void CommQueue::finish(std::uint64_t ticket) {
  while (oldest_ <= ticket && oldest_ < next_) {
    const Entry entry = entries_[oldest_++ % kMost];
    entry.request->wait();
    if (entry.then.run) entry.then.run(entry.then.self, entry.then.bucket);
  }
}

void CommQueue::progress() {
  for (std::uint64_t i = oldest_; i < next_; ++i) entries_[i % kMost].request->test();
}

namespace {

bool same_shape(const Bucket& a, const Bucket& b) {
  return a.size == b.size &&
         std::equal(a.parameters.begin(), a.parameters.end(), b.parameters.begin(),
                    b.parameters.end(), [](const Parameter* p, const Parameter* q) {
                      return p->offset == q->offset && p->local_count() == q->local_count();
                    });
}

/// True if the buckets are never in use at the same time.
bool takes_turns(const Bucket& a, const Bucket& b) {
  return a.beside == b.beside && a.packed == b.packed && (a.tile > 0) == (b.tile > 0);
}

}  // namespace

BucketRing::BucketRing(const ParameterSet& parameters, Of which, DType dtype, int depth,
                       Device& device, Communicator& comm) {
  const std::vector<Bucket>& buckets = parameters.buckets();
  std::vector<std::int64_t> offsets;
  std::int64_t total = 0;
  const auto has_slots = [&](const Bucket& bucket) {
    return which == Of::all || (which == Of::trained ? bucket.trainable : bucket.packed);
  };
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    if (!has_slots(buckets[b])) {
      slots_of_.push_back({});
      continue;
    }
    const auto alike = [&](const Bucket& other) {
      return has_slots(other) && takes_turns(other, buckets[b]) && same_shape(other, buckets[b]);
    };
    const auto first = std::find_if(buckets.begin(), buckets.end(), alike) - buckets.begin();
    if (static_cast<std::size_t>(first) < b) {
      slots_of_.push_back(slots_of_[static_cast<std::size_t>(first)]);
      continue;
    }
    const auto count =
        std::min<std::int64_t>(depth, std::count_if(buckets.begin(), buckets.end(), alike));
    slots_of_.push_back({static_cast<std::int64_t>(slots_.size()), count});
    for (std::int64_t i = 0; i < count; ++i, total += buckets[b].size) {
      slots_.push_back({.memory = {nullptr, dtype, {buckets[b].size}}});
      offsets.push_back(total);
    }
  }
  if (total == 0) return;
  memory_ = CommMemory(device, comm, static_cast<std::size_t>(total) * size_of(dtype));
  const TensorView all{memory_.data(), dtype, {total}};
  for (std::size_t s = 0; s < slots_.size(); ++s)
    slots_[s].memory = all.slice(offsets[s], slots_[s].memory.count());
}

BucketRing::Slot* BucketRing::find(int bucket) {
  const Range mine = slots_of_[static_cast<std::size_t>(bucket)];
  const auto first = slots_.begin() + mine.first, end = first + mine.count;
  const auto slot = std::find_if(first, end, [&](const Slot& s) { return s.bucket == bucket; });
  return slot == end ? nullptr : &*slot;
}

BucketRing::Slot* BucketRing::claim(int bucket, CommQueue& queue) {
  Slot* best = find(bucket);
  const bool again = best != nullptr;
  const Range mine = slots_of_[static_cast<std::size_t>(bucket)];
  for (std::int64_t i = mine.first; !again && i < mine.end(); ++i) {
    Slot& slot = slots_[static_cast<std::size_t>(i)];
    const bool older = best == nullptr || slot.turn < best->turn;
    if (slot.users == 0 && older) best = &slot;
  }
  if (best == nullptr || best->users > 0) return nullptr;
  queue.finish(best->ticket);
  best->bucket = bucket;
  best->turn = ++turn_;
  return best;
}

void BucketRing::forget() {
  for (Slot& slot : slots_) {
    CHOIR_CHECK(slot.users == 0, "bucket {} is in use", slot.bucket);
    slot.bucket = -1;
  }
}

}  // namespace choir
