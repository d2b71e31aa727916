#pragma once
// What subcommands that run a model share: decks read, and checkpoints opened for inference.
#include <functional>
#include <memory>
#include <string>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/comm/mpi/mpi_session.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "choir/infer/model_instance.hpp"
#include "choir/store/store.hpp"
#include "choir/train/step/train_checkpoint.hpp"
#include "choir/train/step/workplace.hpp"
#include "src/app/command_line.hpp"

namespace choir {

/// The text of a file at every rank; rank 0 reads. DeckError on all ranks when it cannot be read.
/// Collective.
std::string read_everywhere(Communicator& world, const std::string& path);

/// --tensor, of commands that run a model.
void add_tensor_option(CommandLine& app, int& tensor);
/// Collective. All ranks, `tensor` of them for each copy of the model. DeckError when they do not
/// divide.
std::unique_ptr<Mesh> inference_mesh(MpiSession& session, int tensor);

/// The deck of a checkpoint with overrides. Where it was trained (device, transport) says nothing
/// about where it is used; the vocabulary is that of its data.
Deck deck_of(const Checkpoint& checkpoint, const TrainMeta& meta, const Arguments& overrides);

/// A trained model, ready to evaluate or generate.
struct LoadedModel {
  Checkpoint checkpoint;
  Deck deck;               ///< that of the run that wrote it
  std::string vocabulary;  ///< see TrainingData::vocabulary_json; "" where the data had none
  std::unique_ptr<ModelInstance> instance;
};
/// Collective. Opens all but the instance. `path` as open_checkpoint;
/// `precision` "" for the one it was trained in; `overrides` of its deck.
LoadedModel open_model(const std::string& path, const std::string& precision, Mesh& mesh,
                       const Arguments& overrides = {});
/// For an opened model in this process.
ModelInstance::Options inference_options(const LoadedModel& loaded);
/// Collective. Makes the instance, with the checkpoint's parameters; the device is open.
void make_instance(LoadedModel& loaded, std::size_t arena_bytes, Workplace& place);
/// Collective. Opens the device too, and makes the instance: that evaluates batches of these
/// shapes.
void load_instance(LoadedModel& loaded, const std::vector<BatchShape>& shapes, Workplace& place);
/// DeckError unless `able`: the model's family, what it does not do, and what it is for.
/// `not_done`: "does not transcribe"; `able_ones`: the family that does.
void require_ability(const LoadedModel& loaded, bool able, std::string_view not_done,
                     std::string_view able_ones);

/// Collective. Does both, for a model that generates, at most `together` texts at a time; DeckError
/// for another. Opens the device of the overrides, else `auto`: what the model was trained on does
/// not matter.
LoadedModel load_generator(const std::string& path, const std::string& precision, Workplace& place,
                           const Arguments& overrides = {}, std::int64_t together = 1);

}  // namespace choir
