#include "src/models/fastconformer/bucket_tuner.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "src/comm/agreement.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/models/fastconformer/speech_data.hpp"
#include "src/models/fastconformer/speech_settings.hpp"

namespace choir {
namespace {

constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
constexpr double kMiB = 1024.0 * 1024.0;

/// "3.00 to 4.20 s, up to 60 labels"
std::string range_text(const UntunedBucket& bucket) {
  std::string text = fmt::format("{:.2f} to {:.2f} s", bucket.from_seconds, bucket.bin.seconds);
  if (bucket.bin.labels != kAny) text += fmt::format(", to {} labels", bucket.bin.labels);
  return text;
}

class Tuner {
 public:
  Tuner(const PlanCase& request, const std::vector<UntunedBucket>& buckets)
      : request_(request), buckets_(buckets), memo_(buckets.size()) {}

  std::vector<TunedBucket> run() {
    limit_ = plan({}).memory_limit;
    std::vector<TunedBucket> tuned = all(limit_);
    // Each bucket fits alone; the mixture that a pipeline has in flight may not.
    double lowered = limit_;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const double together = bytes_of(plan(shapes_of(tuned)));
      if (together <= limit_) return tuned;
      lowered *= std::min(limit_ / together, 0.99);
      tuned = all(lowered);
      for (TunedBucket& bucket : tuned)
        if (bucket.limited_by == "memory") bucket.limited_by = "memory, buckets mixed";
    }
    throw DeckError(fmt::format("no batch sizes were found with which all buckets together stay "
                                "within {}",
                                format_bytes(limit_)),
                    "use more memory per rank, or a smaller parallel.pipeline");
  }

 private:
  static constexpr int kAttempts = 12;

  static BatchShape shape_of(const UntunedBucket& bucket, std::int64_t batch) {
    return {.samples = batch, .audio_samples = bucket.samples, .labels = bucket.labels};
  }
  static std::vector<BatchShape> shapes_of(const std::vector<TunedBucket>& tuned) {
    std::vector<BatchShape> shapes;
    for (const TunedBucket& t : tuned) shapes.push_back(shape_of(t.bucket, t.batch));
    return shapes;
  }
  static double bytes_of(const LayoutPlan& plan) { return plan.needs(); }
  LayoutPlan plan(std::vector<BatchShape> shapes) const {
    PlanCase one = request_;
    one.shapes = std::move(shapes);
    if (one.shapes.empty()) one.shapes = {shape_of(buckets_.front(), 1)};
    one.evaluation_shapes.clear();
    return plan_layout(one);
  }
  double bytes(std::size_t bucket, std::int64_t batch) {
    double& known = memo_[bucket][batch];
    if (known == 0) known = bytes_of(plan({shape_of(buckets_[bucket], batch)}));
    return known;
  }

  std::vector<TunedBucket> all(double limit) {
    std::vector<TunedBucket> tuned;
    for (std::size_t i = 0; i < buckets_.size(); ++i) tuned.push_back(tune(i, limit));
    return tuned;
  }

  TunedBucket tune(std::size_t i, double limit) {
    const UntunedBucket& bucket = buckets_[i];
    if (bytes(i, 1) > limit) throw too_large(bucket, limit);
    std::int64_t fits = 1, over = bucket.most + 1;  // `over`: does not fit, or is above `most`
    for (int probe = 0; over - fits > 1; ++probe) {
      const std::int64_t next = guess(i, limit, fits, over, probe);
      (bytes(i, next) <= limit ? fits : over) = next;
    }
    const bool by_memory = fits < bucket.most;
    return {.bucket = bucket,
            .batch = fits,
            .bytes = bytes(i, fits),
            .next_bytes = by_memory ? bytes(i, fits + 1) : 0,
            .limited_by = by_memory ? "memory" : bucket.most_reason};
  }

  /// The next number to try. Memory grows almost linearly with the number of utterances, so the
  /// guess is where the line meets the limit and, after some probes, the middle.
  std::int64_t guess(std::size_t i, double limit, std::int64_t fits, std::int64_t over, int probe) {
    constexpr int kLines = 6;
    const auto within = [&](std::int64_t n) { return std::clamp(n, fits + 1, over - 1); };
    if (fits == 1 && probe == 0) return within(2);
    const bool over_is_planned = memo_[i].contains(over);
    if (probe >= kLines) {  // doubling until there are two ends to bisect between
      return over_is_planned ? fits + (over - fits) / 2 : within(2 * fits);
    }
    const std::int64_t other = over_is_planned ? over : 1;
    if (other == fits) return within(2 * fits);
    const double slope = (bytes(i, other) - bytes(i, fits)) / static_cast<double>(other - fits);
    if (!(slope > 0)) return within(2 * fits);
    const double more = std::min((limit - bytes(i, fits)) / slope, 1e15);
    return within(fits + static_cast<std::int64_t>(more));
  }

