#pragma once
// Dropout as a layer. The mask is not saved; backward draws it again from global coordinates.
#include <optional>
#include <string>

#include "choir/core/philox.hpp"
#include "choir/nn/pass.hpp"

namespace choir {

namespace ops {
struct Dropout;
}
class Dropout;
class Linear;

/// The last two steps of a residual branch whose dropout belongs to the norm behind the branch.
struct BranchEnd {
  const Dropout* dropout = nullptr;
  Linear* output = nullptr;  ///< below the dropout; nullptr: its bias cannot be added early
};

/// The gradient of a branch.
struct BranchGradient {
  Tensor d_y;              ///< [B*T, C]
  bool dropped = false;    ///< true: the gradient before the dropout
  bool bias_done = false;  ///< true: its sum has been added to the gradient of the output's bias
  BranchGradient(Tensor d, bool is_dropped = false, bool has_bias = false)
      : d_y(std::move(d)), dropped(is_dropped), bias_done(has_bias) {}
};

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
  /// The same for the gradient of a branch, of which a norm may have done a part.
  Tensor backward_through(Pass& pass, const BranchGradient& d_y, Linear& below) const;
  /// The gradient below the dropout.
  Tensor backward(Pass& pass, const BranchGradient& d_y) const;

  /// The call that changes all rows of `in` to `out`, for a norm that makes it on a GPU. Nothing
  /// where the dropout is the identity, where more than one call is needed, and on the CPU, whose
  /// norms do not drop.
  std::optional<ops::Dropout> whole_call(const Pass& pass, const Tensor& in,
                                         const Tensor& out) const;

 private:
  double probability(const Pass& pass) const { return pass.training() ? probability_ : 0; }
  bool is_identity() const { return probability_ == 0 && factor_ == 1; }
  /// Forward and backward are the same map: the product with the mask. The sums of the rows of
  /// `out` are added to `d_bias`, if it is not empty.
  void run(Pass& pass, const Tensor& in, const Tensor& out, const TensorView& d_bias = {}) const;
  /// The call for rows from `row` on, of the rank's share, as many as one call covers.
  ops::Dropout call_from(const Pass& pass, std::int64_t row, const Tensor& in,
                         const Tensor& out) const;

  std::string name_;
  double probability_, factor_;
  FactorType type_;
};

}  // namespace choir
