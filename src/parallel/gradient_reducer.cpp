#include "choir/parallel/gradient_reducer.hpp"

#include <algorithm>
#include <bit>

#include "choir/core/clock.hpp"
#include "choir/ops/reduce.hpp"

namespace choir {
namespace {

/// One whole gradient is written while the one before is reduced.
constexpr int kGradientSlots = 2;

}  // namespace

GradientReducer::GradientReducer(ParameterStorage& storage, ParameterGatherer& gatherer,
                                 Device& device, std::int64_t micro_batches, bool reproducible,
                                 NegativeControl control)
    : storage_(&storage),
      gatherer_(&gatherer),
      stream_(device),
      micro_batches_(micro_batches),
      reproducible_(reproducible),
      control_(control) {
  const Sharding& sharding = storage.sharding();
  const DType type = storage.precision().gradient;
  if (sharding.gradients_sharded()) {
    ring_.emplace(storage.parameters(), BucketRing::Of::trained, type, kGradientSlots, device,
                  sharding.group());
    summed_.assign(storage.parameters().buckets().size(), 0);
  }
  if (!reproducible) return;
  CHOIR_CHECK(std::has_single_bit(static_cast<std::uint64_t>(micro_batches)),
              "reproducible mode with {} micro-batches a rank", micro_batches);
  const std::int64_t count = level_size();
  for (std::int64_t held = 1; held < micro_batches; held *= 2)
    levels_.emplace_back(device, static_cast<std::size_t>(count) * size_of(type));
}

void GradientReducer::begin_micro_batch(const Stream& stream, std::int64_t j) {
  stream_ = stream;
  current_ = j;
}

void GradientReducer::begin_gradients(int index) {
  if (!bucket(index).trainable) return;
  if (!ring_) {
    if (starts_sum(current_) || reproducible_) storage_->begin_gradients(stream_, bucket(index));
    return;
  }
  BucketRing::Slot* slot = ring_->claim(index, gatherer_->queue());
  CHOIR_CHECK(slot != nullptr, "bucket {}: every slot for gradients is in use", bucket(index).name);
  ++slot->users;
  storage_->parameters().bind_gradients(bucket(index), slot->memory);
  storage_->begin_gradients(stream_, bucket(index));
}

void GradientReducer::gradients_ready(int index) {
  const Bucket& b = bucket(index);
  if (!b.trainable) return;
  if (look_) look_(stream_, b);
  const Sharding& sharding = storage_->sharding();
  Communicator& group = sharding.group();
  const auto mine = static_cast<std::size_t>(sharding.slice(b).count);
  if (ring_) {
    BucketRing::Slot& slot = *ring_->find(index);
    --slot.users;
    if (group.size() == 1) return accumulate(index);
    const CommQueue::Then then{
        .run = [](void* self, int i) { static_cast<GradientReducer*>(self)->accumulate(i); },
        .self = this,
        .bucket = index};
    slot.ticket = gatherer_->queue().start(
        [&]() -> CommRequest& {
          return group.start_reduce_scatter(slot.memory.data, mine, slot.memory.dtype,
                                            ReduceOp::sum, order());
        },
        then);
    return;
  }
  const TensorView sum = storage_->whole_gradients(b);
  if (reproducible_) combine(current_, sum, b);
  if (current_ + 1 < micro_batches_ || group.size() == 1) return;
  gatherer_->queue().start([&]() -> CommRequest& {
    if (sharding.stage() == 0)
      return group.start_all_reduce(sum.data, mine, sum.dtype, ReduceOp::sum, order());
    return group.start_reduce_scatter(sum.data, mine, sum.dtype, ReduceOp::sum, order());
  });
}

// The sum over the group of one micro-batch each is in this rank's slice of the slot.
void GradientReducer::accumulate(int index) {
  const Bucket& b = bucket(index);
  const Range mine = storage_->sharding().slice(b);
  const TensorView fresh = ring_->find(index)->memory.slice(mine.first, mine.count);
  const TensorView sum = storage_->gradients(b);
  const std::int64_t j = summed_[static_cast<std::size_t>(index)]++;
  if (reproducible_) {
    if (combine(j, fresh, b)) ops::copy(stream_, fresh, sum);
  } else if (starts_sum(j)) {
    ops::copy(stream_, fresh, sum);
  } else {
    ops::add(stream_, sum, fresh, sum);
  }
}

std::int64_t GradientReducer::level_size() const {
  return ring_ ? storage_->trained_slices_size() : storage_->parameters().trained_size();
}

TensorView GradientReducer::level(std::size_t l, const Bucket& b) const {
  const DType type = storage_->precision().gradient;
  const TensorView all{levels_[l].data(), type, {level_size()}};
  return ring_ ? storage_->slice_of(all, b) : all.slice(b.offset, b.size);
}

// The binary counter: after micro-batch j, every trailing one bit of j is a carry. True when
// `fresh` has become the sum of all.
bool GradientReducer::combine(std::int64_t j, const TensorView& fresh, const Bucket& b) {
  std::size_t l = 0;
  for (; (j >> l) & 1; ++l) ops::add(stream_, level(l, b), fresh, fresh);
  if (j + 1 == micro_batches_) return true;
  ops::copy(stream_, fresh, level(l, b));
  return false;
}

double GradientReducer::finish() {
  const double start = now_seconds();
  gatherer_->queue().finish_all();
  for (std::size_t b = 0; b < summed_.size(); ++b) {
    const bool trained = storage_->parameters().buckets()[b].trainable;
    CHOIR_CHECK(!trained || summed_[b] == micro_batches_, "{} of {} micro-batches were summed",
                summed_[b], micro_batches_);
    summed_[b] = 0;
  }
  reduce_replicas();
  return now_seconds() - start;
}

void GradientReducer::reduce_replicas() {
  Communicator* replicas = storage_->sharding().replicas();
  if (replicas == nullptr || control_ == NegativeControl::groups_unsummed) return;
  for (const Bucket& b : storage_->parameters().buckets()) {
    if (!b.trainable) continue;
    const TensorView sum = storage_->gradients(b);
    replica_queue_.start([&]() -> CommRequest& {
      return replicas->start_all_reduce(sum.data, static_cast<std::size_t>(sum.count()), sum.dtype,
                                        ReduceOp::sum, order());
    });
  }
  replica_queue_.finish_all();
}

void GradientReducer::add_to(MemoryPlan& plan) const {
  if (ring_) plan.add("gradients, whole buckets", ring_->bytes(), ring_->shared());
  std::size_t bytes = 0;
  for (const Buffer& level : levels_) bytes += level.bytes();
  if (bytes > 0) plan.add("gradients, reproducible tree", bytes);
}

}  // namespace choir
