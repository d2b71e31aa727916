#include "choir/nn/side_gradient.hpp"

#include "choir/ops/reduce.hpp"

namespace choir {

SideGradient::SideGradient(Pass& pass, Parameter* parameter, Frozen frozen)
    : parameter_(parameter && parameter->trainable ? parameter : nullptr) {
  const bool discards = parameter && !parameter_ && frozen == Frozen::discarded;
  if (!discards && !(parameter_ && pass.postpones_weight_gradients())) return;
  own_ = pass.allocate_statistic(parameter->local, "small gradient");
  ops::zero(pass.stream(), own_);
}

TensorView SideGradient::view() const {
  if (!parameter_ && own_.empty()) return {};
  return own_.empty() ? parameter_->gradient : static_cast<const TensorView&>(own_);
}

void SideGradient::finish(Pass& pass) {
  if (parameter_ && !own_.empty())
    pass.weight_gradient({&SideGradient::add, parameter_, std::move(own_), {}});
}

void SideGradient::add(Pass& pass, void* parameter, const Tensor& sums, const Tensor&) {
  const TensorView& total = static_cast<Parameter*>(parameter)->gradient;
  ops::add(pass.stream(), total, sums, total);
}

}  // namespace choir
