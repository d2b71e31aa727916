#include "src/parallel/gradients/gradient_sums.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "choir/nn/parameter.hpp"
#include "kernels/sums/sums.hpp"
#include "src/core/quantities.hpp"

namespace choir {

PartialGradients::PartialGradients(ParameterSet& parameters, Device& device, DType gradient,
                                   Communicator& tensor, const Options& options, BucketHooks& then)
    : tensor_(&tensor), options_(options), then_(&then), stream_(device) {
  std::int64_t largest = 0;
  for (const Bucket& bucket : parameters.buckets()) {
    Message message;
    for (const Parameter* p : bucket.parameters) {
      if (!p->trainable) continue;
      for (const PartialRun& run : partial_runs(*p)) {
        message.runs.push_back({p, run.local, run.count, message.size + run.place});
        message.size += run.size;
      }
    }
    largest = std::max(largest, message.size);
    messages_.push_back(std::move(message));
  }
  if (largest == 0) return;
  constexpr std::int64_t kAlignment = 64;  // elements
  largest = (largest + kAlignment - 1) / kAlignment * kAlignment;
  const std::int64_t places = options.overlapped ? 2 : 1;
  memory_ = tensor.allocate(static_cast<std::size_t>(places * largest) * size_of(gradient));
  places_ = {memory_->data(), gradient, {places, largest}};
}

void PartialGradients::begin_micro_batch(const Stream& stream, bool complete) {
  stream_ = stream;
  complete_ = complete;
}

template <class Copy>
void PartialGradients::each_run(int bucket, const TensorView& memory, const Copy& copy) const {
  for (const Run& run : messages_[static_cast<std::size_t>(bucket)].runs) {
    const TensorView gradient = run.parameter->gradient;
    copy(gradient.reshaped({gradient.count()}).slice(run.local, run.count),
         memory.slice(run.place, run.count));
  }
}

void PartialGradients::gradients_ready(int bucket) {
  const std::int64_t size = messages_[static_cast<std::size_t>(bucket)].size;
  if (!complete_ || size == 0) {
    complete_sums();
    return then_->gradients_ready(bucket);
  }
  const TensorView memory =
      places_.slice(turn_++ % places_.shape[0], 1).reshaped({places_.shape[1]}).slice(0, size);
  ops::zero(stream_, memory);  // parts that only other ranks hold
  each_run(bucket, memory, [&](const TensorView& gradient, const TensorView& place) {
    ops::copy(stream_, gradient, place);
  });
  CommRequest& request = tensor_->start_all_reduce(memory.data, static_cast<std::size_t>(size),
                                                   memory.dtype, ReduceOp::sum, options_.order);
  complete_sums();  // those of the bucket before, which this one's backward pass has hidden
  started_ = {bucket, &request, memory};
  if (!options_.overlapped) complete_sums();
}

void PartialGradients::complete_sums() {
  if (started_.request == nullptr) return;
  const Started sums = std::exchange(started_, {});
  sums.request->wait();
  each_run(sums.bucket, sums.memory, [&](const TensorView& gradient, const TensorView& place) {
    ops::copy(stream_, place, gradient);
  });
  then_->gradients_ready(sums.bucket);
}

void PartialGradients::add_to(MemoryPlan& plan) const {
  if (!places_.empty()) plan.add("gradients, sums over tensor ranks", places_.bytes());
}

GradientReducer::GradientReducer(ParameterStorage& storage, ParameterGatherer& gatherer,
                                 Device& device, std::int64_t micro_batches, bool reproducible)
    : storage_(&storage),
      gatherer_(&gatherer),
      stream_(device),
      micro_batches_(micro_batches),
      reproducible_(reproducible) {
  const Sharding& sharding = storage.sharding();
  const DType type = storage.precision().gradient;
  if (sharding.gradients_sharded()) {
    ring_.emplace(storage.parameters(), BucketRing::Of::trained, type, kInFlight, device,
                  sharding.group());
    summed_.assign(storage.parameters().buckets().size(), 0);
    if (storage.gradients_apart())
      outside_ = std::make_unique<OffloadedSums>(storage, device, ring_->slots());
  }
  if (!reproducible) return;
  CHOIR_CHECK(std::has_single_bit(static_cast<std::uint64_t>(micro_batches)),
              "reproducible mode with {} micro-batches a rank", micro_batches);
  if (storage.gradient_place() != MemoryPlace::device) return;  // the storage has the levels
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
    if (current_ == 0 || reproducible_) storage_->begin_gradients(stream_, bucket(index));
    return;
  }
  BucketRing::Slot* slot = ring_->claim(index, gatherer_->queue());
  CHOIR_CHECK(slot != nullptr, "bucket {}: every slot for gradients is in use", bucket(index).name);
  if (outside_) {
    replica_queue_.finish(outside_->reduced(ring_->index(*slot)).ticket);
    outside_->before_writing(stream_, ring_->index(*slot));
  }
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
    return complete_earlier(slot.ticket);
  }
  const TensorView sum = storage_->whole_gradients(b);
  if (reproducible_) combine(current_, sum, b);
  if (current_ + 1 < micro_batches_) return;
  if (group.size() == 1) return reduce_over_replicas(index);
  const std::uint64_t ticket = gatherer_->queue().start(
      [&]() -> CommRequest& {
        if (sharding.stage() == 0)
          return group.start_all_reduce(sum.data, mine, sum.dtype, ReduceOp::sum, order());
        return group.start_reduce_scatter(sum.data, mine, sum.dtype, ReduceOp::sum, order());
      },
      {.run = [](void* self,
                 int i) { static_cast<GradientReducer*>(self)->reduce_over_replicas(i); },
       .self = this,
       .bucket = index});
  complete_earlier(ticket);
}

