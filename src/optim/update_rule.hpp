#pragma once
// The interface of an update rule: what it keeps, what it needs, how it updates. A rule is one file
// here and one line of the table in update_rules.cpp. Code outside of this room asks a rule for its
// properties and never which rule it is.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "choir/core/error.hpp"
#include "choir/core/key_table.hpp"
#include "choir/core/memory_plan.hpp"
#include "choir/device/device.hpp"
#include "choir/nn/parameter.hpp"
#include "choir/ops/step_control.hpp"
#include "choir/parallel/sharding/parameter_storage.hpp"
#include "choir/parallel/sharding/sharding.hpp"

namespace choir {

class TrainedNorm;
class UpdateRule;

/// The smallest part of the gradient that determines the update of one element. With `tensor` all
/// of its norms are needed, with `matrix` all of its elements on one rank.
enum class Granularity { element, tensor, matrix };

/// Limit of the states that a rule keeps for an element, beside the weight itself.
inline constexpr std::size_t kMostMoments = 2;

/// Throws Error for a name that is not in the table; decks are checked before.
const UpdateRule& update_rule(std::string_view name);
/// All rules, in the order in which messages list them.
std::span<const UpdateRule* const> update_rules();

/// The values of optimizer.* that rules read.
struct UpdateSettings {
  double learning_rate = 1e-3;  ///< the peak
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1;
  const UpdateRule* rule = &update_rule("adamw");
  double momentum = 0.9, trust_coefficient = 1e-3;
  /// The values of the rule's own keys (UpdateRule::settings); nullptr: their defaults.
  std::shared_ptr<const HeldSettings> own{};
  /// A factor on the learning rate of a parameter, the same for all tiles and copies of it. An
  /// empty function means 1 for all.
  std::function<double(const Parameter&)> scale{};

  double scale_of(const Parameter& p) const { return scale ? scale(p) : 1; }
  /// `own` as the type that the rule gave it.
  template <class Settings>
  Settings own_as() const {
    if (own == nullptr) return {};
    const auto* const held = dynamic_cast<const SettingsOf<Settings>*>(own.get());
    CHOIR_CHECK(held != nullptr, "settings of another update rule");
    return held->value;
  }
};

/// Consecutive elements of this rank's slice of a bucket, in device memory.
struct UpdatePart {
  const Bucket* bucket = nullptr;
  Range in_bucket;  ///< their place in the whole bucket
  TensorView master, gradient;
  TensorView copy;  ///< empty if the model computes with the masters
  /// A state may cover only some of the elements: those from `first` of the part on.
  struct State {
    TensorView elements;
    std::int64_t first = 0;
  };
  std::array<State, kMostMoments> states{};

  /// Views of the elements [first, first + count) of the part.
  TensorView state(std::size_t which, std::int64_t first, std::int64_t count) const {
    const State& s = states[which];
    return s.elements.slice(first - s.first, count);
  }
  TensorView copy_of(std::int64_t first, std::int64_t count) const {
    return copy.empty() ? copy : copy.slice(first, count);
  }
};

/// The decisions and norms of a step, after ops::end_step().
struct UpdateInputs {
  /// The axes whose ranks hold other parts of the model: tensor, then pipeline. May be empty on one
  /// rank.
  std::span<Communicator* const> holders;
  const TrainedNorm* gradient = nullptr;  ///< the norm of this step's gradient ...
  int place = 0;                          ///< ... at this place
  const ops::StepControl* control = nullptr;
};

/// The objects that a rule works on. `exact`: the bits must not depend on the layout
/// (train.reproducible).
struct UpdateContext {
  ParameterStorage& storage;
  Device& device;
  const UpdateSettings& settings;  ///< outlives the updater
  std::uint64_t seed = 0;          ///< determines the random rounding of bf16 masters and moments
  bool exact = false;
};

/// A rule at work on the parameters of one model. In each step prepare() is called once, then the
/// trained buckets are updated in their order, round by round. In a round without an exchange,
/// update() is called for every part of its bucket. With one, collect() is called for every part of
/// its buckets, then exchange(), then update() for the same parts. Offloaded buckets come in
/// several parts, with the same results.
class Updater {
 public:
  /// Consecutive trained buckets, by their index.
  struct Round {
    std::size_t first = 0, count = 1;
    bool exchanges = false;
  };

  virtual ~Updater() = default;
  /// Collective over the data ranks and the holders.
  virtual void prepare(const Stream& /*stream*/, const UpdateInputs& /*inputs*/) {}
  /// Empty: each trained bucket by itself, without an exchange. Constant.
  virtual std::span<const Round> rounds() const { return {}; }
  /// Local: reads gradients, and updates states.
  virtual void collect(const Stream& /*stream*/, const ops::StepControl* /*control*/,
                       const UpdatePart& /*part*/) {}
  /// Collective over the data and tensor ranks.
  virtual void exchange(const Stream& /*stream*/, const ops::StepControl* /*control*/,
                        std::size_t /*round*/) {}
  /// Local: writes masters and copies.
  virtual void update(const Stream& stream, const ops::StepControl* control,
                      const UpdatePart& part) = 0;
  virtual void add_to(MemoryPlan& /*plan*/) const {}
};

/// The description of a rule before there is a model. Stateless; one object per rule.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  virtual std::string_view name() const = 0;   ///< as in optimizer.name
  virtual std::string_view about() const = 0;  ///< one sentence for the help of optimizer.name
  virtual Granularity granularity() const = 0;
  /// Names of the states of an element, as in checkpoints. At most kMostMoments.
  virtual std::span<const std::string_view> moments() const = 0;
  /// True if the state with index `which` is kept for the elements of a trained parameter.
  virtual bool keeps(const UpdateSettings& /*settings*/, std::size_t /*which*/,
                     const Parameter& /*p*/) const {
    return true;
  }
  /// The keys below "optimizer." that several rules read but not every one, without the name of the
  /// section. Decks have a member for each.
  virtual std::span<const std::string_view> keys() const = 0;
  /// The keys that belong to this rule alone, bound to the object of settings(), which also has
  /// their defaults. Decks get these keys from here.
  virtual const KeySet& own_keys() const;
  virtual std::unique_ptr<HeldSettings> settings() const;
  /// "" or what the rule needs masters of more than 16 bits for, as the end of a sentence.
  virtual std::string_view needs_wide_masters() const { return ""; }
  /// "" or what the rule needs all masters on the device for.
  virtual std::string_view needs_masters_on_device() const { return ""; }
  /// Bytes of memory traffic per element: of the update, and of the norms before it.
  struct Traffic {
    double update = 0, norms = 0;
  };
  virtual Traffic traffic(const Precision& precision) const = 0;
  virtual std::unique_ptr<Updater> make(const UpdateContext& context) const = 0;

 protected:
  /// The traffic if the weight, each moment and the copy are written, the first two also read, and
  /// the gradient is read twice, once for its norm.
  Traffic plain_traffic(const Precision& precision) const;
};

/// A range of a bucket with the same factor on the learning rate.
struct ScaledRange {
  Range local;
  double scale = 1;
};
/// Gaps between parameters, where everything is zero, belong to the range before them.
std::vector<ScaledRange> scaled_ranges(const UpdateSettings& settings, const Bucket& bucket);

}  // namespace choir
