#pragma once
// The two-layer network of a transformer block: output(activation(input(x))).
#include <string>

#include "choir/nn/dropout.hpp"
#include "choir/nn/linear.hpp"
#include "choir/ops/activation.hpp"

namespace choir {

class FeedForward {
 public:
  struct Options {
    std::int64_t width = 0;   ///< C
    std::int64_t hidden = 0;  ///< F
    ops::Activation activation = ops::Activation::gelu;
    bool bias = true;
    double dropout = 0;  ///< on the output
    double output_init_std = 0.02;
  };
  /// Registers `name`.input [F or 2F, C] (rows gate | up for swiglu) and `name`.output [C, F].
  FeedForward(ParameterSet& parameters, const std::string& name, const Options& options);

  Tensor forward(Pass& pass, const Tensor& x);
  Tensor backward(Pass& pass, const Tensor& d_y);

 private:
  /// activation(input(x)), what backward needs of it saved.
  Tensor activated(Pass& pass, const Tensor& x);

  Options options_;
  Linear input_, output_;
  Dropout dropout_;
};

}  // namespace choir
