// The searches of `choir tune` for sizes that a key of the deck sets directly.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "choir/run/training_data.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/json_value.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/lab/tune/deck_tuning.hpp"

namespace choir {
namespace {

/// Tries the micro-batches in ascending order and stores the fastest so far: if the system kills
/// the process, it remains. Small ones do the work of several, because each step has one update,
/// whose time must not count against them; a whole global batch would take too long.
void probe_micro_batches(DeckTuning& tuning, const DeckVariants& variants,
                         const TunedMicroBatch& tuned) {
  auto rows = std::ranges::count_if(tuned.rows, &TunedMicroBatch::Row::fits);
  tuning.world().broadcast(&rows, sizeof rows, 0);
  constexpr std::int64_t kSamples = 16;
  std::string fastest;
  std::vector<ProbedMicroBatch> probed;
  for (std::ptrdiff_t r = 0; r < rows; ++r) {
    together(tuning.world(), [&] {
      if (tuning.speaks()) tuning.write(variants, tuned.rows[static_cast<std::size_t>(r)].changes);
    });
    ProbedMicroBatch one;
    one.probe = tuning.probe_written({}, {}, kSamples);
    one.micro = tuning.read_written().train.micro_batch_size;
    if (tuning.speaks())
      tuning.say(fmt::format(
          "  micro-batch {:>5} {}{}\n", one.micro, to_string(one.probe),
          one.probe.ran
              ? fmt::format("; {} a sequence", format_duration(one.seconds_per_sequence()))
              : ""));
    if (!one.probe.ran && r == 0)
      together(tuning.world(),
               [&] { throw DeckTuning::nothing_ran("the smallest micro-batch", one.probe); });
    if (!one.probe.ran) break;
    probed.push_back(std::move(one));
    if (fastest_of(probed) + 1 < probed.size()) continue;
    fastest = tuning.written();
    tuning.store();
  }
  tuning.write(fastest);
  tuning.say(choice_text(probed));
}

/// The search for the largest value of the key from which all buckets of a model follow.
class WholeBatchSearch {
 public:
  explicit WholeBatchSearch(DeckTuning& tuning)
      : tuning_(tuning), variants_(tuning.variants()), key_(key_of(tuning.plan_case.deck)) {}

  void run() {
    const double was = number_of_key(variants_.with({}));
    tuning_.say_head();
    // The search also ends when a larger batch has the same shapes, because the data has no larger
    // ones.
    double fits = 0, above = 0;
    std::string text;
    for (double value = was; above == 0 || above > 1.02 * fits + 1;) {
      const Tried tried = value < was ? try_smaller(value, was) : try_batch(value);
      if (tried.fits) text = tried.text;
      (tried.fits ? fits : above) = value;
      if (tried.fits && above == 0 && tried.same_shapes) break;
      if (fits == 0 && value <= was / kLeast) throw too_large(was, value);
      value = std::floor(fits == 0 ? value / 2 : above == 0 ? 2 * value : (fits + above) / 2);
    }
    try_batch(fits);
    if (tuning_.request().probe) fits = probe_whole_batches(fits, was);
    tuning_.store();
    if (!tuning_.speaks()) return;
    print_safely("{} = {:.0f} (was {:.0f})\n{}\n", key_, fits, was, text);
    const auto micro_batches = static_cast<double>(tuning_.plan_case.deck.train.micro_batches);
    if (const auto same = std::max(1LL, std::llround(micro_batches * was / fits));
        same != std::llround(micro_batches))
      print_safely(
          "train.micro_batches = {:.0f} is unchanged; for about as much data per step as before: "
          "train.micro_batches={}\n",
          micro_batches, same);
    tuning_.say_verdict();
  }

 private:
  static std::string key_of(const Deck& deck) {
    return deck.family().keys().find("data.batch_tokens") != nullptr ? "data.batch_tokens"
                                                                     : "data.batch_duration";
  }

  /// Lowers a value that fits until it runs. Returns that value; its deck is ready to be stored.
  double probe_whole_batches(double value, double was) {
    constexpr double kLess = 0.875;
    for (;; value = std::floor(kLess * value)) {
      const StepProbe probe = tuning_.probe_written(
          tuning_.plan_case.shapes, tuning_.plan_case.evaluation_shapes, 0, data_.get());
      tuning_.say(fmt::format("  {} = {:.0f} {}\n", key_, value, to_string(probe)));
      if (probe.ran) return value;
      if (kLess * value <= was / kLeast)
        together(tuning_.world(), [&] {
          throw DeckTuning::nothing_ran(fmt::format("{} = {:.0f}", key_, value), probe);
        });
      try_smaller(std::floor(kLess * value), was);
    }
  }

