#include "choir/nn/dropout.hpp"

#include "choir/ops/dropout.hpp"

namespace choir {
namespace {

void run(Pass& pass, const std::string& name, double probability, const Tensor& in,
         const Tensor& out) {
  ops::dropout(pass.stream(), {.in = in,
                               .out = out,
                               .probability = probability,
                               .key = philox_key(pass.seed(), name),
                               .first_sample = pass.first_sample(),
                               .first_sample_on_device = pass.first_sample_on_device(),
                               .tokens = pass.sequence().tokens,
                               .first_position = pass.sequence().first_position});
}

}  // namespace

void Dropout::forward(Pass& pass, Tensor& x) const {
  if (probability_ > 0 && pass.training()) run(pass, name_, probability_, x, x);
}

Tensor Dropout::backward(Pass& pass, const Tensor& d_y) const {
  if (probability_ == 0) return d_y;
  Tensor d_x = pass.allocate(d_y.shape, "dropout gradient");
  run(pass, name_, probability_, d_y, d_x);
  return d_x;
}

}  // namespace choir
