#pragma once
// The two-layer network of a transformer block: output(activation(input(x))), as a whole or in
// tiles.
#include <memory>
#include <string>

#include "choir/nn/layers/linear.hpp"
#include "choir/nn/layers/norms.hpp"
#include "choir/nn/parameter.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/nn/pass.hpp"
#include "choir/ops/activation.hpp"

namespace choir {

/// Memory-centric tiling (Rajbhandari et al. 2021, ZeRO-Infinity 5.1.3) divides the hidden width
/// into equal tiles, which run one after another: each computes its columns of the hidden layer,
/// their activation and its term of the output. The parameters of a tile have a bucket of their
/// own, so that with ZeRO-3 only one tile is whole at a time (plus those gathered ahead), and of
/// the hidden layer only the tensors for backward outlive a tile. The products are those of the
/// whole layer; only the order of the sum over the hidden width differs, in 16 bits with a rounding
/// after every tile.
class FeedForward {
 public:
  static constexpr int kMostTiles = 64;
  struct Options {
    std::int64_t width = 0;   ///< C
    std::int64_t hidden = 0;  ///< F
    ops::Activation activation = ops::Activation::gelu;
    /// With gelu and one tile: products and activation in one call if the device offers it
    /// (ops::GemmEpilogue::gelu).
    bool gelu_in_product = false;
    bool bias = true;
    double dropout = 0;  ///< on the output
    double input_init_std = 0.02, output_init_std = 0.02;
    double factor = 1;  ///< factor of the output after dropout (0.5: half a residual step)
    /// True: the norm behind the branch applies dropout and factor (end()), and forward() does not.
    bool dropout_in_norm = false;
    int tiles = 1;  ///< number of tiles; divides the hidden width of a rank
    Recompute recompute = Recompute::none;
    Lora lora{};  ///< adapters of gate (if there is one), up and down; only with one tile
  };
  /// Registers `name`.input [F or 2F, C] (rows gate | up for gated kinds) and `name`.output [C, F].
  /// With tiles, both weights and the bias of the input are in buckets after the current one.
  static std::unique_ptr<FeedForward> create(ParameterSet& parameters, const std::string& name,
                                             const Options& options);
  virtual ~FeedForward() = default;

  /// `source`, only with selective recomputation and the same in both calls, is the norm that
  /// produced x and recomputes it for backward. Then neither x is kept nor, if its bits can be
  /// recomputed without a product, the result of the activation. The pass acquires the buckets of
  /// tiles.
  virtual Tensor forward(Pass& pass, const Tensor& x, ResidualNorm* source = nullptr) = 0;
  virtual Tensor backward(Pass& pass, const BranchGradient& d_y,
                          ResidualNorm* source = nullptr) = 0;
  /// The last steps, for the norm behind the branch.
  virtual BranchEnd end() = 0;
  /// A forward whose result is already known: saves the same tensors for backward. With tiles it
  /// saves only x, because backward runs the tiles again one by one.
  virtual void forward_again(Pass& pass, const Tensor& x) = 0;
  /// The same for a caller that needs the result.
  virtual Tensor output_again(Pass& pass, const Tensor& x) = 0;
};

}  // namespace choir
