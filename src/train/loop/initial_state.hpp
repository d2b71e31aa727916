#pragma once
// The initialisation of a run from the parameters of other runs: checkpoint.init_from as a single
// path, or as a map from patterns of parameter names to several runs.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "choir/deck/deck.hpp"
#include "choir/run/model_instance.hpp"
#include "src/run/stored_model.hpp"
#include "src/store/manifest.hpp"
#include "src/store/open.hpp"
#include "src/store/stored_tensor.hpp"

namespace choir {

struct WarmStart {
  std::string path;                 ///< of the checkpoint
  std::vector<std::string> taken;   ///< names of parameters
  std::vector<std::string> fresh;   ///< "head.weight: in checkpoint.init_skip"
  std::int64_t fresh_elements = 0;  ///< number of parameters in `fresh`
  std::vector<std::string> unused;  ///< tensors of the checkpoint
  std::string vocabulary;           ///< TrainMeta::vocabulary of the checkpoint
  std::vector<BaseFile> bases;      ///< the files that have the parameters in `taken`

  /// The result in a line for the log, with the first parameters that were not taken.
  std::string headline() const;
  /// The whole result, formatted for start.txt.
  std::string to_string() const;
};

/// Called after ModelInstance::initialise(). Reads parameters of equal name, shape and type,
/// whatever layout wrote them, if they match checkpoint.init_take (empty: all) and not
/// checkpoint.init_skip; the others keep their initial values. `vocabulary` is that of the training
/// data, for ModelFamily::check_start(). Throws on all ranks: DeckError for a pattern that matches
/// nothing, for a parameter of another shape or type that is not in checkpoint.init_skip, if no
/// parameter can be taken, and without patterns if less than half of them can; StorageError for a
/// checkpoint that cannot be read. Collective over the mesh.
WarmStart warm_start(ModelInstance& instance, const Deck& deck, const std::string& vocabulary);

/// One entry of the map: parameters of the model that match `pattern` come from this checkpoint.
struct InitSource {
  std::string pattern;
  std::string path;
  std::vector<TensorRecord> tensors;  ///< of the checkpoint
};

struct InitPlan {
  /// The contribution of one source.
  struct Part {
    std::string prefix;  ///< prefix that the model's names have before the source's names
    std::vector<StoredTensor> tensors;  ///< tensors of the model, with their names in the source
    std::int64_t elements = 0;
  };
  /// Tensors of the model whose names start with the same component.
  struct Group {
    std::int64_t tensors = 0, fresh = 0;  ///< `fresh` tensors keep their initial values
    std::int64_t fresh_elements = 0;
  };
  std::vector<Part> parts;              ///< in the order of the sources
  std::map<std::string, Group> groups;  ///< by the first component of the names
  std::map<std::string, std::vector<std::string>>
      unused;  ///< unused tensors of each checkpoint, by its path

  /// The plan, formatted for people.
  std::string report(const std::vector<InitSource>& sources) const;
};

/// `model` lists the tensors that the model loads, named as in checkpoints
/// ("parameters/lm.head.weight"). Every parameter that matches a pattern and not `skip` is taken:
/// under its own name or, if the source does not have it, without leading components of the part of
/// the pattern before its first wildcard. For "lm.*", lm.head.weight is then head.weight; the same
/// components are removed for the whole pattern. Only adapters may be missing. Throws DeckError for
/// a pattern that matches nothing, for two that match one parameter, and for parameters that are
/// missing or have another shape or type. Pure.
InitPlan plan_init(const std::vector<StoredTensor>& model, const std::vector<InitSource>& sources,
                   const std::vector<std::string>& skip);

/// The start of a run with parts of several checkpoints.
struct PartsStart {
  std::string report;
  std::map<std::string, std::string> vocabularies;  ///< by the path in the deck; "" for none
  std::vector<BaseFile> bases;                      ///< the files that have the parameters
};

/// Called after ModelInstance::initialise(): reads the parameters of the checkpoint.init_from map,
/// whatever layouts wrote them. `vocabulary` is that of the training data, for
/// ModelFamily::check_start(). Throws on all ranks: DeckError as plan_init(), StorageError for a
/// checkpoint that cannot be read. Collective over the mesh.
PartsStart begin_with_parts(ModelInstance& instance, const Deck& deck,
                            const std::string& vocabulary);

/// A warning about a new run that trains adapters beside frozen weights which no checkpoint gives;
/// "" for other runs. Pure.
std::string warn_of_random_base(const ModelInstance& instance, const Deck& deck);

/// The checks of warm_start() and begin_with_parts() before they read any tensor, for a model that
/// needs no memory: checkpoints, patterns, shapes, vocabularies. Returns a line for each checkpoint
/// that the run begins with. Throws as they do. `world` has one rank. Local.
std::vector<std::string> check_initial_state(ModelInstance& instance, const Deck& deck,
                                             const std::string& vocabulary, Communicator& world);

}  // namespace choir
