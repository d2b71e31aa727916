#pragma once
// The two-layer network of a transformer block: output(activation(input(x))), as a whole or in
// tiles.
#include <memory>
#include <string>

#include "choir/nn/layers/lora.hpp"
#include "choir/nn/layers/norms.hpp"
#include "choir/nn/parameter.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/nn/pass.hpp"
#include "choir/nn/recompute.hpp"
#include "choir/ops/activation.hpp"

namespace choir {

/// Memory-centric tiling (Rajbhandari et al. 2021, ZeRO-Infinity 5.1.3): the hidden width is cut
/// into equal tiles, which run one after another: their columns of the hidden layer, its
/// activation, its share of the output, added up. The parameters of a tile are a bucket of their
/// own, so that with ZeRO-3 one tile is whole at a time (and those gathered ahead), and of the
/// hidden layer only what backward needs outlives a tile. The products are those of the whole
/// layer; only the order of the sum over the hidden width differs, in 16 bits with a rounding after
/// every tile.
class FeedForward {
 public:
  static constexpr int kMostTiles = 64;
  struct Options {
    std::int64_t width = 0;   ///< C
    std::int64_t hidden = 0;  ///< F
    ops::Activation activation = ops::Activation::gelu;
    bool bias = true;
    double dropout = 0;  ///< on the output
    double input_init_std = 0.02, output_init_std = 0.02;
    double factor = 1;  ///< of the output, behind dropout (0.5: half a residual step)
    int tiles = 1;      ///< divides the hidden width of a rank
    Recompute recompute = Recompute::none;
    Lora lora{};  ///< of gate, where it has one, up and down; in one tile
  };
  /// Registers `name`.input [F or 2F, C] (rows gate | up for swiglu) and `name`.output [C, F]. In
  /// tiles both weights and the bias of the input are in buckets behind the current one.
  static std::unique_ptr<FeedForward> create(ParameterSet& parameters, const std::string& name,
                                             const Options& options);
  virtual ~FeedForward() = default;

  /// `source`, the same in both calls and with selective recomputation alone: the norm that x came
  /// from and that makes it again for backward. Then neither x is kept nor, where its bits can be
  /// had again without a product, the result of the activation. `hooks` hear of the tiles.
  virtual Tensor forward(Pass& pass, const Tensor& x, BucketHooks& hooks,
                         ResidualNorm* source = nullptr) = 0;
  virtual Tensor backward(Pass& pass, const Tensor& d_y, BucketHooks& hooks,
                          ResidualNorm* source = nullptr) = 0;
  /// A forward whose result is known: saves the same for backward; of tiles x, for backward runs
  /// them again one by one.
  virtual void forward_again(Pass& pass, const Tensor& x) = 0;
};

}  // namespace choir
