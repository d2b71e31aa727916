#pragma once
// The steps that every tuning of a deck shares: reading it, planning and probing a variant, and
// writing the result. The search for micro-batches and for whole batches stands here, too; that for
// the buckets of speech is a part of the family (src/models/fastconformer/bucket_tuner.hpp).
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/comm/mpi/mpi_session.hpp"
#include "src/lab/plan/layout_plan.hpp"
#include "src/lab/tune/tune.hpp"
#include "src/run/run_setup.hpp"

namespace choir {

struct TuneRequest {
  const FamilyTable& families;
  std::string deck;                    ///< file of the deck
  std::vector<std::string> overrides;  ///< "key.path=value"
  std::string out;                     ///< file of the tuned deck; "": DECK_tuned.json
  TunePlace place;
  bool probe = false;  ///< also run steps on the device
};

/// A deck during its tuning. Rank 0 plans and writes; all ranks read the same deck. Functions are
/// collective over the world unless they say otherwise, and throw the same error on every rank.
class DeckTuning {
 public:
  /// Reads the deck and takes the place of the job. Throws DeckError, StorageError.
  DeckTuning(MpiSession& session, TuneRequest request);

  Communicator& world() { return mesh_->world(); }
  Mesh& mesh() { return *mesh_; }
  const TuneRequest& request() const { return request_; }
  /// True on rank 0, which plans and prints.
  bool speaks() const { return speaks_; }
  /// Variants of the deck as it was read.
  DeckVariants variants() const;
  /// Throws DeckError for synthetic data, which has no buckets.
  void refuse_synthetic();

  /// Prints on rank 0. Local.
  void say(const std::string& text) const;
  void say_head() const;
  /// Prints whether the plan fits, and where the deck was written. Local, on rank 0.
  void say_verdict() const;

  /// Decides on rank 0 and shares the result with all ranks.
  std::vector<std::string> decided(const std::function<std::vector<std::string>()>& decide);

  /// Makes the deck with these changes the result. Local.
  void write(const DeckVariants& variants, const std::vector<std::string>& changes);
  /// Makes an earlier result the result again. Local.
  void write(std::string deck) { written_ = std::move(deck); }
  const std::string& written() const { return written_; }
  /// Parses the result as `choir train` would. Local.
  Deck read_written() const;
  /// Plans the result on rank 0.
  void plan_written();
  /// Writes the result to its file on rank 0.
  void store();

  /// Runs steps of the result on the device of the training; afterwards all ranks have the result.
  /// `samples` and `data` as in probe_step().
  StepProbe probe_written(const std::vector<BatchShape>& shapes,
                          const std::vector<BatchShape>& evaluation_shapes,
                          std::int64_t samples = 0, TrainingData* data = nullptr);
  static DeckError nothing_ran(const std::string& what, const StepProbe& probe);

  PlanCase plan_case;              ///< the deck and its shapes
  std::int64_t vocabulary = 0;     ///< entries of the vocabulary of the data
  std::optional<LayoutPlan> plan;  ///< of the result; on rank 0

 private:
  void choose_out();

  TuneRequest request_;
  std::unique_ptr<Mesh> mesh_;
  bool speaks_;
  std::string text_, out_, limit_, written_;
  Workplace workplace_;  // of probes
};

/// Finds the largest micro-batch of samples of one shape. Collective.
void tune_micro_batches(DeckTuning& tuning);
/// Finds, within two percent, the largest value of the key from which all buckets follow:
/// data.batch_tokens or data.batch_duration. Collective.
void tune_whole_batches(DeckTuning& tuning);

}  // namespace choir