  DeckError too_large(const UntunedBucket& bucket, double limit) const {
    const LayoutPlan one = plan({shape_of(bucket, 1)});
    const MemoryPlan& memory = one.fullest().plan.memory;
    const double parameters = parameter_bytes(memory);
    const std::string numbers =
        fmt::format("one utterance of the bucket of {} needs {} a rank ({})", range_text(bucket),
                    format_bytes(bytes_of(one)), memory_text(memory));
    if (parameters > limit)
      return DeckError(fmt::format("the parameters alone, {} a rank, are above the limit of {}; {}",
                                   format_bytes(parameters), format_bytes(limit), numbers),
                       "use more memory per rank; or parallel.tensor, parallel.pipeline or "
                       "parallel.zero=3 on more ranks");
    return DeckError(
        fmt::format("{}, above the limit of {}", numbers, format_bytes(limit)),
        "use more memory per rank; train.recompute=full, parallel.zero or parallel.tensor on more "
        "ranks; or leave out long utterances by data.max_duration");
  }

  const PlanCase& request_;
  const std::vector<UntunedBucket>& buckets_;
  std::vector<std::map<std::int64_t, double>> memo_;
  double limit_ = 0;
};

/// Visits each utterance with its share of all draws.
template <class Visit>
void for_items(const SpeechBlend& blend, const Visit& visit) {
  double total = 0;
  for (int p = 0; p < blend.pools(); ++p) total += blend.pool(p).probability;
  for (int p = 0; p < blend.pools(); ++p)
    for (const SpeechItem& item : blend.pool(p).items)
      visit(item,
            blend.pool(p).probability / total / static_cast<double>(blend.pool(p).items.size()));
}

}  // namespace

double mean_seconds(const SpeechSampler& sampler, int sample_rate) {
  double seconds = 0;
  for_items(sampler.blend(), [&](const SpeechItem& item, double share) {
    seconds += share * static_cast<double>(item.samples) / sample_rate;
  });
  return seconds;
}

std::vector<UntunedBucket> buckets_of(const SpeechSampler& sampler, const SpeechFrames& frames,
                                      int sample_rate, std::int64_t max_utterances) {
  const SpeechBuckets& buckets = sampler.buckets();
  const auto count = static_cast<std::size_t>(buckets.count());
  std::vector<UntunedBucket> list(count);
  std::vector<std::int64_t> longest(count);
  std::vector<double> share(count);
  double last_seconds = 0;
  for_items(sampler.blend(), [&](const SpeechItem& item, double part) {
    const auto b = static_cast<std::size_t>(buckets.of(item.samples, item.labels));
    ++list[b].utterances;
    longest[b] = std::max<std::int64_t>(longest[b], item.samples);
    list[b].labels = std::max<std::int64_t>(list[b].labels, item.labels);
    share[b] += part;
    last_seconds = std::max(last_seconds, static_cast<double>(item.samples) / sample_rate);
  });
  const double last_edge = buckets.bin(buckets.count() - 1).seconds;
  const auto window = static_cast<double>(sampler.window());
  for (std::size_t b = 0; b < count; ++b) {
    UntunedBucket& bucket = list[b];
    bucket.bin = buckets.bin(static_cast<int>(b));
    if (b > 0) {
      const double below = buckets.bin(static_cast<int>(b) - 1).seconds;
      bucket.from_seconds = below == bucket.bin.seconds ? list[b - 1].from_seconds : below;
    }
    if (longest[b] == 0)  // empty bucket: assume the largest utterance
      longest[b] = std::llround(bucket.bin.seconds * sample_rate);
    if (bucket.bin.seconds == last_edge) bucket.bin.seconds = std::max(last_edge, last_seconds);
    bucket.samples = frames.padded(longest[b]);
    if (bucket.labels == 0)
      bucket.labels =
          std::max<std::int64_t>(1, std::min(bucket.bin.labels, frames.frames(bucket.samples)));
    bucket.batch = buckets.limit(static_cast<int>(b), longest[b]);
    const double drawn = window * share[b];
    bucket.most = std::clamp<std::int64_t>(std::llround(std::ceil(drawn + 3 * std::sqrt(drawn))), 1,
                                           sampler.window());
    bucket.most_reason = "data.window";
    if (max_utterances > 0 && max_utterances <= bucket.most) {
      bucket.most = max_utterances;
      bucket.most_reason = "data.max_utterances";
    }
  }
  return list;
}

