#include "choir/parallel/gradient_reducer.hpp"

#include <bit>

#include "choir/core/clock.hpp"
#include "choir/ops/reduce.hpp"

namespace choir {

GradientReducer::GradientReducer(ParameterStorage& storage, Device& device, Communicator& data,
                                 std::int64_t micro_batches, bool reproducible)
    : storage_(&storage),
      data_(&data),
      stream_(device),
      micro_batches_(micro_batches),
      reproducible_(reproducible) {
  in_flight_.reserve(storage.parameters().buckets().size());
  if (!reproducible) return;
  CHOIR_CHECK(std::has_single_bit(static_cast<std::uint64_t>(micro_batches)),
              "reproducible mode with {} micro-batches a rank", micro_batches);
  for (std::int64_t held = 1; held < micro_batches; held *= 2)
    levels_.emplace_back(device, storage.all_gradients().bytes());
}

void GradientReducer::begin_micro_batch(const Stream& stream, std::int64_t j) {
  stream_ = stream;
  current_ = j;
  if (j == 0 || reproducible_) storage_->begin_gradients(stream);
}

void GradientReducer::gradients_ready(int index) {
  const Bucket& bucket = storage_->parameters().buckets()[static_cast<std::size_t>(index)];
  if (reproducible_) combine(bucket);
  if (current_ + 1 < micro_batches_ || data_->size() == 1) return;
  if (in_flight_.size() == static_cast<std::size_t>(Communicator::kMaxInFlight)) {
    in_flight_.front()->wait();
    in_flight_.erase(in_flight_.begin());
  }
  for (CommRequest* earlier : in_flight_) earlier->test();  // MPI moves only when asked
  const TensorView sum = storage_->gradients(bucket);
  in_flight_.push_back(&data_->start_all_reduce(sum.data, static_cast<std::size_t>(sum.count()),
                                                sum.dtype, ReduceOp::sum,
                                                reproducible_ ? Summation::tree : Summation::fast));
}

// The binary counter: after micro-batch j, every trailing one bit of j is a carry.
void GradientReducer::combine(const Bucket& bucket) {
  const TensorView fresh = storage_->gradients(bucket);
  const auto level = [&](std::size_t l) {
    const TensorView all = storage_->all_gradients();
    return TensorView{levels_[l].data(), all.dtype, all.shape}.slice(bucket.offset, bucket.size);
  };
  std::size_t l = 0;
  for (; (current_ >> l) & 1; ++l) ops::add(stream_, level(l), fresh, fresh);
  if (current_ + 1 < micro_batches_) ops::copy(stream_, fresh, level(l));
}

double GradientReducer::finish() {
  const double start = now_seconds();
  for (CommRequest* request : in_flight_) request->wait();
  in_flight_.clear();
  return now_seconds() - start;
}

void GradientReducer::add_to(MemoryPlan& plan) const {
  std::size_t bytes = 0;
  for (const Buffer& level : levels_) bytes += level.bytes();
  if (bytes > 0) plan.add("gradients, reproducible tree", bytes);
}

}  // namespace choir
