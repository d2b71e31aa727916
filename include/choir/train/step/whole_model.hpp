#pragma once
// A model of another run as a tool: whole on every rank and in host memory, whatever the layout and
// the device of the run that uses it.
#include <cstddef>
#include <memory>
#include <string>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/deck/deck.hpp"
#include "choir/device/cpu_device.hpp"
#include "choir/infer/model_instance.hpp"
#include "choir/store/store.hpp"

namespace choir {

class WholeModel {
 public:
  /// Collective over `world`: opens the newest checkpoint of the run `path`, or this one, and reads
  /// all but the parameters. Throws on all ranks: StorageError, DeckError.
  WholeModel(const std::string& path, Communicator& world);

  const std::string& path() const { return checkpoint_.path; }
  const Deck& deck() const { return deck_; }
  /// TrainingData::vocabulary_json() of the run, or "".
  const std::string& vocabulary() const { return vocabulary_; }
  /// In fp32, or in the type of its masters where they are others.
  ModelInstance::Options options() const;
  /// Collective over `world`, once: the model with its parameters. Afterwards all that is done with
  /// it is local.
  ModelInstance& load(std::size_t arena_bytes, Communicator& world);

 private:
  Checkpoint checkpoint_;
  Deck deck_;
  std::string vocabulary_;
  CpuDevice device_;
  std::unique_ptr<Mesh> alone_;
  std::unique_ptr<ModelInstance> instance_;
};

}  // namespace choir