std::vector<TunedBucket> tune_buckets(const PlanCase& request,
                                      const std::vector<UntunedBucket>& buckets) {
  CHOIR_CHECK(!buckets.empty(), "no buckets to tune");
  return Tuner(request, buckets).run();
}

std::vector<std::string> changes_of(const std::vector<TunedBucket>& buckets, const Deck& deck,
                                    int sample_rate) {
  std::vector<std::string> bins, sizes;
  double duration = 0;
  for (const TunedBucket& tuned : buckets) {
    const SpeechBin& bin = tuned.bucket.bin;
    bins.push_back(bin.labels == kAny ? fmt::format("\"{}\"", bin.seconds)
                                      : fmt::format("\"{}:{}\"", bin.seconds, bin.labels));
    sizes.push_back(fmt::format("\"{}\"", tuned.batch));
    // Duration of the longest utterance within the edge, rounded up to a sample.
    const double seconds = std::ceil(bin.seconds * sample_rate) / sample_rate;
    const double penalty = speech_settings(deck).data.quadratic_duration;
    const double counted = penalty > 0 ? seconds + seconds * seconds / penalty : seconds;
    duration = std::max(duration, static_cast<double>(tuned.batch) * counted);
  }
  return {"data.bucket_bins=[" + join(bins, ",") + "]",
          "data.bucket_sizes=[" + join(sizes, ",") + "]",
          fmt::format("data.batch_duration={}", std::ceil(duration))};
}

std::string to_string(const std::vector<TunedBucket>& buckets, double memory_limit) {
  std::string text =
      fmt::format("  {:<34} {:>10} {:>7} {:>7} {:>12} {:>12}  {}\n", "bucket", "utterances",
                  "batch", "tuned", "planned MiB", "one more", "limited by");
  for (const TunedBucket& t : buckets)
    text += fmt::format("  {:<34} {:>10} {:>7} {:>7} {:>12.1f} {:>12}  {}\n", range_text(t.bucket),
                        t.bucket.utterances, t.bucket.batch, t.batch, t.bytes / kMiB,
                        t.next_bytes > 0 ? fmt::format("{:.1f}", t.next_bytes / kMiB) : "-",
                        t.limited_by);
  return text + fmt::format("  limit {:.1f} MiB a rank\n", memory_limit / kMiB);
}

