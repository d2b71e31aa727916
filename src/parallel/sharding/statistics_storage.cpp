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

/// Hands out tensors of one type from a block of memory.
class Allotment {
 public:
  Allotment(void* memory, DType type) : memory_(static_cast<std::byte*>(memory)), type_(type) {}
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
  const std::int64_t all = micro_batches * sharding.data_ranks();
  if (sharding.data_ranks() > 1)
    shared_ = Buffer(*device_, bytes(aligned(all) + aligned(2 * all * widest_)));
}

// Every micro-batch has its own entry, which is zero on the other ranks, so the sum over ranks is
// exact.
TensorView StatisticsStorage::gathered(const Stream& stream, const TensorView& own,
                                       const TensorView& all) const {
  ops::zero(stream, all);
  const std::int64_t first = sharding_->first_micro_batch(micro_batches_);
  const std::int64_t stride = sharding_->micro_batch_stride();
  const std::int64_t run = stride == 1 ? micro_batches_ : 1;
  for (std::int64_t j = 0; j < micro_batches_; j += run)
    stream.copy(all.slice(first + j * stride, run).data, own.slice(j, run).data,
                own.slice(j, run).bytes());
  sharding_->data().all_reduce(all.data, static_cast<std::size_t>(all.count()), type_,
                               ReduceOp::sum);
  return all;
}

void StatisticsStorage::update(const Stream& stream, const ops::StepControl* step) {
  if (resident_ == 0) return;
  CHOIR_CHECK(sharding_ != nullptr, "running statistics without records of the micro-batches");
  const bool alone = sharding_->data_ranks() == 1;
  const std::int64_t all = micro_batches_ * sharding_->data_ranks();
  TensorView frames;
  for (RunningStatistics& norm : parameters_->running_statistics()) {
    if (!norm.weight->resident()) continue;
    TensorView records = norm.records;
    if (alone) {
      frames = norm.frames;
    } else {
      Allotment memory(shared_.data(), type_);
      const TensorView all_frames = memory.take({all});
      if (frames.empty()) frames = gathered(stream, norm.frames, all_frames);
      records = gathered(stream, norm.records, memory.take({all, 2, norm.mean.count()}));
    }
    ops::update_running_statistics(stream, {.records = records,
                                            .frames = frames,
                                            .mean = norm.mean,
                                            .variance = norm.variance,
                                            .control = step});
  }
}

void StatisticsStorage::add_to(MemoryPlan& plan) const {
  const std::size_t bytes = values_.bytes() + records_.bytes() + shared_.bytes();
  if (bytes > 0) plan.add("running statistics", bytes);
}

}  // namespace choir
