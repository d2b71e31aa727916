#include "src/optim/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "choir/device/device.hpp"
#include "choir/nn/parameter.hpp"
#include "kernels/update/adamw.hpp"
#include "kernels/update/lars.hpp"

namespace choir {
namespace {

/// True if the run continues the only row of the span, or would with the padding between them.
bool joins_row(const ElementSpan& span, const Range& local, std::int64_t number) {
  return span.elements.width == 0 && number - span.elements.first == local.first - span.local.first;
}

/// True if the run is the next of rows with the same width and distance.
bool joins_rows(const ElementSpan& span, const Range& local, std::int64_t number) {
  const ops::ElementNumbers& e = span.elements;
  if (local.first != span.local.end()) return false;
  if (e.width == 0) return local.count == span.local.count && number >= e.first + local.count;
  return local.count == e.width && number == e.first + span.local.count / e.width * e.stride;
}

}  // namespace

std::vector<ElementSpan> element_spans(const Bucket& bucket) {
  std::vector<ElementSpan> spans;
  for (const Parameter* p : bucket.parameters)
    for (const ShardRun& run : shard_runs(*p)) {
      const Range local{p->offset + run.local, run.count};
      const std::int64_t number = p->position + run.logical;
      if (spans.empty() ||
          !(joins_row(spans.back(), local, number) || joins_rows(spans.back(), local, number))) {
        spans.push_back({local, {.first = number}});
        continue;
      }
      ElementSpan& span = spans.back();
      if (!joins_row(span, local, number) && span.elements.width == 0)
        span.elements = {.first = span.elements.first,
                         .width = local.count,
                         .stride = number - span.elements.first};
      span.local.count = local.end() - span.local.first;
    }
  return spans;
}

double LrSchedule::at(std::int64_t step) const {
  if (step < warmup_steps)
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps + 1);
  if (kind == Kind::constant) return peak;
  if (kind == Kind::inverse_sqrt) {
    const auto from = static_cast<double>(std::max<std::int64_t>(1, warmup_steps));
    const auto now = static_cast<double>(std::max<std::int64_t>(1, step));
    return std::max(floor, peak * std::sqrt(std::min(1.0, from / now)));
  }
  if (step >= decay_steps) return floor;
  const double progress =
      static_cast<double>(step - warmup_steps) / static_cast<double>(decay_steps - warmup_steps);
  const double left =
      kind == Kind::linear ? 1.0 - progress : 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return floor + left * (peak - floor);
}

UpdateRule update_rule_of(const std::string& name) {
  CHOIR_CHECK(name == "adamw" || name == "lars", "unknown optimizer '{}'", name);
  return name == "adamw" ? UpdateRule::adamw : UpdateRule::lars;
}

std::span<const std::string_view> moment_names(UpdateRule rule) {
  static constexpr std::array<std::string_view, 2> kAdamW{"m", "v"};
  static constexpr std::array<std::string_view, 1> kLars{"momentum"};
  if (rule == UpdateRule::lars) return kLars;
  return kAdamW;
}

Optimizer::Optimizer(ParameterStorage& storage, Device& device, const Options& options,
                     std::uint64_t seed)
    : storage_(&storage), options_(options), rounding_(philox_key(seed, "rounding")) {
  const bool rounds = storage.precision().master == DType::bf16;
  for (const Bucket& bucket : storage.parameters().buckets()) {
    const bool outside = bucket.trainable && storage.masters_outside(bucket);
    CHOIR_CHECK(options.rule == UpdateRule::adamw || !(rounds || outside),
                "LARS with bf16 masters, or masters outside of the device");
    scales_.push_back(scaled_ranges(bucket));
    spans_.push_back(rounds ? element_spans(bucket)
                            : std::vector<ElementSpan>{{.local = {0, bucket.size}}});
  }
  if (const OffloadedState* outside = storage.offloaded()) {
    moments_ = {outside->of(OffloadedState::first_moment),
                outside->of(OffloadedState::second_moment)};
    std::vector<Range> flat;
    for (const Bucket& bucket : storage.parameters().buckets()) {
      if (!bucket.trainable) continue;
      const std::int64_t begin = bucket.offset / storage.sharding().slices();
      const std::int64_t size = storage.sharding().slice(bucket).count;
      for (std::int64_t at = 0; at < size; at += outside->chunk()) {
        chunks_.push_back({at, std::min(outside->chunk(), size - at)});
        flat.push_back({begin + at, chunks_.back().count});
      }
    }
    state_ = StateStream::make(*outside, device, std::move(flat));
    return;
  }
  const std::int64_t n = storage.trained_slices_size();
  const DType type = storage.precision().gradient;
  const auto moments = std::ssize(moment_names());
  memory_ = Buffer(device, static_cast<std::size_t>(moments * n) * size_of(type));
  const TensorView all{memory_.data(), type, {moments * n}};
  for (std::int64_t i = 0; i < moments; ++i)
    moments_[static_cast<std::size_t>(i)] = all.slice(i * n, n);
  if (n > 0) device.zero(memory_.data(), memory_.bytes());
}

TensorView Optimizer::moment(std::size_t which, const Parameter& p) const {
  return storage_->owned_part(moment_of(which, storage_->bucket_of(p)), p);
}

TensorView Optimizer::moment_of(std::size_t which, const Bucket& bucket) const {
  if (moments_[which].empty()) return {};
  return storage_->slice_of(moments_[which], bucket);
}

