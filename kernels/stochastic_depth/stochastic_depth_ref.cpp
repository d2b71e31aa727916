#include "kernels/stochastic_depth/stochastic_depth.hpp"

namespace choir::ref {

void stochastic_depth_forward(const ops::StochasticDepth& args, const TensorView& x,
                              const TensorView& f, const TensorView& out) {
  for (std::int64_t i = 0; i < x.count(); ++i) {
    const double a = depth_factor(args, i / x.shape.back());
    out.as<double>()[i] = (1 - a) * x.as<double>()[i] + a * f.as<double>()[i];
  }
}

void stochastic_depth_backward(const ops::StochasticDepth& args, const TensorView& d_out,
                               const TensorView& d_f, const TensorView& d_x) {
  for (std::int64_t i = 0; i < d_out.count(); ++i) {
    const double a = depth_factor(args, i / d_out.shape.back()), d = d_out.as<double>()[i];
    d_f.as<double>()[i] = a * d;
    d_x.as<double>()[i] = (1 - a) * d;
  }
}

}  // namespace choir::ref
