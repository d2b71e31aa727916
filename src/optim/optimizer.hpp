#pragma once
// The update of the parameters, and the state that an update rule works on.
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "choir/core/memory_plan.hpp"
#include "choir/ops/step_control.hpp"
#include "choir/parallel/sharding/parameter_storage.hpp"
#include "choir/parallel/sharding/sharding.hpp"
#include "src/optim/state_stream.hpp"
#include "src/optim/update_rule.hpp"

namespace choir {

class AveragedWeights;

/// An update rule over the buckets of a model, or this rank's slices of them. Buckets of frozen
/// parameters are ignored. Offloaded state is updated in chunks, with the same results.
class Optimizer {
 public:
  using Options = UpdateSettings;
  /// `seed` determines the random rounding of bf16 masters and moments. `exact`: see UpdateContext.
  Optimizer(ParameterStorage& storage, Device& device, const Options& options, std::uint64_t seed,
            bool exact = false);

  /// Collective like TrainedNorm::compute(), after ops::end_step() and before step().
  void prepare(const Stream& stream, const UpdateInputs& inputs) {
    updater_->prepare(stream, inputs);
  }
  /// The values of `control` (device memory) after ops::end_step() determine the update. `updated`
  /// is called for each bucket once its update is queued; it may be empty. With state in a file the
  /// host waits for it, and a failure of the file throws StorageError. Collective over the data and
  /// tensor ranks if the rule has Granularity::matrix, otherwise local.
  void step(const Stream& stream, const ops::StepControl* control,
            const std::function<void(const Bucket&)>& updated = {});

  std::span<const std::string_view> moment_names() const { return options_.rule->moments(); }
  /// True if the moment with index `which` is kept for a trained parameter.
  bool keeps(std::size_t which, const Parameter& parameter) const {
    return options_.rule->keeps(options_, which, parameter);
  }
  /// The moment with index `which`, restricted to the part of a trained parameter that this rank
  /// owns, of type Precision::moment, 1-D; in host memory if ParameterStorage::offloaded(). Only if
  /// it is kept for the parameter.
  TensorView moment(std::size_t which, const Parameter& parameter) const;
  /// Offloaded averages are updated chunk by chunk, while the masters are in device memory; the
  /// caller updates all others after step(). nullptr: none.
  void average_into(const AveragedWeights* averages) { averages_ = averages; }
  /// Offloaded memory is counted by the storage.
  void add_to(MemoryPlan& plan) const;

 private:
  /// The elements of a slice of a bucket that have a moment, and their place among all of them.
  struct Kept {
    Range in_slice;
    std::int64_t at = 0;
  };
  enum class Phase { collect, update };
  void make_outside(Device& device, const OffloadedState& outside);
  void make_resident(Device& device);
  Kept kept_of(std::size_t which, const Bucket& bucket, std::int64_t slice) const;
  void pass(const Stream& stream, const ops::StepControl* control, const Updater::Round& round,
            Phase phase, const std::function<void(const Bucket&)>& updated);
  void work(const Stream& stream, const ops::StepControl* control, Phase phase,
            const UpdatePart& part);
  UpdatePart resident_part(const Bucket& bucket) const;
  UpdatePart part_outside(const Bucket& bucket, const Range& chunk,
                          const StateStream::Window& window) const;
  const Bucket& bucket(std::size_t index) const { return storage_->parameters().buckets()[index]; }

  ParameterStorage* storage_;
  Options options_;
  std::unique_ptr<Updater> updater_;
  std::vector<Updater::Round> rounds_;
  Buffer memory_;
  std::array<TensorView, kMostMoments> moments_;      // flat; empty if not kept
  std::array<std::vector<Kept>, kMostMoments> kept_;  // by bucket; empty with offload
  const AveragedWeights* averages_ = nullptr;
  std::unique_ptr<StateStream> state_;
  std::vector<Range> chunks_;     // ranges in the slice of their bucket, in the order of buckets
  std::vector<Range> chunks_of_;  // by bucket: indices of its chunks
};

}  // namespace choir