  static constexpr double kLeast = 64;  ///< the smallest value tried is the deck's value / kLeast

  DeckError too_large(double was, double least) const {
    return DeckError(
        fmt::format(
            "{} = {:.0f} is too large for {} per rank, and so are all values down to {:.0f}", key_,
            was, format_bytes(tuning_.plan_case.target.memory), least),
        "use more memory per rank, a larger parallel.tensor, or train.recompute");
  }

  struct Tried {
    bool fits = false, same_shapes = false;
    std::string text;  ///< the data's own report
  };
  /// Leaves the deck with this value ready to be stored, and its plan. Collective.
  Tried try_batch(double value) {
    together(tuning_.world(), [&] {
      tuning_.write(variants_, {fmt::format("{}={:.0f}", key_, value)});
      tuning_.plan_case.deck = tuning_.read_written();
    });
    const BatchSizes one{.micro = 1, .accum = 1, .global = 1};
    data_.reset();  // with the models that it has loaded
    data_ = tuning_.plan_case.deck.family().open_data(tuning_.plan_case.deck, one, tuning_.mesh(),
                                                      quiet_);
    tuning_.vocabulary = data_->vocab_size();
    Tried tried{.text = data_->to_string()};
    std::int64_t verdict[2] = {0, 0};
    verdict[1] = same_sizes(tuning_.plan_case.shapes, data_->shapes()) ? 1 : 0;
    tuning_.plan_case.shapes = data_->shapes();
    tuning_.plan_case.evaluation_shapes = data_->validation_shapes();
    tuning_.plan_case.scorers = {};
    const NullDevice device(tuning_.plan_case.target.kind);
    together(tuning_.world(), [&] { data_->add_scorers(tuning_.plan_case.scorers, &device); });
    data_->add_resident(tuning_.plan_case.scorers, &device);
    tuning_.plan_written();
    if (tuning_.speaks()) verdict[0] = tuning_.plan->fits() ? 1 : 0;
    tuning_.world().broadcast(verdict, sizeof verdict, 0);
    tried.fits = verdict[0] != 0, tried.same_shapes = verdict[1] != 0;
    return tried;
  }
  /// The same for a smaller value, whose batches may be too small for the longest samples.
  Tried try_smaller(double value, double was) {
    try {
      return try_batch(value);
    } catch (const DataError&) {
      throw too_large(was, value);
    }
  }
  double number_of_key(const Deck& deck) const {
    const auto json = parsed_json(resolved_json(deck));
    return json.at("data").at(key_.substr(key_.find('.') + 1)).get<double>();
  }
  static bool same_sizes(const std::vector<BatchShape>& a, const std::vector<BatchShape>& b) {
    return std::ranges::equal(a, b, [](const BatchShape& x, const BatchShape& y) {
      return x.samples == y.samples && x.tokens == y.tokens && x.audio_samples == y.audio_samples &&
             x.clips == y.clips;
    });
  }

  DeckTuning& tuning_;
  const DeckVariants variants_;
  const std::string key_;
  Logger quiet_{false};
  std::unique_ptr<TrainingData> data_;  ///< of the value that was tried last
};

}  // namespace

void tune_micro_batches(DeckTuning& tuning) {
  Logger quiet(false);
  if (tuning.vocabulary == 0 &&
      tuning.plan_case.deck.family().vocab_size(tuning.plan_case.deck) == 0) {
    Deck alone = tuning.plan_case.deck;
    alone.train.global_batch_size = 1;
    const BatchSizes one{.micro = 1, .accum = 1, .global = 1};
    tuning.vocabulary = alone.family().open_data(alone, one, tuning.mesh(), quiet)->vocab_size();
  }
  const DeckVariants variants = tuning.variants();
  TunedMicroBatch tuned;  // on rank 0
  together(tuning.world(), [&] {
    if (!tuning.speaks()) return;
    tuning.plan_case.deck = variants.with({});
    tuning.say_head();
    tuned = tune_micro_batch(tuning.plan_case, variants);
    tuning.say(to_string(tuned));
    tuning.write(variants, tuned.changes());
  });
  if (tuning.request().probe) probe_micro_batches(tuning, variants, tuned);
  tuning.plan_written();
  tuning.store();
  if (tuning.speaks()) tuning.say_verdict();
}

void tune_whole_batches(DeckTuning& tuning) {
  tuning.refuse_synthetic();
  WholeBatchSearch(tuning).run();
}

}  // namespace choir
