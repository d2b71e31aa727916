#pragma once
// From the words of a deck to the values the engine understands. Pure functions.
#include "choir/comm/mesh/mesh.hpp"
#include "choir/deck/deck.hpp"
#include "choir/train/step/engine.hpp"

namespace choir {

/// The transport of the deck, and a time-out of windows above whatever the watch allows a phase: it
/// speaks first, and knows more.
MeshOptions mesh_options_of(const Deck& deck);
/// parallel.zero and what goes with it.
ZeroOptions zero_of(const Deck& deck);
/// parallel.offload; its directory where none is named is the system's for temporary files.
OffloadOptions offload_of(const Deck& deck);
/// parallel.schedule and parallel.virtual_stages.
PipelineOptions pipeline_of(const Deck& deck);

/// Learning rates scaled by optimizer.scale_lr (none, sqrt, linear in the data-parallel size).
LrSchedule schedule_of(const Deck& deck, int data_parallel);

/// train.loss_scale and its window; no scaling but for fp16-mixed.
ops::LossScaling loss_scaling_of(const Deck& deck);

/// train.precision and train.frozen_precision.
Precision precision_of(const Deck& deck);

/// The model that the deck describes, with train.recompute.
ModelConfig model_of(const Deck& deck);

/// How the attention of the deck's model sees sequences that ranks share.
ContextWay context_way_of(const Deck& deck);

/// The deck's model must know its vocabulary (model.vocab_size > 0) and the batch must be resolved.
EngineOptions engine_options(const Deck& deck, const BatchSizes& batch);

/// model.vocab_size from the data, or a check that the two agree (DataError). Marks the derived
/// value.
void resolve_vocabulary(Deck& deck, std::int64_t data_vocabulary, const std::string& data_name);

}  // namespace choir
