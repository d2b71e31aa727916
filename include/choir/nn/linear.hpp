#pragma once
// y = x W^T + b. A weight cut along its outputs makes a column layer, one cut along its inputs a
// row layer (see choir/nn/tensor_axis.hpp): a column layer takes shares of rows and gives whole
// rows of its part of the outputs, a row layer the reverse. Shares are kept for backward and
// gathered again, whole rows are not. Communication of backward runs beside the other product.
// For a frozen weight neither x is kept, nor the product for its gradient done.
#include <string>
#include <utility>

#include "choir/nn/parameter_set.hpp"
#include "choir/nn/pass.hpp"

namespace choir {

class Linear {
 public:
  struct Options {
    bool bias = true;
    double init_std = 0.02;
    ShardSpec weight_shard{}, bias_shard{};
  };
  /// Registers `name`.weight [outputs, inputs] and `name`.bias [outputs] in the current bucket.
  Linear(ParameterSet& parameters, const std::string& name, std::int64_t inputs,
         std::int64_t outputs, const Options& options);
  /// Shares the weight of another module (tied head); no bias.
  explicit Linear(Parameter& weight);

  /// x [N, inputs] -> [N, outputs], both as this rank has them; keeps x, unless told that somebody
  /// saves it again right before backward.
  Tensor forward(Pass& pass, const Tensor& x, bool keep_input = true);
  /// d_y [N, outputs] -> d_x [N, inputs]; the weight gradient may be postponed.
  Tensor backward(Pass& pass, const Tensor& d_y);

  /// The same with gelu_tanh on the output, one pass where the device offers it. Training keeps
  /// the pre-activation, saved after x.
  Tensor forward_gelu_tanh(Pass& pass, const Tensor& x, bool keep_input = true);
  /// Of the layer after a forward_gelu_tanh(): d_y -> the gradient of that pre-activation, which
  /// was saved right before this layer's x.
  Tensor backward_gelu_tanh(Pass& pass, const Tensor& d_y);

  /// Of a layer without a bias: adds one that is in another bucket.
  void use_bias(Parameter& bias) { bias_ = &bias; }

  // Its products alone, for who runs the tiles of a layer: whole rows, nothing sent, nothing kept.
  /// y (+)= rows W^T + b
  void multiply(Pass& pass, const TensorView& rows, const TensorView& y,
                bool accumulate = false) const;
  /// d_rows (+)= d_y W
  void multiply_back(Pass& pass, const TensorView& d_y, const TensorView& d_rows,
                     bool accumulate = false) const;
  /// The weight and bias gradient, which may be postponed, of what is trained.
  void add_gradients(Pass& pass, Tensor rows, Tensor d_y) {
    if (!trains()) return;
    pass.weight_gradient({&Linear::weight_gradient, this, std::move(rows), std::move(d_y)});
  }
  /// That it was registered in, among those of this rank; -1: elsewhere.
  int bucket() const { return bucket_; }
  std::int64_t outputs() const { return outputs_; }

 private:
  bool column() const { return weight_->shard.split_dim == 0; }
  bool row() const { return weight_->shard.split_dim == 1; }
  /// Of a row layer one rank adds the bias.
  TensorView bias(const Pass& pass) const;
  static void weight_gradient(Pass& pass, void* self, const Tensor& x, const Tensor& d_y);
  bool trains_bias() const { return bias_ != nullptr && bias_->trainable; }
  bool trains() const { return weight_->trainable || trains_bias(); }
  /// The gradient of a frozen weight, which nobody wants, is what x would be kept for.
  void save_input(Pass& pass, const Tensor& x) const {
    pass.save(weight_->trainable ? x : Tensor());
  }

  Parameter* weight_;
  Parameter* bias_ = nullptr;
  int bucket_ = -1;
  std::int64_t inputs_, outputs_;  ///< of this rank
};

}  // namespace choir
