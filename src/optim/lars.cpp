#include "src/optim/lars.hpp"

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

}  // namespace choir
