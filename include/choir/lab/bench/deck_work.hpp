#pragma once
// The products and the attention calls of one micro-batch of a deck, for any family: the step runs
// on a null device, which records the requested work.
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
  /// The largest by bytes; products and attention belong to the shape of most FLOPs.
  BatchShape shape;
  /// Products by the type of their factors, most FLOPs first: forward and both backward products.
  std::map<DType, std::vector<StepGemm>> gemms;
  std::vector<AttentionShape> attention;  ///< calls of the attention operation; each shape once
};

/// Returns the work of one rank that holds the whole model, however the deck divides it, on a
/// device like `device`. Collective over the mesh; all ranks get the same result. A deck without a
/// vocabulary size gets `symbols`, or the size of its data if these are opened: families whose
/// micro-batches differ in shape open them (synthetic content where `choir bench step` uses it).
/// Throws the errors of opening data.
DeckWork work_of(Deck deck, std::int64_t symbols, Mesh& mesh, const Device& device, Logger& log);

}  // namespace choir
