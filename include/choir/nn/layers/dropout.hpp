#pragma once
// Dropout as a layer. The mask is not saved; backward draws it again from global coordinates.
#include <string>

#include "choir/core/philox.hpp"
#include "choir/nn/pass.hpp"

namespace choir {

class Linear;

class Dropout {
 public:
  /// The type in which the factor is exact.
  enum class FactorType { real, of_elements };
  /// `name` selects the random stream; probability 0 makes both calls free. `factor`, rounded to
  /// the type, multiplies the kept elements, in every mode.
  Dropout(std::string name, double probability, double factor = 1,
          FactorType type = FactorType::real)
      : name_(std::move(name)), probability_(probability), factor_(factor), type_(type) {}

  /// x [B*T, C] is changed in place. Elements are dropped only in training.
  void forward(Pass& pass, Tensor& x) const;
  /// d_y [B*T, C] -> d_x: d_y itself if nothing is dropped, otherwise a new tensor.
  Tensor backward(Pass& pass, const Tensor& d_y) const;
  /// below.backward(backward(d_y)); where possible one kernel computes the first gradient and that
  /// of the bias of `below`.
  Tensor backward_through(Pass& pass, const Tensor& d_y, Linear& below) const;

 private:
  double probability(const Pass& pass) const { return pass.training() ? probability_ : 0; }
  bool is_identity() const { return probability_ == 0 && factor_ == 1; }
  /// Forward and backward are the same map: the product with the mask. The sums of the rows of
  /// `out` are added to `d_bias`, if it is not empty.
  void run(Pass& pass, const PhiloxKey& key, const Tensor& in, const Tensor& out,
           const TensorView& d_bias = {}) const;

  std::string name_;
  double probability_, factor_;
  FactorType type_;
};

}  // namespace choir
