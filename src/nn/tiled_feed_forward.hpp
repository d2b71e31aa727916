#pragma once
// A feed-forward network whose hidden width is run in tiles; see choir/nn/feed_forward.hpp.
#include <vector>

#include "choir/nn/dropout.hpp"
#include "choir/nn/feed_forward.hpp"
#include "choir/nn/linear.hpp"

namespace choir {

class TiledFeedForward final : public FeedForward {
 public:
  TiledFeedForward(ParameterSet& parameters, const std::string& name, const Options& options);

  Tensor forward(Pass& pass, const Tensor& x, BucketHooks& hooks, ResidualNorm* source) override;
  Tensor backward(Pass& pass, const Tensor& d_y, BucketHooks& hooks, ResidualNorm* source) override;
  void forward_again(Pass& pass, const Tensor& x) override { pass.save(x); }

 private:
  /// Their columns of the hidden layer: rows (of each section) of the first weight, columns of the
  /// second.
  struct Tile {
    Linear input, output;
  };
  /// What forward kept of a tile; empty where it is to be made again.
  struct Hidden {
    Tensor before, active;
  };

  Tensor product(Pass& pass, const Tile& tile, const Tensor& rows) const;
  Tensor activate(Pass& pass, const Tensor& before) const;
  /// The gradient of what the activation reads, of a tile; its output layer's gradients on the way.
  Tensor hidden_gradient(Pass& pass, Tile& tile, Hidden hidden, const Tensor& rows,
                         const Tensor& d_rows);

  Options options_;
  std::vector<Tile> tiles_;
  Dropout dropout_;
};

}  // namespace choir
