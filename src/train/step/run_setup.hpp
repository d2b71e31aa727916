#pragma once
// Converts the values of a deck to the options of meshes, models and the engine. Pure functions.
#include "choir/comm/mesh/mesh.hpp"
#include "choir/deck/deck.hpp"
#include "src/train/step/engine.hpp"

namespace choir {

/// The transport of the deck. The time-out of communication windows is longer than any limit of the
/// watchdog, because the watchdog can report more and should do so first.
MeshOptions mesh_options_of(const Deck& deck);
/// parallel.zero, parallel.zero_group and parallel.zero_prefetch.
ZeroOptions zero_of(const Deck& deck);
/// parallel.offload; the default directory is that of temporary files.
OffloadOptions offload_of(const Deck& deck);
/// parallel.schedule and parallel.virtual_stages.
PipelineOptions pipeline_of(const Deck& deck);

/// Learning rates scaled by optimizer.scale_lr (none, sqrt, linear in the data-parallel size).
LrSchedule schedule_of(const Deck& deck, int data_parallel);

/// train.loss_scale and its window; no scaling except with fp16-mixed.
ops::LossScaling loss_scaling_of(const Deck& deck);

/// train.precision and train.frozen_precision.
Precision precision_of(const Deck& deck);

/// The model that the deck describes, with train.recompute.
ModelConfig model_of(const Deck& deck);

/// The attention strategy of the deck's model for sequences that are divided among ranks.
ContextWay context_way_of(const Deck& deck);

/// Options of the engine. The deck must have its vocabulary (model.vocab_size > 0), and its batch
/// must be resolved.
EngineOptions engine_options(const Deck& deck, const BatchSizes& batch);

/// Sets model.vocab_size from the data and marks it as derived, or checks that the two agree
/// (DataError).
void resolve_vocabulary(Deck& deck, std::int64_t data_vocabulary, const std::string& data_name);

}  // namespace choir
