#pragma once
// A model whose parts begin with parameters of several runs: checkpoint.init_from as a map.
#include <map>
#include <string>
#include <vector>

#include "choir/deck/deck.hpp"
#include "choir/infer/model_instance.hpp"
#include "choir/store/manifest.hpp"
#include "choir/store/stored_tensor.hpp"

namespace choir {

/// One entry of the map: parameters of the model that `pattern` matches are those of this
/// checkpoint.
struct InitSource {
  std::string pattern;
  std::string path;
  const std::vector<TensorRecord>* tensors = nullptr;  ///< of the checkpoint
};

struct InitPlan {
  /// What a source gives.
  struct Part {
    std::string prefix;                 ///< that the model's names have in front of the source's
    std::vector<StoredTensor> tensors;  ///< of the model, by the names that the source has
    std::int64_t elements = 0;
  };
  /// Tensors of the model whose names begin alike.
  struct Group {
    std::int64_t tensors = 0, fresh = 0;  ///< `fresh` of them keep their initial values
    std::int64_t fresh_elements = 0;
  };
  std::vector<Part> parts;                                 ///< in the order of the sources
  std::map<std::string, Group> groups;                     ///< by the first component of names
  std::map<std::string, std::vector<std::string>> unused;  ///< of each checkpoint, by its path

  /// For people.
  std::string report(const std::vector<InitSource>& sources) const;
};

/// Pure. `model`: what it loads, named as in checkpoints ("parameters/lm.head.weight"). Every
/// parameter that a pattern matches and `skip` does not is taken, under its own name, or where the
/// source does not have that, without leading components of what the pattern has before its first
/// wildcard: for "lm.*" lm.head.weight is head.weight; the same components for a whole pattern.
/// Only adapters may be missing. DeckError for a pattern that matches nothing, for two that match
/// one parameter, and for parameters that are missing or of another shape or type.
InitPlan plan_init(const std::vector<StoredTensor>& model, const std::vector<InitSource>& sources,
                   const std::vector<std::string>& skip);

/// Collective over the mesh, after ModelInstance::initialise(): reads what the map of
/// checkpoint.init_from names, whatever layouts wrote it, and returns what is to be said of it.
/// `vocabulary`: of the training data, for ModelFamily::check_start(). Throws on all ranks:
/// DeckError as plan_init(), StorageError for a checkpoint that cannot be read.
std::string begin_with_parts(ModelInstance& instance, const Deck& deck,
                             const std::string& vocabulary);

}  // namespace choir
