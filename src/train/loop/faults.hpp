#pragma once
// The deck's `fault` section: failures caused on purpose, so that tests and drills see what a user
// would see. Each announces itself on stderr ("choir: fault: rank 1 ...") just before it happens.
#include <string>
#include <string_view>

#include "choir/deck/deck.hpp"
#include "choir/run/model_instance.hpp"
#include "src/store/store.hpp"

namespace choir {

class Faults {
 public:
  Faults(const Deck& deck, int rank)
      : section_(deck.fault), directory_(deck.run.dir + "/checkpoints"), rank_(rank) {}

  /// Throws DeckError for a fault on a rank outside of `ranks`. Local; the same on every rank.
  void require_ranks(int ranks) const;
  /// Throws DeckError for a fault in a parameter that its rank does not have, or does not train if
  /// the fault concerns a gradient. Local.
  void require_parameters(ModelInstance& instance) const;
  /// Truncates or corrupts the files of fault.truncate_data and fault.corrupt_data; copies of them
  /// remain as NAME.intact. Throws DeckError if that is impossible. Called on rank 0 before data is
  /// opened. Local.
  void damage_data() const;

  /// Called before step `step` (from 1), and when it enters a phase ("backward"; "evaluation" and
  /// "save" follow their step). Kills this process, stops it, sleeps or throws, as requested.
  /// Local.
  void before_step(std::int64_t step) { at(step, "start"); }
  void in_phase(std::int64_t step, const char* phase) { at(step, phase); }
  /// The divisors of the losses: NaN at fault.nan_step, unless that fault concerns a gradient.
  ByTerm targets(std::int64_t step, const ByTerm& targets) const;
  /// True if spoil_gradients() acts at some step.
  bool spoils_gradients() const { return section_.nan_rank >= 0; }
  /// Queues a NaN; see GradientReducer::before_sums. Local.
  void spoil_gradients(std::int64_t step, const Stream& stream, const Bucket& bucket) const;
  /// True if flip_weight() acts after this step, on any rank.
  bool flips_after(std::int64_t step) const { return section_.flip_step == step; }
  /// Inverts the lowest bit of the first element of a weight, with no step in flight. Local.
  void flip_weight(std::int64_t step, ModelInstance& instance) const;
  /// True if a stop request must be raised.
  bool stop_at(std::int64_t step) const { return section_.stop_step == step; }
  /// Hook of the checkpoint store: it kills the process, refuses to write, or damages files, each
  /// at its instant.
  FaultHook in_save(const std::int64_t& current_step) const;

 private:
  void at(std::int64_t step, std::string_view place);

  FaultSection section_;
  CheckpointDirectory directory_;
  int rank_;
  std::int64_t slowed_ = -1;  ///< the last step that was slowed
};

}  // namespace choir
