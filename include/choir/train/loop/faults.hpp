#pragma once
// The deck's `fault` section: failures made on purpose, so that tests and drills see what a user
// would see. Each says on stderr what it does ("choir: fault: rank 1 ...") just before it does it.
#include <string>
#include <string_view>

#include "choir/deck/deck.hpp"
#include "choir/infer/model_instance.hpp"
#include "choir/store/store.hpp"

namespace choir {

class Faults {
 public:
  Faults(const Deck& deck, int rank)
      : section_(deck.fault), directory_(deck.run.dir + "/checkpoints"), rank_(rank) {}

  /// Local; the same on every rank. DeckError when a fault is for a rank that `ranks` do not have.
  void require_ranks(int ranks) const;
  /// Local. DeckError when a fault is for a parameter that its rank does not have (or does not
  /// train, where it is about a gradient).
  void require_parameters(ModelInstance& instance) const;
  /// Local, rank 0, before data is opened: truncates or corrupts the files that fault.truncate_data
  /// and fault.corrupt_data name, and leaves what they held beside them as NAME.intact. DeckError
  /// when that cannot be done.
  void damage_data() const;

  /// Local, before step `step` (from 1), and when it enters a phase ("backward"; "evaluation" and
  /// "save" follow their step): kills this process, stops it, sleeps, or throws, if so asked.
  void before_step(std::int64_t step) { at(step, "start"); }
  void in_phase(std::int64_t step, const char* phase) { at(step, phase); }
  /// The numbers to divide losses by: NaN at fault.nan_step, unless that is about a gradient.
  ByTerm targets(std::int64_t step, const ByTerm& targets) const;
  /// Whether spoil_gradients() has something to do at some step.
  bool spoils_gradients() const { return section_.nan_rank >= 0; }
  /// Local; see GradientReducer::before_sums. Queues.
  void spoil_gradients(std::int64_t step, const Stream& stream, const Bucket& bucket) const;
  /// Whether flip_weight() has something to do after this step, on any rank.
  bool flips_after(std::int64_t step) const { return section_.flip_step == step; }
  /// Local, with nothing in flight: inverts the lowest bit of the first element of a weight.
  void flip_weight(std::int64_t step, ModelInstance& instance) const;
  /// True where a stop request is to be raised.
  bool stop_at(std::int64_t step) const { return section_.stop_step == step; }
  /// For the checkpoint store: dies, refuses to write, or damages files, each at its instant.
  FaultHook in_save(const std::int64_t& current_step) const;

 private:
  void at(std::int64_t step, std::string_view place);

  FaultSection section_;
  CheckpointDirectory directory_;
  int rank_;
  std::int64_t slowed_ = -1;  ///< the last step that was
};

}  // namespace choir
