#pragma once
// Beginning with parameters of another run: checkpoint.init_from.
#include <string>
#include <vector>

#include "choir/deck/deck.hpp"
#include "choir/infer/model_instance.hpp"

namespace choir {

struct WarmStart {
  std::string path;                 ///< of the checkpoint
  std::vector<std::string> taken;   ///< parameters
  std::vector<std::string> fresh;   ///< "head.weight: stored as f32 [65, 128], wanted ..."
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
