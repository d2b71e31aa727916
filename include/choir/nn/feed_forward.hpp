#pragma once
// The two-layer network of a transformer block: output(activation(input(x))).
#include <string>

#include "choir/nn/dropout.hpp"
#include "choir/nn/linear.hpp"
#include "choir/nn/residual_norm.hpp"
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

  /// `source`, the same in both calls: the norm that x came from and that makes it again for
  /// backward. Then neither x is kept nor, where its bits can be had again without a product, the
  /// result of the activation.
  Tensor forward(Pass& pass, const Tensor& x, ResidualNorm* source = nullptr);
  Tensor backward(Pass& pass, const Tensor& d_y, ResidualNorm* source = nullptr);
  /// A forward whose result is known: saves the same for backward.
  void forward_again(Pass& pass, const Tensor& x);

 private:
  bool gelu_tanh() const { return options_.activation == ops::Activation::gelu_tanh; }
  /// activation(input(x)), what backward needs of it saved.
  Tensor activated(Pass& pass, const Tensor& x, bool keep_input);
  /// activation(before); `before` [N, F * activation_inputs].
  Tensor activate(Pass& pass, const Tensor& before) const;
  /// From the gradient of the result of the output layer to that of the input layer.
  Tensor backward_to_input(Pass& pass, const Tensor& d_y);
  bool remakes_activation(const Pass& pass, const ResidualNorm* source) const;

  Options options_;
  Linear input_, output_;
  Dropout dropout_;
};

}  // namespace choir
