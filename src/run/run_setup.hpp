#pragma once
// The setup of a run: converts the values of its deck to the options of meshes, models and learning
// rates, and opens the resources of the program, which are its ranks, the device of each, and their
// communication.
#include <cstdint>
#include <memory>
#include <string>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/deck/deck.hpp"
#include "choir/deck/pipeline_options.hpp"
#include "choir/models/model_config.hpp"
#include "choir/nn/parameter_set.hpp"
#include "choir/nn/pass.hpp"
#include "choir/ops/step_control.hpp"
#include "choir/parallel/sharding/parameter_storage.hpp"
#include "src/comm/mesh/device_choice.hpp"
#include "src/optim/lr_schedule.hpp"
#include "src/optim/update_rule.hpp"

namespace choir {

/// Returns the text of a file on every rank; rank 0 reads it. Throws DeckError on all ranks if it
/// cannot be read. Collective.
std::string read_everywhere(Communicator& world, const std::string& path);

// The options are pure functions of the deck.

/// The transport of the deck. The time-out of communication windows is longer than any limit of the
/// watchdog, because the watchdog can report more and should do so first.
MeshOptions mesh_options_of(const Deck& deck);
/// The options for collectives on memory of GPUs. Ranks share cards where the deck allows it.
DeviceTransport device_transport_of(const Deck& deck);
/// parallel.zero, parallel.zero_group and parallel.zero_prefetch.
ZeroOptions zero_of(const Deck& deck);
/// parallel.offload; the default directory is that of temporary files.
OffloadOptions offload_of(const Deck& deck);
/// parallel.schedule and parallel.virtual_stages.
PipelineOptions pipeline_of(const Deck& deck);

/// Learning rates scaled by optimizer.scale_lr (none, sqrt, linear in the data-parallel size).
LrSchedule schedule_of(const Deck& deck, int data_parallel);

/// The values of optimizer.* that update rules read.
UpdateSettings update_settings_of(const Deck& deck);

/// train.loss_scale and its window; no scaling except with fp16-mixed.
ops::LossScaling loss_scaling_of(const Deck& deck);

/// train.precision, train.frozen_precision and optimizer.moment_precision.
Precision precision_of(const Deck& deck);
/// The quantisation of frozen matrices that train.frozen_precision asks for.
Packing packing_of(const Deck& deck);

/// The model that the deck describes, with train.recompute.
ModelConfig model_of(const Deck& deck);

/// The attention strategy of the deck's model for sequences that are divided among ranks.
ContextWay context_way_of(const Deck& deck);

/// Sets model.vocab_size from the data and marks it as derived, or checks that the two agree
/// (DataError).
void resolve_vocabulary(Deck& deck, std::int64_t data_vocabulary, const std::string& data_name);

struct Workplace {
  std::unique_ptr<Device> device;  ///< before the mesh, whose communicators use its memory
  std::unique_ptr<Mesh> mesh;
  std::string device_reason;  ///< reason for the choice of device=auto; empty otherwise
};

/// Chooses the device that the deck requests (device, parallel.share_device, parallel.transport;
/// GPUs do not compute in fp64), opens it, and attaches it to the mesh. Throws DeckError on every
/// rank if it is not available. Collective over the world of `place.mesh`.
void open_device(Workplace& place, const Deck& deck);

/// Without OMP_NUM_THREADS, divides cores among the ranks that share them; returns the number of
/// threads. Collective over the node.
int choose_threads(Communicator& node);

}  // namespace choir
