#pragma once
// A trained model that is loaded from a checkpoint for inference: divided among the ranks of a mesh
// (LoadedModel), or whole on every rank as a tool of another run (ReplicatedModel).
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/deck/deck.hpp"
#include "choir/run/model_instance.hpp"
#include "src/comm/mpi/mpi_session.hpp"
#include "src/run/run_setup.hpp"
#include "src/store/store.hpp"

namespace choir {

/// A mesh of all ranks with `tensor` ranks per copy of the model. Throws DeckError if `tensor` does
/// not divide the ranks. Collective.
std::unique_ptr<Mesh> inference_mesh(MpiSession& session, int tensor);

/// A trained model, ready to evaluate or generate.
struct LoadedModel {
  Checkpoint checkpoint;
  Deck deck;               ///< the deck of the run that wrote the checkpoint
  std::string vocabulary;  ///< see TrainingData::vocabulary_json; "" if the data had none
  std::unique_ptr<ModelInstance> instance;
};
/// The overrides, and if `ema`, also the one that selects the averaged weights. Local.
std::vector<std::string> with_ema(std::vector<std::string> overrides, bool ema);

/// Opens everything but the instance. `path` as for open_checkpoint; `precision` is "" for the
/// precision of the training; `overrides` apply to its deck. Data of data.val replace all
/// validation data of the run, unless data.validation is given, too, and so do the sets of
/// data.validation=. Collective.
LoadedModel open_model(const FamilyTable& families, const std::string& path,
                       const std::string& precision, Mesh& mesh,
                       const std::vector<std::string>& overrides = {});
/// The validation data of a run that overrides of the other key replaced.
struct ReplacedSets {
  std::string by;                  ///< data.val or data.validation
  std::string empty;               ///< the override that removes what is replaced
  std::vector<std::string> names;  ///< sets of data.validation, or data of data.val; empty: none
};
/// Local.
ReplacedSets replaced_sets(const LoadedModel& loaded, const std::vector<std::string>& overrides);
/// Options of the instance of an opened model in this process.
ModelInstance::Options inference_options(const LoadedModel& loaded);
/// Creates the instance with the checkpoint's parameters; the device must be open. Collective.
void make_instance(LoadedModel& loaded, std::size_t arena_bytes, Workplace& place);
/// Opens the device and creates an instance that evaluates batches of these shapes. Collective.
void load_instance(LoadedModel& loaded, const std::vector<BatchShape>& shapes, Workplace& place);
/// The same for an instance that only does this `work`.
void load_instance(LoadedModel& loaded, const std::function<void(ModelInstance&)>& work,
                   Workplace& place);
/// Throws DeckError unless `able`; the message names the model's family, what it cannot do, and its
/// use. `not_done`: "does not transcribe"; `able_ones`: the family that can.
void require_ability(const LoadedModel& loaded, bool able, std::string_view not_done,
                     std::string_view able_ones);

/// A model of another run that is used as a tool: whole on every rank, independent of the layout of
/// the run that uses it.
class ReplicatedModel {
 public:
  /// Opens the newest checkpoint of the run `path`, or the checkpoint `path`, and reads everything
  /// but the parameters. Throws StorageError or DeckError on all ranks. Collective over `world`.
  ReplicatedModel(const FamilyTable& families, const std::string& path, Communicator& world);

  const std::string& path() const { return checkpoint_.path; }
  const Deck& deck() const { return deck_; }
  /// TrainingData::vocabulary_json() of the run, or "".
  const std::string& vocabulary() const { return vocabulary_; }
  /// Options for fp32, or for the type of its masters if they are not fp32.
  ModelInstance::Options options() const;
  /// The memory of the model with this arena on a device like `target` (nullptr: a CPU), without
  /// the workspace of matrix products, which all models on a device share. Local.
  std::size_t memory(std::size_t arena_bytes, const Device* target) const;
  /// Creates the model with its parameters, once. All further use is local. `device` must outlive
  /// this. Collective over `world`.
  ModelInstance& load(std::size_t arena_bytes, Device& device, Communicator& world);

 private:
  Checkpoint checkpoint_;
  Deck deck_;
  std::string vocabulary_;
  std::unique_ptr<Mesh> alone_;
  std::unique_ptr<ModelInstance> instance_;
};

}  // namespace choir
