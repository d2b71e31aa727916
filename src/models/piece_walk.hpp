#pragma once
// How a model walks through one of its pieces: what is around its own layers, and its blocks, each
// with its bucket of parameters at hand while it works.
#include "choir/core/error.hpp"
#include "choir/models/pieces.hpp"
#include "choir/models/trained_units.hpp"
#include "choir/nn/pass.hpp"

namespace choir {

/// A piece reads the batch, or the output of the piece before it, which has the shape `boundary`.
inline void begin_forward(Pass& pass, int index, const ModelPieces::Piece& here,
                          const Tensor& input, const Shape& boundary) {
  CHOIR_CHECK(here.input == input.empty(), "piece {} gets {} input", index,
              input.empty() ? "no" : "an");
  CHOIR_CHECK(here.input || input.shape == boundary, "piece {} gets {}, not {}", index,
              to_string(input.shape), to_string(boundary));
  pass.begin_piece(index);
}

/// The gradient of its output, but of the losses.
inline void begin_backward(Pass& pass, int index, const ModelPieces::Piece& here,
                           const Tensor& d_output) {
  CHOIR_CHECK(here.head == d_output.empty(), "piece {} gets {} gradient", index,
              d_output.empty() ? "no" : "a");
  pass.begin_piece(index);
}

/// forward(module) of those blocks {module, bucket, unit} that are in the piece. What backward does
/// not reach keeps nothing.
template <class Blocks, class Forward>
void forward_blocks(Pass& pass, const ModelPieces::Piece& here, const Blocks& blocks,
                    const TrainedUnits& trained, BucketHooks& hooks, const Forward& forward) {
  for (const auto& block : blocks) {
    if (!here.contains(block.unit)) continue;
    const Pass::Unsaved below(pass, !trained.reach(block.unit));
    hooks.acquire(block.bucket);
    forward(*block.module);
    hooks.release(block.bucket);
  }
}

/// backward(module), from the last block to the lowest with something to train.
template <class Blocks, class Backward>
void backward_blocks(Pass& pass, const ModelPieces::Piece& here, const Blocks& blocks,
                     const TrainedUnits& trained, BucketHooks& hooks, const Backward& backward) {
  for (std::size_t i = blocks.size(); i-- > 0;) {
    const auto& block = blocks[i];
    if (!here.contains(block.unit)) continue;
    if (!trained.reach(block.unit)) break;
    hooks.acquire(block.bucket);
    pass.begin_gradients(hooks, block.bucket);
    backward(*block.module);
    pass.gradients_ready(hooks, block.bucket);
    hooks.release(block.bucket);
  }
}

}  // namespace choir