// With replicas, the sum of an earlier bucket must be complete now, because it goes on to them.
void GradientReducer::complete_earlier(std::uint64_t started) {
  if (storage_->sharding().replicas() == nullptr || current_ + 1 < micro_batches_) return;
  gatherer_->queue().finish(std::exchange(in_flight_[turn_++ % kInFlight], started));
}

// Called when this rank's slice of the slot holds the sum of one micro-batch per rank of the group.
void GradientReducer::accumulate(int index) {
  const Bucket& b = bucket(index);
  const BucketRing::Slot& slot = *ring_->find(index);
  const std::int64_t j = summed_[static_cast<std::size_t>(index)]++;
  if (outside_) return accumulate_outside(b, j, slot);
  const Range mine = storage_->sharding().slice(b);
  const TensorView fresh = slot.memory.slice(mine.first, mine.count);
  const TensorView sum = storage_->gradients(b);
  if (reproducible_) {
    if (combine(j, fresh, b)) ops::copy(stream_, fresh, sum);
  } else if (j == 0) {
    ops::copy(stream_, fresh, sum);
  } else {
    ops::add(stream_, sum, fresh, sum);
  }
  if (j + 1 == micro_batches_) reduce_over_replicas(index);
}

// The same numbers are added in the same order as in device memory. In the tree, the carries of j+1
// are added and the next level is stored; without it there is only one sum.
void GradientReducer::accumulate_outside(const Bucket& b, std::int64_t j,
                                         const BucketRing::Slot& slot) {
  const Range mine = storage_->sharding().slice(b);
  const TensorView fresh = slot.memory.slice(mine.first, mine.count);
  const bool last = j + 1 == micro_batches_;
  std::size_t first = OffloadedSums::kSum, count = j > 0 ? 1 : 0, to = OffloadedSums::kSum;
  if (reproducible_) {
    count = static_cast<std::size_t>(std::countr_one(static_cast<std::uint64_t>(j)));
    first = 1;
    if (!last) to = first + count;
  }
  outside_->add(stream_, b, first, count, fresh);
  const std::size_t place = ring_->index(slot);
  Communicator* replicas = storage_->sharding().replicas();
  if (replicas == nullptr || !last) return outside_->store(b, to, fresh, place);
  outside_->join(stream_);
  const std::uint64_t ticket = replica_queue_.start(
      [&]() -> CommRequest& {
        return replicas->start_all_reduce(fresh.data, static_cast<std::size_t>(fresh.count()),
                                          fresh.dtype, ReduceOp::sum, order());
      },
      {.run = [](void* self,
                 int of) { static_cast<GradientReducer*>(self)->store_of_replicas(of); },
       .self = this,
       .bucket = static_cast<int>(place)});
  outside_->reduced(place) = {ticket, &b, fresh};
}

