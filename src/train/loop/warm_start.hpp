#pragma once
// Initialisation from the parameters of another run: checkpoint.init_from as a single path.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/deck/deck.hpp"
#include "choir/infer/model_instance.hpp"

namespace choir {

/// The name in the model of a checkpoint's tensor; "" if the tensor does not belong to a model.
std::string name_in_model(const std::string& stored);
/// Indented lines of a message; a long list is cut.
std::string line_list(const std::vector<std::string>& lines);

struct WarmStart {
  std::string path;                 ///< of the checkpoint
  std::vector<std::string> taken;   ///< names of parameters
  std::vector<std::string> fresh;   ///< "head.weight: stored as f32 [65, 128], wanted ..."
  std::int64_t fresh_elements = 0;  ///< number of parameters in `fresh`
  std::vector<std::string> unused;  ///< tensors of the checkpoint

  /// The result, formatted for the log.
  std::string to_string() const;
};

/// Called after ModelInstance::initialise(). Reads parameters of equal name, shape and type,
/// whatever layout wrote them, if they match checkpoint.init_take (empty: all) and not
/// checkpoint.init_skip; the others keep their initial values. Throws on all ranks: DeckError for a
/// pattern that matches nothing and if no parameter can be taken, StorageError for a checkpoint
/// that cannot be read. Collective over the mesh.
WarmStart warm_start(ModelInstance& instance, const CheckpointSection& wish);

}  // namespace choir
