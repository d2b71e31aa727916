#include "choir/optim/adamw_optimizer.hpp"

#include "choir/device/profile_range.hpp"
#include "choir/ops/adamw.hpp"

namespace choir {

AdamWOptimizer::AdamWOptimizer(ParameterStorage& storage, Device& device, const Options& options,
                               std::uint64_t seed)
    : storage_(&storage), options_(options), rounding_(philox_key(seed, "rounding")) {
  const std::int64_t n = storage.slices_size();
  const DType type = storage.precision().gradient;
  memory_ = Buffer(device, 2 * static_cast<std::size_t>(n) * size_of(type));
  moments_ = {memory_.data(), type, {2 * n}};
  device.zero(memory_.data(), memory_.bytes());
  const bool rounds = storage.precision().master == DType::bf16;
  for (const Bucket& bucket : storage.parameters().buckets())
    spans_.push_back(rounds ? element_spans(bucket)
                            : std::vector<ElementSpan>{{.local = {0, bucket.size}}});
}

TensorView AdamWOptimizer::moment(std::int64_t which, const Parameter& p) const {
  return storage_->owned_part(moment(which, storage_->bucket_of(p)), p);
}

TensorView AdamWOptimizer::moment(std::int64_t which, const Bucket& bucket) const {
  const std::int64_t n = storage_->slices_size();
  return storage_->slice_of(moments_.slice(which * n, n), bucket);
}

void AdamWOptimizer::step(const Stream& stream, const ops::StepControl* control,
                          const std::function<void(const Bucket&)>& updated) {
  const ProfileRange range(stream, "adamw");
  auto spans = spans_.begin();
  for (const Bucket& bucket : storage_->parameters().buckets()) {
    const Range mine = storage_->sharding().slice(bucket);
    const TensorView copies = storage_->copies(bucket);
    const auto update = [&](const ElementSpan& span, const Range& part, double decay) {
      const auto [from, count] = overlap(span.local, overlap(part, mine));
      if (count == 0) return;
      const std::int64_t first = from - mine.first;
      ops::adamw(stream, {.master = storage_->masters(bucket).slice(first, count),
                          .gradient = storage_->gradients(bucket).slice(first, count),
                          .m = moment(0, bucket).slice(first, count),
                          .v = moment(1, bucket).slice(first, count),
                          .copy = copies.empty() ? copies : copies.slice(first, count),
                          .beta1 = options_.beta1,
                          .beta2 = options_.beta2,
                          .epsilon = options_.epsilon,
                          .decay = decay,
                          .control = control,
                          .rounding = rounding_,
                          .elements = span.elements.behind(from - span.local.first)});
    };
    for (const ElementSpan& span : *spans++) {
      update(span, {0, bucket.decayed}, options_.weight_decay);
      update(span, {bucket.decayed, bucket.size - bucket.decayed}, 0.0);
    }
    if (updated) updated(bucket);
  }
}

}  // namespace choir
