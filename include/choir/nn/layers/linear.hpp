#pragma once
// y = x W^T + b. A weight divided along its outputs makes a column layer, one divided along its
// inputs a row layer (see src/nn/axes/tensor_axis.hpp): a column layer takes shares of rows and
// returns whole rows of its part of the outputs, a row layer the reverse. Shares are kept for
// backward and gathered again; whole rows are not kept. Communication of backward overlaps the
// other product. For a frozen weight without an adapter, neither is x kept nor the weight gradient
// computed. Lora holds the options of low-rank adaptation (Hu et al. 2021) of a model, and the
// adapters of each layer that follow from them.

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "choir/nn/parameter_set.hpp"
#include "choir/nn/pass.hpp"
#include "choir/ops/activation.hpp"

namespace choir {

class Linear {
 public:
  /// Adds a product of two small factors to a weight that can stay frozen (LoRA, Hu et al. 2021): y
  /// = W x + b + alpha / rank B (A x). B begins at zero, so y is unchanged at first.
  struct Adapter {
    std::int64_t rank = 0;  ///< 0: no adapter
    double alpha = 1;
    double dropout = 0;  ///< on the input of A, in training
    /// If not empty, one entry for each section of the rows of the weight: the name of the pair of
    /// factors of this section, or "" for none.
    std::vector<std::string> sections{};
  };
  static constexpr std::string_view kFactorA = ".adapter_a", kFactorB = ".adapter_b";
  struct Options {
    bool bias = true;
    double init_std = 0.02;
    Use use = Use::hidden;  ///< of the weight; heads are Use::other
    ShardSpec weight_shard{}, bias_shard{};
    Adapter adapter{};
  };
  /// Registers `name`.weight [outputs, inputs] and `name`.bias [outputs] in the current bucket, and
  /// the factors `name`.adapter_a [rank, inputs] and `name`.adapter_b [outputs, rank]; those of a
  /// section are `name`.SECTION.adapter_a and so on. One of the factors is divided like the weight;
  /// the other is whole on every rank, with a part of its gradient.
  Linear(ParameterSet& parameters, const std::string& name, std::int64_t inputs,
         std::int64_t outputs, const Options& options);
  /// Shares the weight of another module (tied head); no bias.
  explicit Linear(Parameter& weight);

  /// x [N, inputs] -> [N, outputs], both as this rank holds them. Keeps x unless `keep_input` is
  /// false, which means that the caller saves it again right before backward.
  Tensor forward(Pass& pass, const Tensor& x, bool keep_input = true);
  /// d_y [N, outputs] -> d_x [N, inputs]; the weight gradient may be postponed. `bias_done`: the
  /// kernel that wrote d_y has added the gradient of the bias to early_bias().
  Tensor backward(Pass& pass, const Tensor& d_y, bool bias_done = false);
  /// The gradient of the bias if a kernel of a GPU may add it while it writes the d_y of the next
  /// backward(), which saves a kernel that reads d_y again. Empty if the bias is absent or frozen,
  /// if weight gradients are postponed, or if d_y is gathered from other ranks before it is summed.
  TensorView early_bias(const Pass& pass) const;

  /// forward() followed by gelu or gelu_tanh, in one pass if the device offers it. In training the
  /// pre-activation is kept; it is saved after x.
  Tensor forward_gelu(Pass& pass, ops::Activation gelu, const Tensor& x, bool keep_input = true);
  /// backward() of the layer that follows a forward_gelu(): d_y -> the gradient of that
  /// pre-activation, which was saved right before this layer's x.
  Tensor backward_gelu(Pass& pass, ops::Activation gelu, const Tensor& d_y);

  /// Gives a layer without a bias one from another bucket.
  void use_bias(Parameter& bias) { bias_ = &bias; }

  // Products for the tiles of a layer: whole rows, without communication and without saving.
  /// y (+)= rows W^T + b
  void multiply(Pass& pass, const TensorView& rows, const TensorView& y,
                bool accumulate = false) const;
  /// y = rows W^T + b for the outputs [first, first + count) of a column layer
  void multiply_outputs(Pass& pass, const TensorView& rows, std::int64_t first, std::int64_t count,
                        const TensorView& y) const;
  /// d_rows (+)= d_y W
  void multiply_back(Pass& pass, const TensorView& d_y, const TensorView& d_rows,
                     bool accumulate = false) const;
  /// Adds the gradients of trainable weight and bias; they may be postponed.
  void add_gradients(Pass& pass, Tensor rows, Tensor d_y, bool bias_done = false) {
    if (bias_done ? !weight_->trainable : !trains()) return;
    pass.weight_gradient({bias_done ? &Linear::weight_gradient_alone : &Linear::weight_gradient,
                          this, std::move(rows), std::move(d_y)});
  }
  /// Index of the bucket of registration among those of this rank; -1: on another rank.
  int bucket() const { return bucket_; }
  std::int64_t outputs() const { return outputs_; }

