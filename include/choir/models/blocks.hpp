#pragma once
// Access of a model to its parameters: the parameters of a bucket are gathered while the layers
// that use them compute. Each block of a model has a bucket and a unit. The blocks of a stack may
// be of several kinds, with other parameters and other costs: a configuration decides by a function
// of the layer, kind_of(layer), and everything that depends on the kind calls it. A table of all
// parameters, in which equal blocks are listed once, is logged at the start of a run.

#include <fmt/core.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "choir/models/model.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/nn/pass.hpp"

namespace choir {

/// Returns forward(), called while the parameters of the bucket are available.
template <class Forward>
Tensor forward_with(Pass& pass, int bucket, const Forward& forward) {
  pass.acquire(bucket);
  Tensor result = forward();
  pass.release(bucket);
  return result;
}

/// Returns backward(), which must produce all gradients of the bucket.
template <class Backward>
Tensor backward_with(Pass& pass, int bucket, const Backward& backward) {
  pass.acquire(bucket);
  pass.begin_gradients(bucket);
  Tensor result = backward();
  pass.gradients_ready(bucket);
  pass.release(bucket);
  return result;
}

/// The blocks of a model that this rank holds.
template <class Module>
class Blocks {
 public:
  /// Registers all blocks of the model, each as a unit (the first is `first_unit`) in a bucket
  /// `name`.N. make("`name`.N", N) creates a block, of the kind of layer N; classes that differ by
  /// kind derive from Module.
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

  /// Calls forward(module) for the blocks of the piece. Blocks that backward does not reach save
  /// nothing.
  template <class Forward>
  void forward(Pass& pass, const ModelPieces::Piece& here, const TrainedUnits& trained,
               const Forward& forward) const {
    for (const Block& block : blocks_) {
      if (!here.contains(block.unit)) continue;
      const Pass::Unsaved below(pass, !trained.reach(block.unit));
      pass.acquire(block.bucket);
      forward(*block.module);
      pass.release(block.bucket);
    }
  }

  /// Calls backward(module) from the last block of the piece down to the lowest that has trainable
  /// parameters.
  template <class Backward>
  void backward(Pass& pass, const ModelPieces::Piece& here, const TrainedUnits& trained,
                const Backward& backward) const {
    for (std::size_t i = blocks_.size(); i-- > 0;) {
      const Block& block = blocks_[i];
      if (!here.contains(block.unit)) continue;
      if (!trained.reach(block.unit)) break;
      pass.acquire(block.bucket);
      pass.begin_gradients(block.bucket);
      backward(*block.module);
      pass.gradients_ready(block.bucket);
      pass.release(block.bucket);
    }
  }

 private:
  std::vector<Block> blocks_;
};

/// The costs of a model whose blocks differ by kind: block(N) is the cost of layer N.
template <class Block>
UnitCosts costs_by_layer(double input, std::int64_t layers, const Block& block, double head) {
  UnitCosts costs{input};
  for (std::int64_t layer = 0; layer < layers; ++layer) costs.push_back(block(layer));
  costs.push_back(head);
  return costs;
}

/// One line per bucket and one per tensor, `width` columns wide. Of the blocks of a stack, whose
/// buckets are named `stack`.N, only the first with the same tensors is listed, and the line says
/// how many are alike. `note` is appended to the line of a tensor.
std::string parameter_table(const ParameterSet& parameters, const std::vector<std::string>& stacks,
                            int width,
                            const std::function<std::string(const Parameter&)>& note = {});

}  // namespace choir
