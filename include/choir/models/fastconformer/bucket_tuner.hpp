#pragma once
// How many utterances of each bucket of duration a micro-batch may have, by the memory plan: the
// largest number whose plan stays within the limit, found on the null device. Local.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/data/speech/speech_sampler.hpp"
#include "choir/lab/plan/layout_plan.hpp"

namespace choir {

/// A bucket, and the largest of its utterances.
struct UntunedBucket {
  SpeechBin bin;
  double from_seconds = 0;               ///< upper edge of the durations below
  std::int64_t samples = 0, labels = 0;  ///< S and U of a micro-batch: of its longest, padded
  std::int64_t utterances = 0;           ///< of the data
  std::int64_t batch = 0;                ///< that the deck has now, of its longest
  std::int64_t most = 1;                 ///< whatever the memory
  std::string most_reason;               ///< the key that says so
};

/// The buckets of a sampler. The last ones end at the longest utterance, where it is beyond them.
/// More utterances than a window of draws brings to a bucket (mean and three deviations) are never
/// together. `max_utterances`: of the deck, 0 for any number.
std::vector<UntunedBucket> buckets_of(const SpeechSampler& sampler, const SpeechFrames& frames,
                                      int sample_rate, std::int64_t max_utterances);
/// Seconds of audio of a draw, in the mean.
double mean_seconds(const SpeechSampler& sampler, int sample_rate);

struct TunedBucket {
  UntunedBucket bucket;
  std::int64_t batch = 1;
  double bytes = 0;        ///< planned for a micro-batch of so many
  double next_bytes = 0;   ///< of one more; 0: not of interest
  std::string limited_by;  ///< "memory", or a key of the deck
};

/// `request.shapes` are replaced. Where a pipeline has several buckets in flight, their mixture is
/// what must fit. Throws DeckError, with the numbers, where one utterance is too much.
std::vector<TunedBucket> tune_buckets(const PlanCase& request,
                                      const std::vector<UntunedBucket>& buckets);

/// What changes in a deck: data.bucket_bins, data.bucket_sizes, and a data.batch_duration that
/// allows them, as overrides.
std::vector<std::string> changes_of(const std::vector<TunedBucket>& buckets, const Deck& deck,
                                    int sample_rate);

/// The table.
std::string to_string(const std::vector<TunedBucket>& buckets, double memory_limit);

}  // namespace choir