// Called when the slice in a slot is the sum of the step over all data ranks.
void GradientReducer::store_of_replicas(int slot) {
  const auto place = static_cast<std::size_t>(slot);
  const OffloadedSums::Reduced& sum = outside_->reduced(place);
  outside_->add(stream_, *sum.bucket, OffloadedSums::kSum, 0, sum.slice);
  outside_->store(*sum.bucket, OffloadedSums::kSum, sum.slice, place);
}

// Called when this rank's slice of a bucket holds the sum of the step over its group.
void GradientReducer::reduce_over_replicas(int index) {
  Communicator* replicas = storage_->sharding().replicas();
  if (replicas == nullptr) return;
  const TensorView sum = storage_->gradients(bucket(index));
  replica_queue_.start([&]() -> CommRequest& {
    return replicas->start_all_reduce(sum.data, static_cast<std::size_t>(sum.count()), sum.dtype,
                                      ReduceOp::sum, order());
  });
}

std::int64_t GradientReducer::level_size() const {
  return ring_ ? storage_->trained_slices_size() : storage_->parameters().trained_size();
}

TensorView GradientReducer::level(std::size_t l, const Bucket& b) const {
  if (storage_->gradient_place() != MemoryPlace::device) return storage_->gradient_level(l, b);
  const DType type = storage_->precision().gradient;
  const TensorView all{levels_[l].data(), type, {level_size()}};
  return ring_ ? storage_->slice_of(all, b) : all.slice(b.offset, b.size);
}

// A binary counter: after micro-batch j, every trailing one bit of j is a carry. Returns true if
// `fresh` has become the sum of all micro-batches.
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
  replica_queue_.finish_all();
  if (outside_) outside_->finish(stream_);
  return now_seconds() - start;
}

void GradientReducer::add_to(MemoryPlan& plan) const {
  if (ring_) plan.add("gradients, whole buckets", ring_->bytes(), ring_->shared());
  std::size_t bytes = 0;
  for (const Buffer& level : levels_) bytes += level.bytes();
  if (bytes > 0) plan.add("gradients, reproducible tree", bytes);
  if (outside_) outside_->add_to(plan);
}

TiedGradients::TiedGradients(ParameterStorage& storage, Device& device, Communicator& stages,
                             int embedding, HostWindows* windows)
    : storage_(&storage), stages_(&stages), embedding_(embedding), windows_(windows) {
  std::size_t largest = 0;
  for (const Parameter* copy : storage.parameters().copies())
    if (copy->trainable && copy->resident() != copy->tied_to->resident())
      largest = std::max(largest, slice(copy->resident() ? *copy : *copy->tied_to).bytes());
  if (windows_ != nullptr)
    largest = std::min(largest, static_cast<std::size_t>(storage.offload_chunk()) *
                                    size_of(storage.precision().gradient));
  if (largest > 0) memory_ = Buffer(device, largest);
}

TensorView TiedGradients::slice(const Parameter& place) const {
  return storage_->gradients(storage_->bucket_of(place));
}

void TiedGradients::join(const Stream& stream) {
  for (const Parameter* copy : storage_->parameters().copies()) {
    const Parameter& original = *copy->tied_to;
    if (!original.trainable) continue;
    if (copy->resident() && original.resident() && windows_ != nullptr) {
      add_outside(stream, slice(original), slice(*copy));
    } else if (copy->resident() && original.resident()) {
      ops::add(stream, slice(original), slice(*copy), slice(original));
      ops::copy(stream, slice(original), slice(*copy));
    } else if (original.resident()) {
      exchange(stream, original, stages_->size() - 1);
    } else if (copy->resident()) {
      exchange(stream, *copy, embedding_);
    }
  }
}