// Gaps between parameters, where everything is zero, belong to the range before them.
std::vector<Optimizer::ScaledRange> Optimizer::scaled_ranges(const Bucket& bucket) const {
  std::vector<ScaledRange> ranges{{{0, bucket.size}, 1}};
  if (!options_.scale) return ranges;
  for (const Parameter* p : bucket.parameters) {
    const double scale = options_.scale(*p);
    if (p->offset == 0) ranges.back().scale = scale;
    if (ranges.back().scale == scale) continue;
    ranges.back().local.count = p->offset - ranges.back().local.first;
    ranges.push_back({{p->offset, bucket.size - p->offset}, scale});
  }
  return ranges;
}

std::size_t Optimizer::index_of(const Bucket& bucket) const {
  return static_cast<std::size_t>(&bucket - storage_->parameters().buckets().data());
}

void Optimizer::add_to(MemoryPlan& plan) const {
  if (state_) return state_->add_to(plan);
  plan.add("optimizer moments", memory_.bytes());
}

void Optimizer::step(const Stream& stream, const ops::StepControl* control,
                     const TrustRatios* ratios, const std::function<void(const Bucket&)>& updated) {
  const bool lars = options_.rule == UpdateRule::lars;
  CHOIR_CHECK(lars == (ratios != nullptr), "only LARS takes trust ratios, and it needs them");
  const ProfileRange range(stream, lars ? "lars" : "adamw");
  const Decided decided{control, ratios};
  if (state_) state_->begin(stream);
  std::size_t chunk = 0;
  for (const Bucket& bucket : storage_->parameters().buckets()) {
    if (!bucket.trainable) continue;
    const std::int64_t size = storage_->sharding().slice(bucket).count;
    if (state_)
      for (std::int64_t end = 0; end < size; end = chunks_[chunk - 1].end())
        update_outside(stream, decided, bucket, chunks_[chunk++]);
    else
      update(stream, decided,
             {.bucket = &bucket,
              .first = 0,
              .count = size,
              .master = storage_->masters(bucket),
              .m = moment_of(0, bucket),
              .v = moment_of(1, bucket),
              .copy = storage_->copies(bucket)});
    if (updated) updated(bucket);
  }
  if (state_) state_->end();
}

// Fields that are not outside are updated in their resident memory.
void Optimizer::update_outside(const Stream& stream, const Decided& step, const Bucket& bucket,
                               const Range& chunk) {
  const OffloadedState& outside = *storage_->offloaded();
  const StateStream::Window window = state_->acquire();
  const auto pick = [&](OffloadedState::Field field, const TensorView& resident) {
    if (outside.has(field)) return window[static_cast<std::size_t>(field)];
    return resident.empty() ? resident : resident.slice(chunk.first, chunk.count);
  };
  update(stream, step,
         {.bucket = &bucket,
          .first = chunk.first,
          .count = chunk.count,
          .master = pick(OffloadedState::master, storage_->masters(bucket)),
          .m = pick(OffloadedState::first_moment, {}),
          .v = pick(OffloadedState::second_moment, {}),
          .copy = pick(OffloadedState::value, storage_->copies(bucket))});
  state_->release();
}

void Optimizer::update(const Stream& stream, const Decided& step, const Part& part) {
  options_.rule == UpdateRule::lars ? lars(stream, step, part) : adamw(stream, step, part);
}

Range Optimizer::in_bucket(const Part& part) const {
  return {storage_->sharding().slice(*part.bucket).first + part.first, part.count};
}

// Updates tensor by tensor, since each has its own ratio; gaps between them stay zero.
void Optimizer::lars(const Stream& stream, const Decided& step, const Part& part) {
  const Bucket& bucket = *part.bucket;
  const Range mine = in_bucket(part);
  const TensorView gradient = storage_->gradients(bucket).slice(part.first, part.count);
  for (const Parameter* p : bucket.parameters) {
    const auto [from, count] = overlap({p->offset, p->local_count()}, mine);
    if (count == 0) continue;
    const std::int64_t first = from - mine.first;
    ops::lars(stream, {.master = part.master.slice(first, count),
                       .gradient = gradient.slice(first, count),
                       .velocity = part.m.slice(first, count),
                       .copy = part.copy.empty() ? part.copy : part.copy.slice(first, count),
                       .momentum = options_.momentum,
                       .scale = options_.scale ? options_.scale(*p) : 1,
                       .ratio = p->decay ? step.ratios->of(*p) : nullptr,
                       .control = step.control});
  }
}

// The decayed range of the bucket comes first.
void Optimizer::adamw(const Stream& stream, const Decided& step, const Part& part) {
  const Bucket& bucket = *part.bucket;
  const Range mine = in_bucket(part);
  const TensorView gradient = storage_->gradients(bucket).slice(part.first, part.count);
  const auto range = [&](const ElementSpan& span, const ScaledRange& scaled, const Range& half,
                         double decay) {
    const auto [from, count] = overlap(overlap(span.local, scaled.local), overlap(half, mine));
    if (count == 0) return;
    const std::int64_t first = from - mine.first;
    ops::adamw(stream, {.master = part.master.slice(first, count),
                        .gradient = gradient.slice(first, count),
                        .m = part.m.slice(first, count),
                        .v = part.v.slice(first, count),
                        .copy = part.copy.empty() ? part.copy : part.copy.slice(first, count),
                        .beta1 = options_.beta1,
                        .beta2 = options_.beta2,
                        .epsilon = options_.epsilon,
                        .decay = decay,
                        .scale = scaled.scale,
                        .control = step.control,
                        .rounding = rounding_,
                        .elements = span.elements.behind(from - span.local.first)});
  };
  for (const ScaledRange& scaled : scales_[index_of(bucket)])
    for (const ElementSpan& span : spans_[index_of(bucket)]) {
      range(span, scaled, {0, bucket.decayed}, options_.weight_decay);
      range(span, scaled, {bucket.decayed, bucket.size - bucket.decayed}, 0.0);
    }
}

}  // namespace choir
