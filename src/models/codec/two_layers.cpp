#include "src/models/codec/two_layers.hpp"

#include <cmath>

#include "choir/ops/activation.hpp"

namespace choir {
namespace {

constexpr ops::Activation kCodecActivation = ops::Activation::gelu;

double unit_std(std::int64_t inputs) {
  return 1 / std::sqrt(static_cast<double>(inputs));
}

Tensor activated(Pass& pass, const Tensor& before) {
  Tensor active = pass.allocate(before.shape, "activation");
  ops::activation_forward(pass.stream(), kCodecActivation, before, active);
  return active;
}

}  // namespace

TwoLayers::TwoLayers(ParameterSet& parameters, const std::string& name, const Options& o)
    : recompute_(o.recompute),
      input_(parameters, name + ".input", o.inputs, o.hidden,
             {.init_std = unit_std(o.inputs),
              .weight_shard = {.split_dim = 0},
              .bias_shard = {.split_dim = 0}}),
      output_(parameters, name + ".output", o.hidden, o.outputs,
              {.init_std = unit_std(o.hidden), .weight_shard = {.split_dim = 1}}) {}

Tensor TwoLayers::hidden(Pass& pass, const Tensor& x) {
  const Tensor before = input_.forward(pass, x);
  pass.save(before);
  return activated(pass, before);
}

Tensor TwoLayers::forward(Pass& pass, const Tensor& x) {
  if (recompute_ != Recompute::full)
    return output_.forward(pass, hidden(pass, x), recompute_ == Recompute::none);
  Tensor y;
  {
    const Pass::Unsaved again(pass);
    y = output_.forward(pass, hidden(pass, x));
  }
  pass.save(x);
  return y;
}

Tensor TwoLayers::backward(Pass& pass, const Tensor& d_y) {
  if (recompute_ == Recompute::full) {
    pass.save(hidden(pass, pass.pop()));
  } else if (recompute_ == Recompute::selective) {
    const Tensor before = pass.pop();
    pass.save(before);
    pass.save(activated(pass, before));
  }
  const Tensor d_active = output_.backward(pass, d_y);
  const Tensor before = pass.pop();
  const Tensor d_before =
      d_active.sole_owner() ? d_active : pass.allocate(before.shape, "activation gradient");
  ops::activation_backward(pass.stream(), kCodecActivation, before, d_active, d_before);
  return input_.backward(pass, d_before);
}

}  // namespace choir