namespace {

/// Tries each bucket alone and reduces its utterances until it runs. Returns true if any bucket
/// has fewer now.
bool probe_buckets(DeckTuning& tuning, std::vector<TunedBucket>& tuned) {
  std::int64_t fewer = 0;
  std::size_t buckets = tuned.size();
  tuning.world().broadcast(&buckets, sizeof buckets, 0);
  tuned.resize(buckets);
  for (std::size_t b = 0; b < buckets;) {
    TunedBucket& bucket = tuned[b];
    BatchShape shape{.samples = bucket.batch,
                     .audio_samples = bucket.bucket.samples,
                     .labels = bucket.bucket.labels};
    tuning.world().broadcast(&shape, sizeof shape, 0);
    const StepProbe probe = tuning.probe_written({shape}, {});
    tuning.say(fmt::format("  to {:.2f} s: {:>5} {}\n", bucket.bucket.bin.seconds, shape.samples,
                           to_string(probe)));
    if (probe.ran) {
      ++b;
      continue;
    }
    if (shape.samples == 1)
      together(tuning.world(), [&] { throw DeckTuning::nothing_ran("one utterance", probe); });
    bucket.batch = shape.samples * 7 / 8;
    bucket.limited_by = "memory (probed)";
    fewer = 1;
  }
  return fewer != 0;
}

/// Reopens the data of the written deck, as train would, and plans it.
SpeechPadding reopen(DeckTuning& tuning, const DeckVariants& variants,
                     const std::vector<std::string>& changes, SpeechData& data) {
  together(tuning.world(), [&] {
    tuning.write(variants, changes);
    tuning.plan_case.deck = tuning.read_written();
  });
  data.set.reset();
  data = open_speech(tuning.plan_case.deck, tuning.mesh(), true);
  together(tuning.world(), [&] {
    if (!tuning.speaks()) return;
    tuning.plan_case.shapes = largest_shapes(data.set->shapes());
    tuning.plan_case.evaluation_shapes = largest_shapes(data.set->eval_shapes());
    tuning.plan = plan_layout(tuning.plan_case);
  });
  return data.set->padding();
}

/// Sets the old data.batch_duration for validation sets that have no batch_duration of their own.
std::vector<std::string> keep_evaluation(const Deck& deck, double duration) {
  const std::string word = fmt::format(" batch_duration={}", duration);
  std::vector<std::string> changes;
  for (const SpeechEvalSet& set : speech_data_config(deck, speech_request(deck)).eval) {
    const auto named = speech_settings(deck).data.validation.find(set.name);
    const std::string text =
        named != speech_settings(deck).data.validation.end() ? named->second : set.folders.front();
    if (set.batch_duration > 0) continue;
    changes.push_back("data.validation." + set.name + "=" + text + word);
  }
  if (!deck.data.val.empty()) changes.emplace_back("data.val=[]");
  return changes;
}
DeckError evaluation_too_large(const DeckTuning& tuning) {
  return DeckError(
      fmt::format("evaluation needs {} per rank, above the limit of {}",
                  format_bytes(tuning.plan->needs()), format_bytes(tuning.plan_case.target.memory)),
      "use smaller batches: data.validation.NAME=\"FOLDER batch_duration=S\", or "
      "max_duration=S there");
}

void say_batches(const DeckTuning& tuning, const SpeechPadding& before, const SpeechPadding& after,
                 double seconds) {
  const double was = before.mean_utterances, is = after.mean_utterances;
  tuning.say(fmt::format(
      "mean micro-batch: {:.1f} utterances, {:.1f} s of audio (was {:.1f}, {:.1f} s); padding "
      "{:.1f} % (was {:.1f} %)\n",
      is, is * seconds, was, was * seconds, 100 * after.bucketed, 100 * before.bucketed));
  const int micro_batches = tuning.plan_case.deck.train.micro_batches;
  const auto same =
      std::max<std::int64_t>(1, std::llround(static_cast<double>(micro_batches) * was / is));
  if (same != micro_batches)
    tuning.say(
        fmt::format("train.micro_batches = {} is unchanged, so a step has {:.1f} times as much "
                    "audio; for about as much as before: train.micro_batches={}\n",
                    micro_batches, is / was, same));
}
}  // namespace

void tune_buckets_of_speech(DeckTuning& tuning) {
  tuning.refuse_synthetic();
  const double duration = speech_settings(tuning.plan_case.deck).data.batch_duration;
  SpeechData data = open_speech(tuning.plan_case.deck, tuning.mesh(), true);
  tuning.vocabulary = data.set->vocab_size();
  const SpeechPadding before = data.set->padding();
  const int rate = data.set->sample_rate();
  const DeckVariants variants = tuning.variants();
  const double seconds = mean_seconds(data.set->sampler(), rate);
  std::vector<TunedBucket> tuned;  // on rank 0
  std::vector<std::string> changes = tuning.decided([&] {
    tuning.plan_case.deck = variants.with({});
    tuning.say_head();
    tuned = tune_buckets(
        tuning.plan_case,
        buckets_of(data.set->sampler(), speech_of(tuning.plan_case.deck).speech_frames(), rate,
                   speech_settings(tuning.plan_case.deck).data.max_utterances));
    tuning.say(to_string(tuned, tuning.plan_case.target.memory));
    return changes_of(tuned, tuning.plan_case.deck, rate);
  });
  SpeechPadding after = reopen(tuning, variants, changes, data);
  if (tuning.request().probe && probe_buckets(tuning, tuned)) {
    changes = tuning.decided([&] { return changes_of(tuned, tuning.plan_case.deck, rate); });
    after = reopen(tuning, variants, changes, data);
  }
  if (tuning.plan && !tuning.plan->fits())
    tuning.say("evaluation in larger batches exceeds the limit: its batches are unchanged\n");
  std::int64_t fits = tuning.plan && tuning.plan->fits();
  tuning.world().broadcast(&fits, sizeof fits, 0);
  if (fits == 0) {
    const auto more = keep_evaluation(tuning.plan_case.deck, duration);
    changes.insert(changes.end(), more.begin(), more.end());
    after = reopen(tuning, variants, changes, data);
    together(tuning.world(), [&] {
      if (tuning.speaks() && !tuning.plan->fits()) throw evaluation_too_large(tuning);
    });
  }
  tuning.store();
  if (tuning.speaks()) say_batches(tuning, before, after, seconds);
  if (tuning.speaks()) tuning.say_verdict();
}

}  // namespace choir
