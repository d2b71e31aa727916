#pragma once
// Evaluation of a model on named validation sets, by one loop for all families. It divides the
// micro-batches of a set among the ranks of the data axis, adds the results up in the order of the
// micro-batches, whatever the number of ranks, groups them by tags, and picks examples to show. A
// family says how a micro-batch is scored (SetScorer) and what sums mean (ScoreMeaning).

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "choir/core/log.hpp"
#include "choir/core/philox.hpp"
#include "choir/models/model.hpp"
#include "choir/run/model_instance.hpp"

namespace choir {

/// The results of one validation set; equal on every rank. One place writes them: see
/// src/run/evaluation_record.hpp.
struct Validation {
  std::string name{};  ///< "" for the only set, or for all sets together
  double loss = 0;
  std::vector<std::pair<std::string, double>> metrics{};  ///< "wer", "cer", "wer/lang=en" ...
  std::optional<double> perplexity{};  ///< of language models; shown by `choir eval` alone
  /// Sizes of the sums: "targets" ...; shown by `choir eval` alone.
  std::vector<std::pair<std::string, std::int64_t>> counts{};
  /// The integers behind error rates: "words", "insertions" ...; in records alone.
  std::vector<std::pair<std::string, std::int64_t>> errors{};
  std::string set{};  ///< the name of the set, also of the only one; "" for all sets together
  /// Sentences for people: that of the set, under the name "", and those of its tags. May be empty.
  std::vector<std::pair<std::string, std::string>> sentences{};
};

/// A sample whose output was compared with a reference.
struct ScoredPair {
  std::int32_t source = 0, number = 0;  ///< identify the sample: its source and its number there
  std::string reference, answer;
  std::int64_t errors = 0;  ///< edits between both; 0 if they are not counted
  std::int64_t units = 0;   ///< units of the reference, in which errors are counted
  std::uint64_t key = 0;    ///< the pairs with the smallest keys are shown; set by SetSums
};

/// A sample with errors, for people.
struct WorstSample {
  std::string set;    ///< name of the validation set
  std::string place;  ///< SetScorer::place(), for example the file of a recording
  std::string reference, answer;
  std::int64_t errors = 0, units = 0;  ///< see ScoredPair
};

struct EvaluationResult {
  /// All sets together under the name "" first, then, if there are several, each of them. The loss
  /// of the first decides which checkpoint is best.
  std::vector<Validation> sets;
  std::string examples;  ///< references and the model's outputs, on rank 0; "" if there are none
  /// The samples of all sets with the most errors, those with more first; on rank 0. Empty if the
  /// family counts no errors of samples, or if there are none.
  std::vector<WorstSample> worst{};
};

/// The tags of a sample, by name.
using SampleTags = std::map<std::string, std::string>;

/// Sums over the samples of one set or several, or over those with one tag.
struct Scores {
  ByTerm losses;       ///< not of tags, because samples of several tags share micro-batches
  double seconds = 0;  ///< wall time of the slowest rank; not of tags
  std::map<std::string, std::vector<std::int64_t>, std::less<>> counters;

  std::span<const std::int64_t> of(std::string_view counter) const;
  /// The first integer of a counter.
  std::int64_t count(std::string_view counter) const { return of(counter).front(); }
  Scores& operator+=(const Scores& other);
};

struct SetScores {
  std::string name;
  Scores all;
  std::map<std::string, Scores> tags{};  ///< by "NAME=VALUE"
};

/// A group of integers that are summed over samples.
struct ScoreCounter {
  std::string name;
  std::size_t size = 1;
  bool tagged = false;  ///< also summed for each tag
};
/// The counter that every family has: the targets that the losses are divided by. It has one
/// integer, or one for each term that counts for itself.
inline constexpr const char* kTargetsCounter = "targets";
/// The samples that were compared with a reference, if a family has tags.
inline constexpr const char* kComparedCounter = "compared";

/// Derives the results of a family from sums. All functions are local and pure.
class ScoreMeaning {
 public:
  virtual ~ScoreMeaning() = default;
  virtual std::vector<ScoreCounter> counters() const { return {{kTargetsCounter}}; }
  /// Adds metrics to `to`, which has the loss and the means of its terms, and may rename counts.
  /// Returns a sentence for people, or "".
  virtual std::string describe(const Scores& scores, Validation& to) const = 0;
  /// The same for the samples with one tag; the metrics are called "NAME/TAG".
  virtual std::string describe_tag(const Scores&, const std::string& /*tag*/, Validation&) const {
    return {};
  }
};

/// The results for the sums of all sets (EvaluationResult::sets). The results of all sets together
/// include every tag, those of one of several sets the tags that apply to a part of it. Pure.
std::vector<Validation> validations_of(const std::vector<LossTerm>& terms,
                                       const ScoreMeaning& meaning,
                                       const std::vector<SetScores>& sets);

/// Divides sums of losses by the numbers of targets of each term, which are announced as those of a
/// step are. The result is the loss and, if there are several terms, each as a metric.
Validation validation_of(const std::vector<LossTerm>& terms, const ByTerm& sums,
                         const ByTerm& announced);

class SetScorer;

/// The sums of this rank while a set is scored.
class SetSums {
 public:
  SetSums(ModelInstance& instance, const SetScorer& scorer, int set);

