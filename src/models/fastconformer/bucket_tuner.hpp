#pragma once
// Tuning of the utterances per micro-batch for each duration bucket: the largest number whose
// memory plan, made on the null device, stays within the limit. Local.
#include <cstdint>
#include <string>
#include <vector>

#include "src/data/sampling/sampler.hpp"
#include "src/lab/plan/layout_plan.hpp"
#include "src/lab/tune/deck_tuning.hpp"

namespace choir {

/// A bucket, and the sizes of its largest utterances.
struct UntunedBucket {
  SpeechBin bin;
  double from_seconds = 0;  ///< upper edge of the bucket below
  std::int64_t samples = 0,
               labels = 0;      ///< S and U of a micro-batch: of its longest utterance, padded
  std::int64_t utterances = 0;  ///< utterances of the data in this bucket
  std::int64_t batch =
      0;  ///< size of its micro-batches in the current deck, for its longest utterance
  std::int64_t most = 1;    ///< upper bound independent of memory
  std::string most_reason;  ///< key that sets the bound
};

/// The buckets of a sampler. The last ones end at the longest utterance if that is beyond their
/// edge. A micro-batch never needs more utterances than a window of draws brings to a bucket (mean
/// and three deviations). `max_utterances`: that of the deck, 0 for any number.
std::vector<UntunedBucket> buckets_of(const SpeechSampler& sampler, const SpeechFrames& frames,
                                      int sample_rate, std::int64_t max_utterances);
/// Mean seconds of audio of a draw.
double mean_seconds(const SpeechSampler& sampler, int sample_rate);

struct TunedBucket {
  UntunedBucket bucket;
  std::int64_t batch = 1;
  double bytes = 0;        ///< planned for a micro-batch of this size
  double next_bytes = 0;   ///< planned for one more utterance; 0: not limited by memory
  std::string limited_by;  ///< "memory", or a key of the deck
};

/// `request.shapes` are replaced. If a pipeline has several buckets in flight, their mixture must
/// fit. Throws DeckError, with the numbers, if a single utterance does not fit.
std::vector<TunedBucket> tune_buckets(const PlanCase& request,
                                      const std::vector<UntunedBucket>& buckets);

/// The changes of a deck as overrides: data.bucket_bins, data.bucket_sizes, and a
/// data.batch_duration that allows them.
std::vector<std::string> changes_of(const std::vector<TunedBucket>& buckets, const Deck& deck,
                                    int sample_rate);

/// A table of the buckets for users.
std::string to_string(const std::vector<TunedBucket>& buckets, double memory_limit);

/// Finds the largest number of utterances of each bucket, and leaves evaluation at its present
/// batches if it would need more memory. Collective over the world. Throws DeckError if an
/// utterance does not fit, or if the evaluation does not.
void tune_buckets_of_speech(DeckTuning& tuning);

}  // namespace choir
