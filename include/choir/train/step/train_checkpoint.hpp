#pragma once
// What a training run stores and how it is put back: parameters, moments, progress, and beside them
// the deck and the vocabulary, so that a checkpoint alone can generate text.
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "choir/nn/parameter.hpp"
#include "choir/store/store.hpp"
#include "choir/train/step/engine.hpp"

namespace choir {

/// Where a run stands. Layout-free integers; all of the state that is not a tensor
/// but the last, which the text beside the tensors holds.
struct Progress {
  std::int64_t step = 0;              ///< steps done
  std::int64_t updates = 0;           ///< of them with an optimizer update
  std::int64_t consumed_samples = 0;  ///< sequences used; the position of the sampler
  std::int64_t skipped_in_a_row = 0;  ///< non-finite steps since the last good one
                                      ///< (overflows of a dynamic loss scale do not count)
  double best_val_loss = std::numeric_limits<double>::infinity();
  double loss_scale = 1;        ///< of the next step
  std::int64_t good_steps = 0;  ///< updates since it changed
  std::string data;             ///< TrainMeta::data of the checkpoint

  UpdateState update_state() const { return {updates, loss_scale, good_steps}; }
  /// Views of the members, for the checkpoint; the last two only where they change by themselves.
  std::vector<State> states(bool dynamic_loss_scale);
};

/// Text beside the tensors.
struct TrainMeta {
  std::string deck;        ///< resolved deck, JSON
  std::string vocabulary;  ///< tokenizer as JSON, or ""
  std::int64_t vocab_size = 0;
  std::string data;        ///< TrainingData::position(), or ""
  std::string contents;    ///< TrainingData::contents(), or ""
  std::string provenance;  ///< revision, compiler, hosts: JSON

  std::string to_json() const;
  /// Throws StorageError when the text is not what to_json wrote.
  static TrainMeta parse(const std::string& json, const std::string& path);
};

/// What the names of running statistics begin with: then that of the norm, then ".running_mean" or
/// ".running_variance".
inline constexpr std::string_view kRunningStatistics = "state/running/";

/// Parameters, moments, running statistics and progress; this rank's pieces for saving (ranks that
/// hold the same share the writing) ...
std::vector<StoredTensor> tensors_to_save(Engine& engine, Progress& progress);
/// ... and all that it holds for loading; ModelInstance::publish() must follow.
std::vector<StoredTensor> tensors_to_load(Engine& engine, Progress& progress);
/// Local. Reduced gradients of the step last finished, likewise ("gradients/NAME"): what this rank
/// holds, or what it answers for. For comparisons; not part of a checkpoint.
std::vector<StoredTensor> gradient_tensors(Engine& engine, bool owned_only);
/// The masters and running statistics of a model without training state.
std::vector<StoredTensor> parameters_to_load(ModelInstance& instance);

/// Collective over the mesh: ranks that hold the same elements hold the same values, or every rank
/// throws CommError. `what` as in require_equal().
void require_equal_parameters(Engine& engine, const std::string& what);

}  // namespace choir
