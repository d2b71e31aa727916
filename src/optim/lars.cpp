#include "src/optim/lars.hpp"

#include <array>
#include <vector>

namespace choir {

TrustRatios::TrustRatios(const ParameterStorage& storage, Device& device, const Options& options)
    : options_(options),
      weights_(storage, device, {.exact = options.exact, .of = TrainedNorm::Of::masters}) {
  std::vector<std::int64_t> begins;
  for (const TrainedNorm::Tensor& tensor : weights_.tensors()) {
    number_.emplace(tensor.name, std::ssize(begins));
    begins.push_back(tensor.first_sum);
  }
  const std::int64_t tensors = std::ssize(begins);
  begins.push_back(weights_.sums().count());
  memory_ = Buffer(device, static_cast<std::size_t>(3 * tensors + 1) * sizeof(double));
  ratios_ = {memory_.data(), DType::f64, {2 * tensors}};
  begins_ = {ratios_.as<double>() + 2 * tensors, DType::i64, {tensors + 1}};
  device.zero(memory_.data(), memory_.bytes());
  device.copy_from_host(begins_.data, begins.data(), begins_.bytes());
}

void TrustRatios::compute(const Stream& stream, std::span<Communicator* const> holders,
                          const TrainedNorm& gradient, int place, const ops::StepControl* control) {
  weights_.compute(stream, holders);
  ops::trust_ratios(stream, {.weight_sums = weights_.sums(),
                             .gradient_sums = gradient.sums(place),
                             .begins = begins_,
                             .ratios = ratios_,
                             .coefficient = options_.coefficient,
                             .decay = options_.decay,
                             .epsilon = options_.epsilon,
                             .control = control});
}

const double* TrustRatios::of(const Parameter& p) const {
  const auto found = number_.find(p.tied_to != nullptr ? p.tied_to->name : p.name);
  CHOIR_CHECK(found != number_.end(), "{} has no trust ratio", p.name);
  return ratios_.as<double>() + 2 * found->second;
}

void TrustRatios::add_to(MemoryPlan& plan) const {
  weights_.add_to(plan);
  plan.add("trust ratios", memory_.bytes());
}

namespace {

class LarsUpdater final : public Updater {
 public:
  explicit LarsUpdater(const UpdateContext& context)
      : settings_(&context.settings),
        ratios_(context.storage, context.device,
                {.coefficient = context.settings.trust_coefficient,
                 .decay = context.settings.weight_decay,
                 .epsilon = context.settings.epsilon,
                 .exact = context.exact}) {}

  void prepare(const Stream& stream, const UpdateInputs& inputs) override {
    ratios_.compute(stream, inputs.holders, *inputs.gradient, inputs.place, inputs.control);
  }

  // Updates tensor by tensor, since each has its own ratio; gaps between them stay zero.
  void update(const Stream& stream, const ops::StepControl* control,
              const UpdatePart& part) override {
    for (const Parameter* p : part.bucket->parameters) {
      const auto [from, count] = overlap({p->offset, p->local_count()}, part.in_bucket);
      if (count == 0) continue;
      const std::int64_t first = from - part.in_bucket.first;
      ops::lars(stream, {.master = part.master.slice(first, count),
                         .gradient = part.gradient.slice(first, count),
                         .velocity = part.state(0, first, count),
                         .copy = part.copy_of(first, count),
                         .momentum = settings_->momentum,
                         .scale = settings_->scale_of(*p),
                         .ratio = p->decay ? ratios_.of(*p) : nullptr,
                         .control = control});
    }
  }

  void add_to(MemoryPlan& plan) const override { ratios_.add_to(plan); }

 private:
  const UpdateSettings* settings_;
  TrustRatios ratios_;
};

class LarsRule final : public UpdateRule {
 public:
  std::string_view name() const override { return "lars"; }
  std::string_view about() const override {
    return "lars: You et al. 2017, momentum with a separate learning rate for every matrix, for "
           "very large batches.";
  }
  Granularity granularity() const override { return Granularity::tensor; }
  std::span<const std::string_view> moments() const override {
    static constexpr std::array<std::string_view, 1> kNames{"momentum"};
    return kNames;
  }
  std::span<const std::string_view> keys() const override {
    static constexpr std::array<std::string_view, 2> kKeys{"momentum", "trust_coefficient"};
    return kKeys;
  }
  std::string_view needs_wide_masters() const override { return "weights of more than 16 bits"; }
  std::string_view needs_masters_on_device() const override {
    return "the norms of all weights before the update";
  }
  Traffic traffic(const Precision& precision) const override {
    Traffic traffic = plain_traffic(precision);
    traffic.norms += static_cast<double>(size_of(precision.master));
    return traffic;
  }
  std::unique_ptr<Updater> make(const UpdateContext& context) const override {
    return std::make_unique<LarsUpdater>(context);
  }
};

}  // namespace

const UpdateRule& lars_rule() {
  static const LarsRule rule;
  return rule;
}

}  // namespace choir
