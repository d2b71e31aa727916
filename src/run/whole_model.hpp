#pragma once
// A model of another run that is used as a tool: whole on every rank and in host memory,
// independent of the layout and the device of the run that uses it.
#include <cstddef>
#include <memory>
#include <string>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/deck/deck.hpp"
#include "choir/run/model_instance.hpp"
#include "src/device/cpu_device.hpp"
#include "src/store/store.hpp"

namespace choir {

class WholeModel {
 public:
  /// Opens the newest checkpoint of the run `path`, or the checkpoint `path`, and reads everything
  /// but the parameters. Throws StorageError or DeckError on all ranks. Collective over `world`.
  WholeModel(const FamilyTable& table, const std::string& path, Communicator& world);

  const std::string& path() const { return checkpoint_.path; }
  const Deck& deck() const { return deck_; }
  /// TrainingData::vocabulary_json() of the run, or "".
  const std::string& vocabulary() const { return vocabulary_; }
  /// Options for fp32, or for the type of its masters if they are not fp32.
  ModelInstance::Options options() const;
  /// Creates the model with its parameters, once. All further use is local. Collective over
  /// `world`.
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
