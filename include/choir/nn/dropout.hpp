#pragma once
// Dropout as a layer: nothing is saved, the mask is drawn again in backward from global
// coordinates.
#include <string>

#include "choir/core/philox.hpp"
#include "choir/nn/pass.hpp"

namespace choir {

class Dropout {
 public:
  /// `name` selects the random stream; probability 0 makes both calls free.
  Dropout(std::string name, double probability)
      : name_(std::move(name)), probability_(probability) {}

  /// x [B*T, C], changed in place. Active in training only.
  void forward(Pass& pass, Tensor& x) const;
  /// d_y [B*T, C] -> d_x: d_y itself when nothing is dropped, otherwise a new tensor.
  Tensor backward(Pass& pass, const Tensor& d_y) const;

 private:
  std::string name_;
  double probability_;
};

}  // namespace choir