  /// True if this rank leaves out a micro-batch without samples. It runs the model nevertheless if
  /// it has to provide its part of the parameters to other ranks.
  bool leaves_out(bool empty) const { return empty && !shards_values_; }
  /// True on the one rank that counts the results of a micro-batch, among those that have them.
  bool counts_here() const { return counts_here_; }
  /// The sums of the losses of the current micro-batch. The values of the ranks of the context and
  /// the pipeline axes are added up.
  void add_losses(const ByTerm& sums);
  /// Adds to a counter, and if it is tagged, to that of each tag. Ignored unless counts_here().
  void add(std::string_view counter, std::span<const std::int64_t> counts,
           const SampleTags& tags = {});
  void add(std::string_view counter, std::int64_t count, const SampleTags& tags = {}) {
    add(counter, std::span(&count, 1), tags);
  }
  /// The same on any rank, for results that only this rank has.
  void add_own(std::string_view counter, std::span<const std::int64_t> counts,
               const SampleTags& tags = {});
  /// Offers an example. Ignored unless counts_here().
  void add_pair(ScoredPair pair);

 private:
  friend class SetEvaluation;
  Mesh& mesh_;
  bool shards_values_, counts_here_;
  std::size_t terms_;
  std::int64_t calls_, call_ = 0;
  // One entry for each micro-batch and term, zero on the other ranks: sums are in the order of
  // the micro-batches.
  std::vector<double> losses_;
  SetScores scores_;
  PhiloxKey pair_key_;
  std::vector<ScoredPair> pairs_;
  std::vector<ScoredPair> worst_;  // those with the most errors
};

/// The validation sets of a family.
class SetScorer {
 public:
  virtual ~SetScorer() = default;
  virtual const ScoreMeaning& meaning() const = 0;
  virtual int sets() const = 0;
  virtual std::string name(int set) const = 0;
  /// The number of calls in which every rank of the data axis gets one micro-batch, possibly an
  /// empty one. In call c, rank r gets micro-batch c * ranks + r.
  virtual std::int64_t calls(int set) const = 0;
  /// The tags of each source of a set: the same on every rank.
  virtual std::vector<SampleTags> tags(int /*set*/) const { return {}; }
  /// Runs this rank's micro-batch of a call. Collective over the mesh, if leaves_out() is false.
  virtual void score(int set, std::int64_t call, SetSums& sums) = 0;
  /// Called after the last micro-batch of a set. Collective over the mesh.
  virtual void finish(int /*set*/, SetSums&) {}

  struct Pairs {
    const char* answer = "answer";        ///< the model's output, beside "reference"
    const char* order = "pairs to show";  ///< the name of the random order of examples
  };
  virtual Pairs pairs() const { return {}; }
  /// Names a sample for people, for example by its file. Local; called on rank 0 for a few samples.
  virtual std::string place(int /*set*/, std::int32_t /*source*/, std::int32_t /*number*/) const {
    return {};
  }
};

/// Scores all sets; examples are of the first. Collective over the mesh of the instance.
EvaluationResult evaluate_sets(ModelInstance& instance, SetScorer& scorer, ProgressLine* progress);
/// The sums of one set, equal on every rank, and on rank 0 the pairs to show and those with the
/// most errors, in their order. Collective over the mesh.
SetScores score_set(ModelInstance& instance, SetScorer& scorer, int set, ProgressLine* progress,
                    std::vector<ScoredPair>* pairs = nullptr,
                    std::vector<ScoredPair>* worst = nullptr);

}  // namespace choir
