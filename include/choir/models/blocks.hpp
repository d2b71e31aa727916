#pragma once
// How a model works with its parameters: those of a bucket are at hand while the layers that they
// are of work. Its blocks have a bucket and a unit each.
#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "choir/models/pieces.hpp"
#include "choir/models/trained_units.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/nn/pass.hpp"

namespace choir {

/// What `forward` returns, with the parameters of the bucket at hand.
template <class Forward>
Tensor forward_with(BucketHooks& hooks, int bucket, const Forward& forward) {
  hooks.acquire(bucket);
  Tensor result = forward();
  hooks.release(bucket);
  return result;
}

/// What `backward` returns, which makes all gradients of the bucket.
template <class Backward>
Tensor backward_with(Pass& pass, BucketHooks& hooks, int bucket, const Backward& backward) {
  hooks.acquire(bucket);
  pass.begin_gradients(hooks, bucket);
  Tensor result = backward();
  pass.gradients_ready(hooks, bucket);
  hooks.release(bucket);
  return result;
}

/// The blocks of a model that are on this rank.
template <class Module>
class Blocks {
 public:
  /// Registers all of the model, each as a unit, `first_unit` the first, in a bucket `name`.N. A
  /// block is made by make("`name`.N", N).
  template <class Make>
  void add(ParameterSet& parameters, const ModelPieces& pieces, TrainedUnits& trained,
           int first_unit, const std::string& name, std::int64_t layers, const Make& make) {
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      const int unit = first_unit + static_cast<int>(layer);
      const std::string of_block = fmt::format("{}.{}", name, layer);
      trained.begin_unit(parameters);
      const int bucket = parameters.begin_bucket(of_block, pieces.resident(unit));
      auto module = make(of_block, layer);
      if (pieces.resident(unit)) blocks_.push_back({std::move(module), bucket, unit});
    }
  }

  struct Block {
    std::unique_ptr<Module> module;
    int bucket, unit;
  };
  const std::vector<Block>& all() const { return blocks_; }

  /// forward(module) of those in the piece. What backward does not reach keeps nothing.
  template <class Forward>
  void forward(Pass& pass, const ModelPieces::Piece& here, const TrainedUnits& trained,
               BucketHooks& hooks, const Forward& forward) const {
    for (const Block& block : blocks_) {
      if (!here.contains(block.unit)) continue;
      const Pass::Unsaved below(pass, !trained.reach(block.unit));
      hooks.acquire(block.bucket);
      forward(*block.module);
      hooks.release(block.bucket);
    }
  }

  /// backward(module), from the last one in the piece to the lowest with something to train.
  template <class Backward>
  void backward(Pass& pass, const ModelPieces::Piece& here, const TrainedUnits& trained,
                BucketHooks& hooks, const Backward& backward) const {
    for (std::size_t i = blocks_.size(); i-- > 0;) {
      const Block& block = blocks_[i];
      if (!here.contains(block.unit)) continue;
      if (!trained.reach(block.unit)) break;
      hooks.acquire(block.bucket);
      pass.begin_gradients(hooks, block.bucket);
      backward(*block.module);
      pass.gradients_ready(hooks, block.bucket);
      hooks.release(block.bucket);
    }
  }

 private:
  std::vector<Block> blocks_;
};

}  // namespace choir
