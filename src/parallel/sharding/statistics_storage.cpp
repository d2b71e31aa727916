#include "choir/parallel/sharding/statistics_storage.hpp"

#include <algorithm>
#include <vector>

#include "choir/nn/parameter.hpp"
#include "kernels/norm/batch_norm.hpp"
#include "kernels/sums/sums.hpp"

namespace choir {
namespace {

/// Tensors begin at multiples of this many elements.
constexpr std::int64_t kAlignment = 64;

std::int64_t aligned(std::int64_t elements) {
  return (elements + kAlignment - 1) / kAlignment * kAlignment;
}

/// Most elements of a message with the records of several norms: 4 MiB in fp32, where the bytes and
/// no longer the latency decide about the time of a call.
constexpr std::int64_t kMessage = std::int64_t{1} << 20;

/// Hands out tensors of one type from a block of memory.
class Allotment {
 public:
  Allotment(void* memory, DType type) : memory_(static_cast<std::byte*>(memory)), type_(type) {}
  /// Elements handed out, with the gaps between them.
  std::int64_t used() const { return used_; }
  TensorView take(const Shape& shape) {
    const TensorView view{memory_ + static_cast<std::size_t>(used_) * size_of(type_), type_, shape};
    used_ += aligned(shape.count());
    return view;
  }

 private:
  std::byte* memory_;
  DType type_;
  std::int64_t used_ = 0;
};

}  // namespace

StatisticsStorage::StatisticsStorage(ParameterSet& parameters, const Precision& precision,
                                     Device& device)
    : parameters_(&parameters), device_(&device), type_(precision.statistic) {
  std::int64_t elements = 0;
  for (const RunningStatistics& norm : parameters.running_statistics()) {
    if (!norm.weight->resident()) continue;
    ++resident_;
    widest_ = std::max(widest_, norm.weight->local_count());
    elements += 2 * aligned(norm.weight->local_count());
  }
  if (resident_ == 0) return;
  values_ = Buffer(device, static_cast<std::size_t>(elements) * size_of(type_));
  Allotment memory(values_.data(), type_);
  for (RunningStatistics& norm : parameters.running_statistics()) {
    if (!norm.weight->resident()) continue;
    norm.mean = memory.take({norm.weight->local_count()});
    norm.variance = memory.take({norm.weight->local_count()});
  }
}

void StatisticsStorage::initialise() {
  if (resident_ == 0) return;
  device_->zero(values_.data(), values_.bytes());
  std::vector<double> ones(static_cast<std::size_t>(widest_), 1.0);
  std::vector<float> narrow(ones.begin(), ones.end());
  const void* const host = type_ == DType::f64 ? static_cast<void*>(ones.data()) : narrow.data();
  for (const RunningStatistics& norm : parameters_->running_statistics())
    if (norm.weight->resident())
      device_->copy_from_host(norm.variance.data, host, norm.variance.bytes());
}

void StatisticsStorage::record(const Sharding& sharding, std::int64_t micro_batches) {
  sharding_ = &sharding;
  micro_batches_ = micro_batches;
  if (resident_ == 0) return;
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<std::size_t>(elements) * size_of(type_);
  };
  std::int64_t elements = aligned(micro_batches);
  for (const RunningStatistics& norm : parameters_->running_statistics())
    if (norm.weight->resident())
      elements += aligned(2 * micro_batches * norm.weight->local_count());
  records_ = Buffer(*device_, bytes(elements));
  Allotment memory(records_.data(), type_);
  const TensorView frames = memory.take({micro_batches});
  for (RunningStatistics& norm : parameters_->running_statistics()) {
    if (!norm.weight->resident()) continue;
    norm.frames = frames;
    norm.records = memory.take({micro_batches, 2, norm.weight->local_count()});
  }
  if (sharding.data_ranks() == 1) return;
  const std::int64_t all = micro_batches * sharding.data_ranks();
  std::int64_t size = 0, largest = 0;  // of the records of a message
  for (RunningStatistics& norm : parameters_->running_statistics()) {
    if (!norm.weight->resident()) continue;
    const std::int64_t more = aligned(2 * all * norm.weight->local_count());
    if (messages_.empty() || size + more > kMessage) messages_.emplace_back(), size = 0;
    messages_.back().push_back(&norm);
    largest = std::max(largest, size += more);
  }
  shared_ = Buffer(*device_, bytes(aligned(all) + largest));
}

void StatisticsStorage::insert(const Stream& stream, const TensorView& own,
                               const TensorView& all) const {
  const std::int64_t first = sharding_->first_micro_batch(micro_batches_);
  const std::int64_t stride = sharding_->micro_batch_stride();
  const std::int64_t run = stride == 1 ? micro_batches_ : 1;
  for (std::int64_t j = 0; j < micro_batches_; j += run)
    stream.copy(all.slice(first + j * stride, run).data, own.slice(j, run).data,
                own.slice(j, run).bytes());
}

void StatisticsStorage::update(const Stream& stream, const ops::StepControl* step) {
  if (resident_ == 0) return;
  CHOIR_CHECK(sharding_ != nullptr, "running statistics without records of the micro-batches");
  const auto update_one = [&](const RunningStatistics& norm, const TensorView& records,
                              const TensorView& frames) {
    ops::update_running_statistics(stream, {.records = records,
                                            .frames = frames,
                                            .mean = norm.mean,
                                            .variance = norm.variance,
                                            .control = step});
  };
  const bool alone = sharding_->data_ranks() == 1;
  for (const RunningStatistics& norm : parameters_->running_statistics())
    if (alone && norm.weight->resident()) update_one(norm, norm.records, norm.frames);
  if (alone) return;
  const std::int64_t all = micro_batches_ * sharding_->data_ranks();
  for (const std::vector<const RunningStatistics*>& message : messages_) {
    Allotment memory(shared_.data(), type_);
    const TensorView frames = memory.take({all});
    const bool first = &message == &messages_.front();  // the frames are in the first one
    const std::int64_t begin = first ? 0 : memory.used();
    std::int64_t end = memory.used();
    for (const RunningStatistics* norm : message) end += aligned(2 * all * norm->mean.count());
    const TensorView sums = TensorView{shared_.data(), type_, {end}}.slice(begin, end - begin);
    // Every micro-batch has its own entry, which is zero on the other ranks, so the sum over ranks
    // is exact.
    ops::zero(stream, sums);
    if (first) insert(stream, message.front()->frames, frames);
    const auto each = [&](const auto& body) {
      Allotment places(shared_.data(), type_);
      places.take({all});
      for (const RunningStatistics* norm : message)
        body(*norm, places.take({all, 2, norm->mean.count()}));
    };
    each([&](const RunningStatistics& norm, const TensorView& place) {
      insert(stream, norm.records, place);
    });
    sharding_->data().all_reduce(sums.data, static_cast<std::size_t>(sums.count()), type_,
                                 ReduceOp::sum);
    each([&](const RunningStatistics& norm, const TensorView& records) {
      update_one(norm, records, frames);
    });
  }
}

void StatisticsStorage::add_to(MemoryPlan& plan) const {
  const std::size_t bytes = values_.bytes() + records_.bytes() + shared_.bytes();
  if (bytes > 0) plan.add("running statistics", bytes);
}

}  // namespace choir
