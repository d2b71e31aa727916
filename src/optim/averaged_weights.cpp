#include "src/optim/averaged_weights.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/sums/sums.hpp"
#include "kernels/update/weight_average.hpp"
#include "src/device/cpu_device.hpp"

namespace choir {
namespace {

/// Elements that an exchange moves at a time.
constexpr std::int64_t kChunk = OffloadOptions::kChunk;

std::size_t bytes_of(std::int64_t elements, DType type) {
  return static_cast<std::size_t>(elements) * size_of(type);
}

}  // namespace

AveragedWeights::AveragedWeights(ParameterStorage& storage, Device& device, double decay)
    : storage_(&storage), device_(&device), decay_(decay) {
  const std::int64_t n = storage.trained_slices_size();
  const Precision& precision = storage.precision();
  const DType type = precision.gradient, master = precision.master;
  if (outside()) {
    averages_ = storage.offloaded()->of(OffloadedState::average);
    CHOIR_CHECK(averages_.count() == n, "offloaded averages of {} elements, not {}",
                averages_.count(), n);
  } else {
    memory_ = Buffer(device, bytes_of(n, type));
    averages_ = {memory_.data(), type, {n}};
    if (n > 0) device.zero(memory_.data(), memory_.bytes());
  }
  if (narrow() && outside()) {
    aside_host_ = OffloadMemory::on_host(device, bytes_of(n, master));
    aside_ = {aside_host_.data(), master, {n}};
  } else if (narrow()) {
    aside_memory_ = Buffer(device, bytes_of(n, master));
    aside_ = {aside_memory_.data(), master, {n}};
  }

  std::int64_t channels = 0;
  const auto& norms = storage.parameters().running_statistics();
  for (const RunningStatistics& norm : norms)
    if (norm.weight->resident()) channels += 2 * norm.weight->local_count();
  statistics_memory_ = Buffer(device, bytes_of(channels, precision.statistic));
  if (channels > 0) device.zero(statistics_memory_.data(), statistics_memory_.bytes());
  const TensorView all{statistics_memory_.data(), precision.statistic, {channels}};
  std::int64_t at = 0;
  for (const RunningStatistics& norm : norms) {
    statistics_.emplace_back();
    if (!norm.weight->resident()) continue;
    const std::int64_t c = norm.weight->local_count();
    statistics_.back() = {all.slice(at, c), all.slice(at + c, c)};
    at += 2 * c;
  }

  std::int64_t longest = 0;
  if (!narrow() && !outside())
    for (const Bucket& bucket : storage.parameters().buckets())
      if (bucket.trainable) longest = std::max(longest, storage.sharding().slice(bucket).count);
  scratch_ = Buffer(device, std::max(bytes_of(std::min(longest, kChunk), type),
                                     bytes_of(std::min(channels, kChunk), precision.statistic)));
}

TensorView AveragedWeights::slice_in(const TensorView& slices, const Bucket& bucket) const {
  return storage_->slice_of(slices, bucket);
}

void AveragedWeights::update(const Stream& stream, const ops::StepControl* control) const {
  if (!outside())
    for (const Bucket& bucket : storage_->parameters().buckets())
      if (bucket.trainable)
        update(stream, control, slice_in(averages_, bucket), storage_->masters(bucket));
  std::size_t i = 0;
  for (const RunningStatistics& norm : storage_->parameters().running_statistics()) {
    const Statistics& average = statistics_[i++];
    if (!norm.weight->resident()) continue;
    update(stream, control, average.mean, norm.mean);
    update(stream, control, average.variance, norm.variance);
  }
}

void AveragedWeights::update(const Stream& stream, const ops::StepControl* control,
                             const TensorView& average, const TensorView& weight) const {
  ops::weight_average(
      stream,
      {.average = average, .weight = weight, .decay = decay_, .first = first_, .control = control});
}

void AveragedWeights::swap_on_device(const Stream& stream, const TensorView& a,
                                     const TensorView& b) const {
  const std::int64_t most = static_cast<std::int64_t>(scratch_.bytes() / size_of(a.dtype));
  for (std::int64_t at = 0; at < a.count(); at += most) {
    const TensorView here = a.slice(at, std::min(most, a.count() - at));
    const TensorView there = b.slice(at, here.count());
    stream.copy(scratch_.data(), here.data, here.bytes());
    stream.copy(here.data, there.data, here.bytes());
    stream.copy(there.data, scratch_.data(), here.bytes());
  }
}

void AveragedWeights::exchange_on_device(const Stream& stream, const Bucket& bucket) const {
  const TensorView average = slice_in(averages_, bucket), master = storage_->masters(bucket);
  if (!narrow()) return swap_on_device(stream, average, master);
  const TensorView aside = slice_in(aside_, bucket);
  if (exchanged_) return stream.copy(master.data, aside.data, aside.bytes());
  stream.copy(aside.data, master.data, aside.bytes());
  ops::cast(stream, average, master);
}

// The averages are in host memory, the masters there or on the device.
void AveragedWeights::exchange_outside(const Bucket& bucket) const {
  const TensorView average = slice_in(averages_, bucket), master = storage_->masters(bucket);
  const bool staged = !storage_->masters_outside(bucket) && !device_->host_visible();
  std::vector<std::byte> host(staged ? bytes_of(std::min(kChunk, master.count()), master.dtype)
                                     : 0);
  CpuDevice cpu;
  for (std::int64_t at = 0; at < master.count(); at += kChunk) {
    const std::int64_t count = std::min(kChunk, master.count() - at);
    const TensorView own = master.slice(at, count), other = average.slice(at, count);
    const TensorView here = staged ? TensorView{host.data(), own.dtype, {count}} : own;
    if (staged) device_->copy_to_host(here.data, own.data, own.bytes());
    auto* const bytes = static_cast<std::byte*>(here.data);
    if (!narrow()) {
      std::swap_ranges(bytes, bytes + here.bytes(), static_cast<std::byte*>(other.data));
    } else {
      const TensorView aside = slice_in(aside_, bucket).slice(at, count);
      if (exchanged_) {
        std::memcpy(here.data, aside.data, aside.bytes());
      } else {
        std::memcpy(aside.data, here.data, aside.bytes());
        ops::cast(Stream(cpu), other, here);
      }
    }
    if (staged) device_->copy_from_host(own.data, here.data, own.bytes());
  }
}

void AveragedWeights::exchange(const Stream& stream) {
  if (outside()) stream.synchronize();
  for (const Bucket& bucket : storage_->parameters().buckets()) {
    if (!bucket.trainable) continue;
    outside() ? exchange_outside(bucket) : exchange_on_device(stream, bucket);
  }
  if (outside()) storage_->offloaded()->memory().rest();
  std::size_t i = 0;
  for (const RunningStatistics& norm : storage_->parameters().running_statistics()) {
    const Statistics& average = statistics_[i++];
    if (!norm.weight->resident()) continue;
    swap_on_device(stream, average.mean, norm.mean);
    swap_on_device(stream, average.variance, norm.variance);
  }
  exchanged_ = !exchanged_;
}

TensorView AveragedWeights::average(const Parameter& p) const {
  return storage_->owned_part(slice_in(averages_, storage_->bucket_of(p)), p);
}

void AveragedWeights::add_to(MemoryPlan& plan) const {
  if (memory_.bytes() + statistics_memory_.bytes() > 0)
    plan.add("averaged weights", memory_.bytes() + statistics_memory_.bytes());
  if (scratch_.bytes() + aside_memory_.bytes() > 0)
    plan.add("exchange of averaged weights", scratch_.bytes() + aside_memory_.bytes());
  if (aside_host_.bytes() > 0)
    plan.add("exchange of averaged weights", aside_host_.bytes(), false, MemoryPlace::host);
}

}  // namespace choir
