#pragma once
// What subcommands that run a model share: arguments, threads, devices, checkpoints opened for
// inference.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "choir/app/command_line.hpp"
#include "choir/app/commands.hpp"
#include "choir/app/guard.hpp"
#include "choir/checkpoint/store.hpp"
#include "choir/comm/mesh.hpp"
#include "choir/comm/mpi_session.hpp"
#include "choir/core/log.hpp"
#include "choir/data/text/text_units.hpp"
#include "choir/data/text/tokenizer.hpp"
#include "choir/train/deck/deck.hpp"
#include "choir/train/engine/model_instance.hpp"
#include "choir/train/engine/workplace.hpp"
#include "choir/train/save/train_checkpoint.hpp"

namespace choir {

/// Cores this process may run on.
int usable_cores();
/// Collective over the node. Without OMP_NUM_THREADS the ranks that share the same cores divide
/// them; returns the number of threads chosen.
int choose_threads(Communicator& node);

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
  Deck deck;                           ///< of the run that wrote it
  std::optional<Tokenizer> tokenizer;  ///< of language models
  std::optional<TextUnits> units;      ///< of speech models
  std::unique_ptr<ModelInstance> instance;
};
/// Collective. All but the instance, for models of either kind. `path` as open_checkpoint;
/// `precision` "" for the one it was trained in; `overrides` of its deck.
LoadedModel open_model(const std::string& path, const std::string& precision, Mesh& mesh,
                       const Arguments& overrides = {});
/// Of an opened model in this process.
ModelInstance::Options inference_options(const LoadedModel& loaded);
/// Collective. Makes the instance, with the checkpoint's parameters; the device is open.
void make_instance(LoadedModel& loaded, std::size_t arena_bytes, Workplace& place);
/// Collective. Opens the device too, and makes the instance: that evaluates batches of these
/// shapes and, with `generate`, writes text.
void load_instance(LoadedModel& loaded, const std::vector<BatchShape>& shapes, bool generate,
                   Workplace& place);
/// Both, of a language model. Collective. Opens the device too: that of the overrides, else `auto`;
/// what the model was trained on does not matter. `batch` sequences for evaluation, 0 for none.
LoadedModel load_model(const std::string& path, const std::string& precision, std::int64_t batch,
                       Workplace& place, const Arguments& overrides = {});

}  // namespace choir
