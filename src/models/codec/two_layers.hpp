#pragma once
// output(gelu(input(x))), with three independent widths: the building block of a codec. The hidden
// width is divided over the tensor axis (see choir/nn/axes/tensor_axis.hpp).
#include <string>

#include "choir/nn/layers/linear.hpp"
#include "choir/nn/recompute.hpp"

namespace choir {

class TwoLayers {
 public:
  struct Options {
    std::int64_t inputs = 0, hidden = 0, outputs = 0;
    Recompute recompute = Recompute::none;
  };
  /// Registers `name`.input [hidden, inputs] and `name`.output [outputs, hidden] in the current
  /// bucket. Weights are normal with deviation 1 / sqrt(inputs of the layer), so that numbers of
  /// unit size keep that size.
  TwoLayers(ParameterSet& parameters, const std::string& name, const Options& options);

  /// x [N, inputs] -> [N, outputs], both as distributed on this rank.
  Tensor forward(Pass& pass, const Tensor& x);
  Tensor backward(Pass& pass, const Tensor& d_y);

 private:
  /// Returns gelu(input(x)) and saves the input of the activation.
  Tensor hidden(Pass& pass, const Tensor& x);

  Recompute recompute_;
  Linear input_, output_;
};

}  // namespace choir
