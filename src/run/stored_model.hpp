#pragma once
// The stored form of a model: its parameters and statistics as logical tensors, the progress of its
// run, and the text beside them. The deck and the vocabulary are in that text, so that a checkpoint
// alone can generate text. Training adds the state of its optimizer (src/train/step).
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "choir/nn/parameter.hpp"
#include "choir/run/model_instance.hpp"
#include "src/store/store.hpp"

namespace choir {

/// State of the optimizer between steps, except its moments.
struct UpdateState {
  std::int64_t updates = 0;
  double loss_scale = 1;        ///< of the next step
  std::int64_t good_steps = 0;  ///< updates since the scale changed
};

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
  std::string products;    ///< ProductTiming::table, or ""
  std::string provenance;  ///< revision, compiler, hosts: JSON

  std::string to_json() const;
  /// Throws StorageError if the text was not written by to_json().
  static TrainMeta parse(const std::string& json, const std::string& path);
};

/// Prefix of the names of running statistics; the norm's name and ".running_mean" or
/// ".running_variance" follow.
inline constexpr std::string_view kRunningStatistics = "state/running/";

/// The masters and running statistics of a model without training state.
std::vector<StoredTensor> parameters_to_load(ModelInstance& instance);

/// The part of a tensor that this rank moves: the part-th of `parts` equal parts of the elements
/// that it owns; with `all`, everything that it holds.
struct WritingShare {
  std::int64_t part = 0, parts = 1;
  bool all = false;
};

/// Elements of a tensor shaped like a parameter that this rank holds, on the device or outside.
struct ParameterElements {
  TensorView view;
  bool outside = false;
};

/// Adds this rank's elements of a logical tensor of every parameter's kind ("parameters",
/// "optimizer/m"): none if another stage holds it, otherwise pieces of all its tiles. Tied weights
/// are stored once and loaded into all copies.
void add_stored(std::vector<StoredTensor>& list, const std::string& kind, const Parameter& p,
                DType dtype, ModelInstance& instance, const WritingShare& share,
                const std::function<ParameterElements(const Parameter&)>& elements_of);
/// Adds the master of a parameter ("parameters/NAME").
void add_master(std::vector<StoredTensor>& list, ModelInstance& instance, const Parameter& p,
                const WritingShare& share);
/// Adds running statistics of norms, as logical tensors shaped like the weight of the norm. On load
/// every rank has pieces; on save only the first of the ranks with equal values. `prefix` precedes
/// the names, and `values_of` returns mean and variance of a norm, by its index, if they are not
/// those of the model.
void add_statistics(
    std::vector<StoredTensor>& list, ModelInstance& instance, bool load,
    const std::string& prefix = "",
    const std::function<std::pair<TensorView, TensorView>(std::size_t norm)>& values_of = {});

}  // namespace choir
