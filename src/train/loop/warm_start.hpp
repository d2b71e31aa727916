#pragma once
// Beginning with parameters of another run: checkpoint.init_from as one path.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/deck/deck.hpp"
#include "choir/infer/model_instance.hpp"

namespace choir {

/// What a checkpoint's tensor is called in the model; "": nothing that belongs to a model.
std::string name_in_model(const std::string& stored);
/// Lines of a message, indented; of many the first.
std::string line_list(const std::vector<std::string>& lines);

struct WarmStart {
  std::string path;                 ///< of the checkpoint
  std::vector<std::string> taken;   ///< parameters
  std::vector<std::string> fresh;   ///< "head.weight: stored as f32 [65, 128], wanted ..."
  std::int64_t fresh_elements = 0;  ///< parameters of `fresh`
  std::vector<std::string> unused;  ///< of the checkpoint

  /// For the log.
  std::string to_string() const;
};

/// Collective over the mesh, after ModelInstance::initialise(). Parameters of equal name, shape and
/// type are read, whatever layout wrote them, if checkpoint.init_take (empty: all) matches them and
/// checkpoint.init_skip does not; the others keep their initial values. Throws on all ranks:
/// DeckError for a pattern that matches nothing and where nothing is left to take, StorageError for
/// a checkpoint that cannot be read.
WarmStart warm_start(ModelInstance& instance, const CheckpointSection& wish);

}  // namespace choir
