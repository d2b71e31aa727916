#pragma once
// The products and the attention of one micro-batch of a deck, whatever its family: its step is run
// on a null device, which writes down what it was asked for.
#include <map>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "choir/lab/bench/bench_shapes.hpp"
#include "choir/models/batch.hpp"
#include "choir/models/model_config.hpp"

namespace choir {

struct DeckWork {
  ModelConfig model;
  BatchShape shape;  ///< the largest by bytes; products and attention are of the one of most FLOPs
  /// By the type of their factors; most FLOPs first. Forward and both backward products.
  std::map<DType, std::vector<StepGemm>> gemms;
  std::vector<AttentionShape> attention;  ///< that of the attention op; a shape once
};

/// Collective over the mesh, whose ranks all get the same. As one rank has it, however the deck
/// divides its model, on a device as `device`. A deck that leaves its vocabulary open gets
/// `symbols`, or that of its data where these are opened: families whose micro-batches differ read
/// them (synthetic content where `choir bench step` has it). Throws as opening data does.
DeckWork work_of(Deck deck, std::int64_t symbols, Mesh& mesh, const Device& device, Logger& log);

}  // namespace choir
