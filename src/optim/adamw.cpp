#include "src/optim/adamw.hpp"

#include <array>

#include "choir/core/philox.hpp"

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

PhiloxKey moment_rounding_key(std::uint64_t seed) {
  return philox_key(seed, "moment rounding");
}

AdamWUpdater::AdamWUpdater(const UpdateContext& context)
    : storage_(&context.storage),
      settings_(&context.settings),
      rounding_(philox_key(context.seed, "rounding")),
      moment_rounding_(moment_rounding_key(context.seed)) {
  const Precision& precision = storage_->precision();
  const bool rounds = precision.master == DType::bf16 || precision.moment == DType::bf16;
  for (const Bucket& bucket : storage_->parameters().buckets()) {
    scales_.push_back(scaled_ranges(*settings_, bucket));
    spans_.push_back(rounds ? element_spans(bucket)
                            : std::vector<ElementSpan>{{.local = {0, bucket.size}}});
  }
}

std::size_t AdamWUpdater::index_of(const Bucket& bucket) const {
  return static_cast<std::size_t>(&bucket - storage_->parameters().buckets().data());
}

void AdamWUpdater::update(const Stream& stream, const ops::StepControl* control,
                          const UpdatePart& part) {
  update_range(stream, control, part, part.in_bucket);
}

// The decayed range of the bucket comes first.
void AdamWUpdater::update_range(const Stream& stream, const ops::StepControl* control,
                                const UpdatePart& part, const Range& wanted) const {
  const Bucket& bucket = *part.bucket;
  const Range mine = overlap(part.in_bucket, wanted);
  const auto range = [&](const ElementSpan& span, const ScaledRange& scaled, const Range& half,
                         double decay) {
    const auto [from, count] = overlap(overlap(span.local, scaled.local), overlap(half, mine));
    if (count == 0) return;
    const std::int64_t first = from - part.in_bucket.first;
    ops::adamw(stream, {.master = part.master.slice(first, count),
                        .gradient = part.gradient.slice(first, count),
                        .m = part.state(0, first, count),
                        .v = part.state(1, first, count),
                        .copy = part.copy_of(first, count),
                        .beta1 = settings_->beta1,
                        .beta2 = settings_->beta2,
                        .epsilon = settings_->epsilon,
                        .decay = decay,
                        .scale = scaled.scale,
                        .control = control,
                        .rounding = rounding_,
                        .moment_rounding = moment_rounding_,
                        .elements = span.elements.behind(from - span.local.first)});
  };
  for (const ScaledRange& scaled : scales_[index_of(bucket)])
    for (const ElementSpan& span : spans_[index_of(bucket)]) {
      range(span, scaled, {0, bucket.decayed}, settings_->weight_decay);
      range(span, scaled, {bucket.decayed, bucket.size - bucket.decayed}, 0.0);
    }
}

namespace {

class AdamWRule final : public UpdateRule {
 public:
  std::string_view name() const override { return "adamw"; }
  std::string_view about() const override { return "adamw: Loshchilov & Hutter 2019."; }
  Granularity granularity() const override { return Granularity::element; }
  std::span<const std::string_view> moments() const override {
    static constexpr std::array<std::string_view, 2> kNames{"m", "v"};
    return kNames;
  }
  std::span<const std::string_view> keys() const override {
    static constexpr std::array<std::string_view, 3> kKeys{"beta1", "beta2", "moment_precision"};
    return kKeys;
  }
  Traffic traffic(const Precision& precision) const override { return plain_traffic(precision); }
  std::unique_ptr<Updater> make(const UpdateContext& context) const override {
    return std::make_unique<AdamWUpdater>(context);
  }
};

}  // namespace

const UpdateRule& adamw_rule() {
  static const AdamWRule rule;
  return rule;
}

}  // namespace choir
