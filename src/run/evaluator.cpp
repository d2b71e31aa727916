#include "choir/run/evaluator.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "src/comm/agreement.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"

namespace choir {
namespace {

constexpr std::size_t kShownPairs = 3;

void keep_first(std::vector<ScoredPair>& pairs) {
  std::ranges::sort(pairs, {}, &ScoredPair::key);
  if (pairs.size() > kShownPairs) pairs.resize(kShownPairs);
}

constexpr std::size_t kWorstSamples = 10;

/// Keeps the pairs with the most errors; equal ones in the order of their keys, which does not
/// depend on the number of ranks.
void keep_worst(std::vector<ScoredPair>& pairs) {
  std::ranges::sort(pairs, [](const ScoredPair& a, const ScoredPair& b) {
    return a.errors != b.errors ? a.errors > b.errors : a.key < b.key;
  });
  if (pairs.size() > kWorstSamples) pairs.resize(kWorstSamples);
}

void add_to(std::vector<std::int64_t>& sums, std::span<const std::int64_t> counts) {
  CHOIR_CHECK(sums.size() == counts.size(), "{} integers for a counter of {}", counts.size(),
              sums.size());
  std::transform(sums.begin(), sums.end(), counts.begin(), sums.begin(), std::plus<>());
}

/// The targets of each term.
ByTerm targets_of(const Scores& scores, std::size_t terms) {
  const auto counted = scores.of(kTargetsCounter);
  if (counted.size() == 1) return {terms, static_cast<double>(counted.front())};
  ByTerm targets(counted.size(), 0);
  std::ranges::copy(counted, targets.begin());
  return targets;
}

/// True if the results of a tag are shown: it applies to some samples, and not to all of them
/// unless `all_tags`.
bool is_shown(const SetScores& set, const Scores& tag, bool all_tags) {
  const std::int64_t compared = tag.count(kComparedCounter);
  return compared > 0 && (all_tags || compared != set.all.count(kComparedCounter));
}

Validation validation(const std::vector<LossTerm>& terms, const ScoreMeaning& meaning,
                      const SetScores& set, bool all_tags) {
  Validation v = validation_of(terms, set.all.losses, targets_of(set.all, set.all.losses.size()));
  v.set = set.name;
  v.counts = {{kTargetsCounter, set.all.count(kTargetsCounter)}};
  if (std::string text = meaning.describe(set.all, v); !text.empty())
    v.sentences.emplace_back("", std::move(text));
  for (const auto& [tag, scores] : set.tags) {
    if (!is_shown(set, scores, all_tags)) continue;
    if (std::string text = meaning.describe_tag(scores, tag, v); !text.empty())
      v.sentences.emplace_back(tag, std::move(text));
  }
  return v;
}

std::string text_of(const std::vector<ScoredPair>& pairs, const std::string& answer) {
  constexpr std::string_view kReference = "reference";
  const std::size_t width = std::max(kReference.size(), answer.size()) + 2;
  std::string text;
  for (const ScoredPair& pair : pairs)
    text += fmt::format("{}{:<{}}{}\n{:<{}}{}", text.empty() ? "" : "\n\n", kReference, width,
                        pair.reference, answer, width, pair.answer);
  return text;
}

}  // namespace

std::span<const std::int64_t> Scores::of(std::string_view counter) const {
  const auto found = counters.find(counter);
  CHOIR_CHECK(found != counters.end(), "there is no counter '{}'", counter);
  return found->second;
}

Scores& Scores::operator+=(const Scores& other) {
  losses += other.losses;
  seconds += other.seconds;
  for (const auto& [name, counts] : other.counters) {
    std::vector<std::int64_t>& sums = counters[name];
    sums.resize(counts.size());
    add_to(sums, counts);
  }
  return *this;
}

Validation validation_of(const std::vector<LossTerm>& terms, const ByTerm& sums,
                         const ByTerm& announced) {
  const ByTerm targets = targets_of_terms(terms, announced);
  ByTerm means = sums;
  for (std::size_t t = 0; t < means.size(); ++t) means[t] /= targets[t];
  return {.loss = weighted_loss(terms, means, targets),
          .metrics = means_by_name(terms, means, targets)};
}

std::vector<Validation> validations_of(const std::vector<LossTerm>& terms,
                                       const ScoreMeaning& meaning,
                                       const std::vector<SetScores>& sets) {
  if (sets.size() == 1) return {validation(terms, meaning, sets.front(), true)};
  SetScores all;
  for (const SetScores& set : sets) {
    all.all += set.all;
    for (const auto& [tag, scores] : set.tags) all.tags[tag] += scores;
  }
  std::vector<Validation> list{validation(terms, meaning, all, true)};
  for (const SetScores& set : sets) {
    list.push_back(validation(terms, meaning, set, false));
    list.back().name = set.name;
  }
  return list;
}

SetSums::SetSums(ModelInstance& instance, const SetScorer& scorer, int set)
    : mesh_(instance.mesh()),
      shards_values_(instance.storage().sharding().values_sharded()),
      terms_(instance.loss_terms().size()),
      calls_(scorer.calls(set)),
      losses_(static_cast<std::size_t>(calls_ * mesh_.host_along(Axis::data).size()) * terms_),
      pair_key_(philox_key(0, scorer.pairs().order)) {
  const Communicator& stages = mesh_.host_along(Axis::pipeline);
  counts_here_ = stages.rank() == stages.size() - 1 && mesh_.coordinates()[Axis::tensor] == 0 &&
                 mesh_.coordinates()[Axis::context] == 0;
  scores_.name = scorer.name(set);
  // Every rank has all counters and tags, even those that it does not meet.
  for (const SampleTags& source : scorer.tags(set))
    for (const auto& [name, value] : source) scores_.tags[name + "=" + value];
  for (const ScoreCounter& counter : scorer.meaning().counters()) {
    scores_.all.counters[counter.name].resize(counter.size);
    if (!counter.tagged) continue;
    for (auto& [tag, scores] : scores_.tags) scores.counters[counter.name].resize(counter.size);
  }
}

void SetSums::add_losses(const ByTerm& sums) {
  CHOIR_CHECK(sums.size() <= terms_, "losses of {} terms, not {}", sums.size(), terms_);
  const Communicator& ranks = mesh_.host_along(Axis::data);
  const auto micro_batch = static_cast<std::size_t>(call_ * ranks.size() + ranks.rank());
  std::ranges::copy(sums, losses_.begin() + static_cast<std::ptrdiff_t>(micro_batch * terms_));
}

void SetSums::add(std::string_view counter, std::span<const std::int64_t> counts,
                  const SampleTags& tags) {
  if (counts_here_) add_own(counter, counts, tags);
}

void SetSums::add_own(std::string_view counter, std::span<const std::int64_t> counts,
                      const SampleTags& tags) {
  const auto found = scores_.all.counters.find(counter);
  CHOIR_CHECK(found != scores_.all.counters.end(), "there is no counter '{}'", counter);
  add_to(found->second, counts);
  for (const auto& [name, value] : tags) {
    auto& counters = scores_.tags.at(name + "=" + value).counters;
    if (const auto of_tag = counters.find(counter); of_tag != counters.end())
      add_to(of_tag->second, counts);
  }
}

void SetSums::add_pair(ScoredPair pair) {
  if (!counts_here_) return;
  const PhiloxBlock words = philox_at(pair_key_, static_cast<std::uint64_t>(pair.source),
                                      static_cast<std::uint64_t>(pair.number));
  pair.key = (static_cast<std::uint64_t>(words[0]) << 32) | words[1];
  if (pair.errors > 0) {
    worst_.push_back(pair);
    if (worst_.size() > 4 * kWorstSamples) keep_worst(worst_);
  }
  pairs_.push_back(std::move(pair));
  if (pairs_.size() > 4 * kShownPairs) keep_first(pairs_);
}

/// The loop over a set.
class SetEvaluation {
 public:
  SetEvaluation(ModelInstance& instance, SetScorer& scorer, int set)
      : mesh_(instance.mesh()), scorer_(scorer), set_(set), sums_(instance, scorer, set) {}

