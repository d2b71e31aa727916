#pragma once
// The tensors that a training run stores, and their restoration: parameters, moments and progress.
// The deck and the vocabulary are stored beside them, so that a checkpoint alone can generate text.
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "choir/nn/parameter.hpp"
#include "src/store/store.hpp"
#include "src/train/step/engine.hpp"

namespace choir {

/// The position of a run: all state that is not a tensor, as integers that do not depend on the
/// layout. Only `data` is stored in the text beside the tensors.
struct Progress {
  std::int64_t step = 0;              ///< steps done
  std::int64_t updates = 0;           ///< steps with an optimizer update
  std::int64_t consumed_samples = 0;  ///< sequences used: the position of the sampler
  std::int64_t skipped_in_a_row = 0;  ///< non-finite steps since the last good one
                                      ///< (overflows of a dynamic loss scale do not count)
  double best_val_loss = std::numeric_limits<double>::infinity();
  double loss_scale = 1;        ///< of the next step
  std::int64_t good_steps = 0;  ///< updates since the loss scale changed
  std::string data;             ///< TrainMeta::data of the checkpoint

  UpdateState update_state() const { return {updates, loss_scale, good_steps}; }
  /// Views of the members, for the checkpoint. The loss scale is included only if it is dynamic.
  std::vector<State> states(bool dynamic_loss_scale);
};

/// Text stored beside the tensors.
struct TrainMeta {
  std::string deck;        ///< resolved deck, JSON
  std::string vocabulary;  ///< tokenizer as JSON, or ""
  std::int64_t vocab_size = 0;
  std::string data;        ///< TrainingData::position(), or ""
  std::string contents;    ///< TrainingData::contents(), or ""
  std::string provenance;  ///< revision, compiler, hosts: JSON

  std::string to_json() const;
  /// Throws StorageError if the text was not written by to_json().
  static TrainMeta parse(const std::string& json, const std::string& path);
};

/// Prefix of the names of running statistics; the norm's name and ".running_mean" or
/// ".running_variance" follow.
inline constexpr std::string_view kRunningStatistics = "state/running/";

/// Parameters, moments, running statistics and progress: the pieces that this rank saves. Ranks
/// that hold the same elements divide the writing.
std::vector<StoredTensor> tensors_to_save(Engine& engine, Progress& progress);
/// The same, but everything that this rank holds, for loading; ModelInstance::publish() must
/// follow.
std::vector<StoredTensor> tensors_to_load(Engine& engine, Progress& progress);
/// Reduced gradients of the last finished step ("gradients/NAME"): everything that this rank holds,
/// or its part of the writing. For comparisons; they are not part of a checkpoint. Local.
std::vector<StoredTensor> gradient_tensors(Engine& engine, bool owned_only);
/// The masters and running statistics of a model without training state.
std::vector<StoredTensor> parameters_to_load(ModelInstance& instance);

/// Throws CommError on every rank unless ranks that hold the same elements hold equal values.
/// `what` as in require_equal(). Collective over the mesh.
void require_equal_parameters(Engine& engine, const std::string& what);

}  // namespace choir
