#pragma once
// Dropout as a layer: nothing is saved, the mask is drawn again in backward from global
// coordinates.
#include <string>

#include "choir/core/philox.hpp"
#include "choir/nn/pass.hpp"

namespace choir {

class Dropout {
 public:
  /// `name` selects the random stream; probability 0 makes both calls free. `factor`: of what is
  /// kept, in every mode.
  Dropout(std::string name, double probability, double factor = 1)
      : name_(std::move(name)), probability_(probability), factor_(factor) {}

  /// x [B*T, C], changed in place. Drops in training only.
  void forward(Pass& pass, Tensor& x) const;
  /// d_y [B*T, C] -> d_x: d_y itself when nothing is dropped, otherwise a new tensor.
  Tensor backward(Pass& pass, const Tensor& d_y) const;

 private:
  double probability(const Pass& pass) const { return pass.training() ? probability_ : 0; }
  /// Both are the same map: the product with a mask.
  void run(Pass& pass, const PhiloxKey& key, const Tensor& in, const Tensor& out) const;

  std::string name_;
  double probability_, factor_;
};

}  // namespace choir