  SetScores run(ProgressLine* progress) {
    const double start = now_seconds();
    for (; sums_.call_ < sums_.calls_; ++sums_.call_) {
      if (progress != nullptr) progress->at(sums_.call_, sums_.calls_);
      scorer_.score(set_, sums_.call_, sums_);
    }
    scorer_.finish(set_, sums_);
    reduce();
    double& seconds = sums_.scores_.all.seconds;
    seconds = now_seconds() - start;
    mesh_.world().all_reduce(&seconds, 1, DType::f64, ReduceOp::max);
    return sums_.scores_;
  }

  /// The pairs of all ranks to show, on rank 0.
  std::vector<ScoredPair> pairs() {
    keep_first(sums_.pairs_);
    std::vector<ScoredPair> all = gathered(sums_.pairs_);
    keep_first(all);
    return all;
  }
  /// The pairs of all ranks with the most errors, on rank 0.
  std::vector<ScoredPair> worst() {
    keep_worst(sums_.worst_);
    std::vector<ScoredPair> all = gathered(sums_.worst_);
    keep_worst(all);
    return all;
  }

 private:
  std::vector<ScoredPair> gathered(const std::vector<ScoredPair>& own) {
    nlohmann::json mine = nlohmann::json::array();
    for (const ScoredPair& pair : own)
      mine.push_back({pair.source, pair.number, pair.reference, pair.answer, pair.errors,
                      pair.units, pair.key});
    // Text that is not UTF-8 is replaced in the same form on any number of ranks.
    std::vector<std::string> texts{dumped_safely(mine)};
    if (mesh_.world().size() > 1) texts = gather_texts(mesh_.world(), texts.front());
    std::vector<ScoredPair> all;
    for (const std::string& text : texts)
      for (const auto& pair : parsed_json(text))
        all.push_back({.source = pair[0].get<std::int32_t>(),
                       .number = pair[1].get<std::int32_t>(),
                       .reference = pair[2].get<std::string>(),
                       .answer = pair[3].get<std::string>(),
                       .errors = pair[4].get<std::int64_t>(),
                       .units = pair[5].get<std::int64_t>(),
                       .key = pair[6].get<std::uint64_t>()});
    return all;
  }
  void reduce() {
    std::vector<double>& losses = sums_.losses_;
    SetScores& scores = sums_.scores_;
    for (Communicator* all : {&mesh_.host_replicas(), &mesh_.host_along(Axis::pipeline)})
      if (!losses.empty()) all->all_reduce(losses.data(), losses.size(), DType::f64, ReduceOp::sum);
    scores.all.losses = ByTerm(sums_.terms_, 0);
    for (std::size_t i = 0; i < losses.size(); ++i)
      scores.all.losses[i % sums_.terms_] += losses[i];
    std::vector<std::int64_t*> places;
    const auto append = [&](Scores& of) {
      for (auto& [name, counts] : of.counters)
        for (std::int64_t& count : counts) places.push_back(&count);
    };
    append(scores.all);
    for (auto& [tag, of_tag] : scores.tags) append(of_tag);
    std::vector<std::int64_t> counts;
    for (const std::int64_t* place : places) counts.push_back(*place);
    mesh_.world().all_reduce(counts.data(), counts.size(), DType::i64, ReduceOp::sum);
    for (std::size_t i = 0; i < places.size(); ++i) *places[i] = counts[i];
  }