namespace {

/// Calls work(first, count) for the chunks of `size` elements.
template <class Work>
void in_chunks(std::int64_t size, std::int64_t chunk, const Work& work) {
  for (std::int64_t at = 0; at < size; at += chunk) work(at, std::min(chunk, size - at));
}

}  // namespace

// The windows are free again when the work on them is queued, before the next chunk is read.
void TiedGradients::add_outside(const Stream& stream, const TensorView& a, const TensorView& b) {
  in_chunks(a.count(), storage_->offload_chunk(), [&](std::int64_t first, std::int64_t count) {
    const TensorView to[] = {a.slice(first, count), b.slice(first, count)};
    for (const TensorView& part : to) windows_->start(stream, part.data, part.bytes());
    const TensorView sum{windows_->take(stream), a.dtype, {count}};
    ops::add(stream, sum, {windows_->take(stream), b.dtype, {count}}, sum);
    for (const TensorView& part : to) stream.copy_to_host(part.data, sum.data, sum.bytes());
  });
}

void TiedGradients::exchange(const Stream& stream, const Parameter& place, int peer) {
  const TensorView mine = slice(place);
  if (windows_ == nullptr) return exchange_part(stream, mine, peer);
  in_chunks(mine.count(), storage_->offload_chunk(), [&](std::int64_t first, std::int64_t count) {
    const TensorView part = mine.slice(first, count);
    windows_->start(stream, part.data, part.bytes());
    const TensorView here{windows_->take(stream), part.dtype, part.shape};
    exchange_part(stream, here, peer);
    stream.copy_to_host(part.data, here.data, here.bytes());
  });
}

// Addition of two numbers is commutative, so both ends get the same bits.
void TiedGradients::exchange_part(const Stream& stream, const TensorView& mine, int peer) {
  const TensorView theirs{memory_.data(), mine.dtype, mine.shape};
  const std::array<Message, 2> messages{
      Message{.send = true, .data = mine.data, .bytes = mine.bytes(), .peer = peer},
      Message{.send = false, .data = theirs.data, .bytes = theirs.bytes(), .peer = peer}};
  stages_->start_exchange(messages).wait();
  ops::add(stream, mine, theirs, mine);
}

void TiedGradients::add_to(MemoryPlan& plan) const {
  if (memory_.bytes() > 0) plan.add("gradients, tied weights", memory_.bytes());
}

GradientPath::GradientPath(ParameterStorage& storage, ParameterGatherer& gatherer, Device& device,
                           Communicator& tensor, Communicator& stages, const Options& options)
    : micro_batches_(options.micro_batches),
      // The reproducible tree needs every micro-batch separately, and so does a rank that keeps
      // slices.
      complete_(options.reproducible || storage.sharding().gradients_sharded()),
      reducer_(storage, gatherer, device, options.micro_batches, options.reproducible),
      partial_(storage.parameters(), device, storage.precision().gradient, tensor,
               {.order = options.reproducible ? Summation::tree : Summation::fast,
                .overlapped = !storage.sharding().gradients_sharded()},
               reducer_),
      tied_(storage, device, stages, options.embedding_stage, reducer_.windows()) {
  if (options.before_sums) reducer_.before_sums(options.before_sums);
}

void GradientPath::begin_micro_batch(const Stream& stream, std::int64_t j) {
  partial_.complete_sums();
  reducer_.begin_micro_batch(stream, j);
  partial_.begin_micro_batch(stream, complete_ || j + 1 == micro_batches_);
}

void GradientPath::finish(const Stream& stream) {
  partial_.complete_sums();
  reducer_.finish();
  tied_.join(stream);
}

void GradientPath::add_to(MemoryPlan& plan) const {
  reducer_.add_to(plan);
  partial_.add_to(plan);
  tied_.add_to(plan);
}

}  // namespace choir
