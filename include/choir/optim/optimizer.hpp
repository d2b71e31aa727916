#pragma once
// The update of the parameters: the learning rate of a step, the numbers by which elements draw
// random bits, and the rules, AdamW and LARS.
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
#include "choir/ops/adamw.hpp"
#include "choir/ops/step_control.hpp"
#include "choir/optim/state_stream.hpp"
#include "choir/optim/trust_ratios.hpp"
#include "choir/parallel/sharding/parameter_storage.hpp"
#include "choir/parallel/sharding/sharding.hpp"

namespace choir {

/// What some elements of a bucket are called in every layout: the numbers of elements in the model,
/// for random numbers that belong to them. A rank that has a part of a tensor, or of a bucket,
/// draws for its elements what one rank with the whole model would.
struct ElementSpan {
  Range local;  ///< of the bucket as this rank holds it, in elements
  ops::ElementNumbers elements;
};

/// The spans of a placed bucket, in order, as few as there can be: one where each tensor is whole,
/// else about one a tensor. Elements in none are padding.
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
/// What the rule keeps of every parameter that is trained, as checkpoints call it: "m", "v".
std::span<const std::string_view> moment_names(UpdateRule rule);

/// AdamW or LARS over the buckets of a model, or this rank's slices of them. Weight decay, and
/// LARS's ratios, are for the decayed range of each bucket only; buckets of frozen parameters are
/// left alone. Offloaded state is updated in chunks, element by element with the same numbers.
class Optimizer {
 public:
  struct Options {
    double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
    UpdateRule rule = UpdateRule::adamw;
    double momentum = 0.9, trust_coefficient = 1e-3;  ///< LARS
    /// What the learning rate is multiplied with for a parameter, the same for all tiles and copies
    /// of one; empty: 1 for all.
    std::function<double(const Parameter&)> scale{};
  };
  /// `seed`: of the random rounding of bf16 masters.
  Optimizer(ParameterStorage& storage, Device& device, const Options& options, std::uint64_t seed);

  /// Local. What `control` (device memory) holds after ops::end_step() decides the update, and of
  /// LARS what `ratios` were computed to be in this step; AdamW has none.
  /// `updated` hears of each bucket when its update was queued; may be empty. With state in a file
  /// the host waits for it, and StorageError says that the file failed.
  void step(const Stream& stream, const ops::StepControl* control, const TrustRatios* ratios,
            const std::function<void(const Bucket&)>& updated = {});

  std::span<const std::string_view> moment_names() const {
    return choir::moment_names(options_.rule);
  }
  /// The moment of that number, of what this rank owns of a parameter that is trained, in the
  /// gradient's type, 1-D; in host memory where ParameterStorage::offloaded().
  TensorView moment(std::size_t which, const Parameter& parameter) const;
  /// What is offloaded is the storage's.
  void add_to(MemoryPlan& plan) const;

 private:
  /// A part of a slice of a bucket, elements [first, first + count), and what belongs to them.
  struct Part {
    const Bucket* bucket = nullptr;
    std::int64_t first = 0, count = 0;
    TensorView master, m, v, copy;
  };
  /// What decides a step, the same for all parts.
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
  /// Parameters of a bucket with one factor on the learning rate.
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
  std::vector<std::vector<ElementSpan>> spans_;   // of each bucket
  std::vector<std::vector<ScaledRange>> scales_;  // likewise; without gaps
  Buffer memory_;
  std::array<TensorView, 2> moments_;  // [slices of all buckets] each; LARS has one
  std::unique_ptr<StateStream> state_;
  std::vector<Range> chunks_;  // of the slice of its bucket, in the order of buckets
};

}  // namespace choir
