#pragma once
// The update of the parameters: the learning rate of a step, the element numbers that random bits
// are drawn with, and the update rules AdamW and LARS.
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/memory_plan.hpp"
#include "choir/core/philox.hpp"
#include "choir/ops/step_control.hpp"
#include "choir/parallel/sharding/parameter_storage.hpp"
#include "choir/parallel/sharding/sharding.hpp"
#include "kernels/update/adamw.hpp"
#include "src/optim/lars.hpp"
#include "src/optim/state_stream.hpp"

namespace choir {

/// Maps some elements of a bucket to their numbers in the model, which are the same in every layout
/// and index the random numbers of the elements. A rank that holds a part of a tensor, or of a
/// bucket, therefore draws the same numbers for its elements as a single rank with the whole model
/// would.
struct ElementSpan {
  Range local;  ///< elements of the bucket as this rank holds it
  ops::ElementNumbers elements;
};

/// The spans of a placed bucket in order, as few as possible: one if each tensor is whole,
/// otherwise about one per tensor. Elements in no span are padding.
std::vector<ElementSpan> element_spans(const Bucket& bucket);

/// The learning rate as a pure function of the step.
struct LrSchedule {
  enum class Kind { constant, cosine, linear, inverse_sqrt } kind = Kind::cosine;
  double peak = 1e-3;
  double floor = 0;               ///< min_lr
  std::int64_t warmup_steps = 0;  ///< linear: peak * (step + 1) / (warmup + 1), as nanoGPT
  std::int64_t decay_steps = 1;   ///< step at which cosine and linear reach the floor

  /// `step` counts from 0. inverse_sqrt: peak * sqrt(max(1, warmup) / max(1, step)), not below the
  /// floor.
  double at(std::int64_t step) const;
};

enum class UpdateRule { adamw, lars };
/// "adamw" or "lars", as in optimizer.name.
UpdateRule update_rule_of(const std::string& name);
/// Names of the states that the rule keeps for every trained parameter, as in checkpoints: "m",
/// "v".
std::span<const std::string_view> moment_names(UpdateRule rule);

/// AdamW or LARS over the buckets of a model, or this rank's slices of them. Weight decay and
/// LARS's ratios apply only to the decayed range of each bucket; buckets of frozen parameters are
/// ignored. Offloaded state is updated in chunks, element by element, with the same results.
class Optimizer {
 public:
  struct Options {
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
    UpdateRule rule = UpdateRule::adamw;
    double momentum = 0.9, trust_coefficient = 1e-3;  ///< LARS
    /// A factor on the learning rate of a parameter, the same for all tiles and copies of it. An
    /// empty function means 1 for all.
    std::function<double(const Parameter&)> scale{};
  };
  /// `seed` determines the random rounding of bf16 masters.
  Optimizer(ParameterStorage& storage, Device& device, const Options& options, std::uint64_t seed);

  /// Local. The values of `control` (device memory) after ops::end_step() and, for LARS, the
  /// `ratios` computed in this step determine the update; AdamW takes no ratios. `updated` is
  /// called for each bucket once its update is queued; it may be empty. With state in a file the
  /// host waits for it, and a failure of the file throws StorageError.
  void step(const Stream& stream, const ops::StepControl* control, const TrustRatios* ratios,
            const std::function<void(const Bucket&)>& updated = {});

  std::span<const std::string_view> moment_names() const {
    return choir::moment_names(options_.rule);
  }
  /// The moment with index `which`, restricted to the part of a trained parameter that this rank
  /// owns, in the gradient's type, 1-D; in host memory if ParameterStorage::offloaded().
  TensorView moment(std::size_t which, const Parameter& parameter) const;
  /// Offloaded memory is counted by the storage.
  void add_to(MemoryPlan& plan) const;

 private:
  /// Elements [first, first + count) of a slice of a bucket, with their tensors.
  struct Part {
    const Bucket* bucket = nullptr;
    std::int64_t first = 0, count = 0;
    TensorView master, m, v, copy;
  };
  /// The inputs of a step that are common to all parts.
  struct Decided {
    const ops::StepControl* control = nullptr;
    const TrustRatios* ratios = nullptr;
  };
  void update(const Stream& stream, const Decided& step, const Part& part);
  void update_outside(const Stream& stream, const Decided& step, const Bucket& bucket,
                      const Range& chunk);
  void adamw(const Stream& stream, const Decided& step, const Part& part);
  void lars(const Stream& stream, const Decided& step, const Part& part);
  Range in_bucket(const Part& part) const;
  /// A range of parameters of a bucket with the same factor on the learning rate.
  struct ScaledRange {
    Range local;
    double scale = 1;
  };
  std::vector<ScaledRange> scaled_ranges(const Bucket& bucket) const;
  std::size_t index_of(const Bucket& bucket) const;
  TensorView moment_of(std::size_t which, const Bucket& bucket) const;

  ParameterStorage* storage_;
  Options options_;
  PhiloxKey rounding_;
  std::vector<std::vector<ElementSpan>> spans_;   // by bucket
  std::vector<std::vector<ScaledRange>> scales_;  // by bucket; without gaps
  Buffer memory_;
  std::array<TensorView, 2> moments_;  // [slices of all buckets] each; LARS has only one
  std::unique_ptr<StateStream> state_;
  std::vector<Range> chunks_;  // ranges in the slice of their bucket, in the order of buckets
};

}  // namespace choir