  Mesh& mesh_;
  SetScorer& scorer_;
  int set_;
  SetSums sums_;
};

SetScores score_set(ModelInstance& instance, SetScorer& scorer, int set, ProgressLine* progress,
                    std::vector<ScoredPair>* pairs, std::vector<ScoredPair>* worst) {
  SetEvaluation evaluation(instance, scorer, set);
  SetScores scores = evaluation.run(progress);
  if (pairs != nullptr) *pairs = evaluation.pairs();
  if (worst != nullptr) *worst = evaluation.worst();
  return scores;
}

EvaluationResult evaluate_sets(ModelInstance& instance, SetScorer& scorer, ProgressLine* progress) {
  std::vector<SetScores> sets;
  std::vector<ScoredPair> pairs;
  std::vector<WorstSample> worst;
  for (int set = 0; set < scorer.sets(); ++set) {
    std::vector<ScoredPair> of_set;
    sets.push_back(
        score_set(instance, scorer, set, progress, set == 0 ? &pairs : nullptr, &of_set));
    if (instance.mesh().rank() != 0) continue;
    for (ScoredPair& pair : of_set)
      worst.push_back({.set = scorer.name(set),
                       .place = scorer.place(set, pair.source, pair.number),
                       .reference = std::move(pair.reference),
                       .answer = std::move(pair.answer),
                       .errors = pair.errors,
                       .units = pair.units});
  }
  std::ranges::stable_sort(worst, std::greater<>(), &WorstSample::errors);
  if (worst.size() > kWorstSamples) worst.resize(kWorstSamples);
  return {.sets = validations_of(instance.loss_terms(), scorer.meaning(), sets),
          .examples = text_of(pairs, scorer.pairs().answer),
          .worst = std::move(worst)};
}

}  // namespace choir
