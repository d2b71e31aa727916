#pragma once
// Helpers of subcommands that run a model: reading decks and opening checkpoints for inference.
#include <functional>
#include <memory>
#include <string>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "choir/run/model_instance.hpp"
#include "src/app/command_line.hpp"
#include "src/comm/mpi/mpi_session.hpp"
#include "src/run/run_setup.hpp"
#include "src/run/stored_model.hpp"
#include "src/store/store.hpp"

namespace choir {

/// Returns the text of a file on every rank; rank 0 reads it. Throws DeckError on all ranks if it
/// cannot be read. Collective.
std::string read_everywhere(Communicator& world, const std::string& path);

/// Adds --tensor, for commands that run a model.
void add_tensor_option(CommandLine& app, int& tensor);
/// A mesh of all ranks with `tensor` ranks per copy of the model. Throws DeckError if `tensor` does
/// not divide the ranks. Collective.
std::unique_ptr<Mesh> inference_mesh(MpiSession& session, int tensor);

/// The deck of a checkpoint with overrides. The device and the transport of its training are
/// ignored, because inference may run elsewhere; the vocabulary is that of the training data.
Deck deck_of(const FamilyTable& families, const Checkpoint& checkpoint, const TrainMeta& meta,
             const Arguments& overrides);

/// A trained model, ready to evaluate or generate.
struct LoadedModel {
  Checkpoint checkpoint;
  Deck deck;               ///< the deck of the run that wrote the checkpoint
  std::string vocabulary;  ///< see TrainingData::vocabulary_json; "" if the data had none
  std::unique_ptr<ModelInstance> instance;
};
/// Opens everything but the instance. `path` as for open_checkpoint; `precision` is "" for the
/// precision of the training; `overrides` apply to its deck. Collective.
LoadedModel open_model(const FamilyTable& families, const std::string& path,
                       const std::string& precision, Mesh& mesh, const Arguments& overrides = {});
/// Options of the instance of an opened model in this process.
ModelInstance::Options inference_options(const LoadedModel& loaded);
/// Creates the instance with the checkpoint's parameters; the device must be open. Collective.
void make_instance(LoadedModel& loaded, std::size_t arena_bytes, Workplace& place);
/// Opens the device and creates an instance that evaluates batches of these shapes. Collective.
void load_instance(LoadedModel& loaded, const std::vector<BatchShape>& shapes, Workplace& place);
/// Throws DeckError unless `able`; the message names the model's family, what it cannot do, and its
/// use. `not_done`: "does not transcribe"; `able_ones`: the family that can.
void require_ability(const LoadedModel& loaded, bool able, std::string_view not_done,
                     std::string_view able_ones);

/// Opens a model that generates at most `together` texts at a time and creates its instance; throws
/// DeckError for a model that does not generate. The device comes from the overrides, else `auto`;
/// the device of the training does not matter. Collective.
LoadedModel load_generator(const FamilyTable& families, const std::string& path,
                           const std::string& precision, Workplace& place,
                           const Arguments& overrides = {}, std::int64_t together = 1);

}  // namespace choir
