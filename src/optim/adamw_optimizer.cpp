#include "choir/optim/adamw_optimizer.hpp"

#include "choir/device/profile_range.hpp"
#include "choir/ops/adamw.hpp"

namespace choir {

AdamWOptimizer::AdamWOptimizer(ParameterStorage& storage, Device& device, const Options& options,
                               std::uint64_t seed)
    : storage_(&storage), options_(options), rounding_(philox_key(seed, "rounding")) {
  const std::int64_t n = storage.parameters().flat_size();
  const DType type = storage.precision().gradient;
  memory_ = Buffer(device, 2 * static_cast<std::size_t>(n) * size_of(type));
  moments_ = {memory_.data(), type, {2 * n}};
  device.zero(memory_.data(), memory_.bytes());
}

TensorView AdamWOptimizer::moment(std::int64_t which, const Parameter& p) const {
  const std::int64_t bucket =
      storage_->parameters().buckets()[static_cast<std::size_t>(p.bucket)].offset;
  const std::int64_t first = which * storage_->parameters().flat_size() + bucket + p.offset;
  return moments_.slice(first, p.local_count()).reshaped(p.local);
}

void AdamWOptimizer::step(const Stream& stream, const ops::StepControl* control) {
  const ProfileRange range(stream, "adamw");
  const std::int64_t n = storage_->parameters().flat_size();
  for (const Bucket& bucket : storage_->parameters().buckets()) {
    const auto update = [&](std::int64_t first, std::int64_t count, double decay) {
      if (count == 0) return;
      const TensorView copies = storage_->copies(bucket);
      ops::adamw(stream, {.master = storage_->masters(bucket).slice(first, count),
                          .gradient = storage_->gradients(bucket).slice(first, count),
                          .m = moments_.slice(bucket.offset + first, count),
                          .v = moments_.slice(n + bucket.offset + first, count),
                          .copy = copies.empty() ? copies : copies.slice(first, count),
                          .beta1 = options_.beta1,
                          .beta2 = options_.beta2,
                          .epsilon = options_.epsilon,
                          .decay = decay,
                          .control = control,
                          .rounding = rounding_,
                          .first_element = bucket.position + first});
    };
    update(0, bucket.decayed, options_.weight_decay);
    update(bucket.decayed, bucket.size - bucket.decayed, 0.0);
  }
}

}  // namespace choir