 private:
  bool column() const { return weight_->shard.split_dim == 0; }
  bool row() const { return weight_->shard.split_dim == 1; }
  /// The bias; empty on all ranks of a row layer but the one that adds it.
  TensorView bias(const Pass& pass) const;
  static void weight_gradient(Pass& pass, void* self, const Tensor& x, const Tensor& d_y);
  /// Without the gradient of the bias.
  static void weight_gradient_alone(Pass& pass, void* self, const Tensor& x, const Tensor& d_y);
  static void factor_gradient(Pass& pass, void* factor, const Tensor& x, const Tensor& d_y);
  /// The factors of the rows of the weight that begin at `first`.
  struct Pair {
    Parameter *a = nullptr, *b = nullptr;
    std::int64_t first = 0;  ///< within this rank
    std::string dropout;     ///< name of its random stream
    bool trains() const { return a->trainable || b->trainable; }
  };
  static constexpr std::size_t kMostPairs = 3;
  using OfPairs = std::array<Tensor, kMostPairs>;
  void add_adapter(ParameterSet& parameters, const std::string& name, const Options& options);
  bool adapted() const { return !pairs_.empty(); }
  bool drops(const Pass& pass) const { return pass.training() && adapter_dropout_ > 0; }
  /// The columns of y, or of its gradient, that belong to this pair: y itself or a copy.
  Tensor columns_of(Pass& pass, const Pair& pair, const TensorView& y) const;
  /// The input of A after dropout, from whole rows. The gradient uses the same map.
  Tensor dropped(Pass& pass, const Pair& pair, const TensorView& rows) const;
  /// alpha / rank A x, [N, rank], of x after dropout; on a rank of a row layer a term of it.
  Tensor narrow(Pass& pass, const Pair& pair, const TensorView& rows) const;
  /// y += B narrow(rows)
  void adapt(Pass& pass, const TensorView& rows, const TensorView& y) const;
  /// Returns the gradients of A x, [N, rank] (on a rank of a column layer, terms of them), and adds
  /// A^T of them to d_rows.
  OfPairs adapt_back(Pass& pass, const TensorView& d_y, const TensorView& d_rows) const;
  void add_adapter_gradients(Pass& pass, const Tensor& rows, const Tensor& d_y,
                             const OfPairs& d_narrow);
  bool trains_bias() const { return bias_ != nullptr && bias_->trainable; }
  bool trains() const { return weight_->trainable || trains_bias(); }
  bool trains_adapter() const {
    for (const Pair& pair : pairs_)
      if (pair.trains()) return true;
    return false;
  }
  /// x is kept only for the gradient of a trainable weight or adapter.
  bool needs_input() const { return weight_->trainable || trains_adapter(); }
  void save_input(Pass& pass, const Tensor& x) const { pass.save(needs_input() ? x : Tensor()); }

  Parameter* weight_;
  Parameter* bias_ = nullptr;
  int bucket_ = -1;
  std::int64_t inputs_, outputs_;  ///< of this rank
  std::vector<Pair> pairs_;        ///< in the order of their rows
  double adapter_factor_ = 1, adapter_dropout_ = 0;
  std::int64_t first_input_ = 0;  ///< index among all inputs
};

/// The parts of a block that can be adapted, in the order of a block. A part that a block does not
/// have (gate without a gated activation) is ignored.
inline constexpr std::string_view kLoraTargets[] = {"q", "k", "v", "o", "gate", "up", "down"};

struct Lora {
  std::int64_t rank = 0;  ///< 0: no adapters
  double alpha = 16;      ///< B A is multiplied by alpha / rank
  double dropout = 0;     ///< on the input of A, in [0, 1)
  /// The factor is alpha / sqrt(rank) (Kalajdzievski 2023).
  bool rank_stabilised = false;
  std::vector<std::string> targets{"all"};  ///< elements of kLoraTargets, or "all"

  bool adapts(std::string_view target) const;
  /// The factor of B A.
  double factor() const;
  /// The adapter of a layer whose weight consists of these parts side by side: a pair of factors
  /// for each part that is a target.
  Linear::Adapter of(const std::vector<std::string>& parts) const;
};

/// True if this is the name of a factor of an adapter.
bool is_adapter(std::string_view name);
bool has_adapters(const ParameterSet& parameters);

}  // namespace choir
