#include "src/data/sampling/buckets.hpp"

#include <algorithm>
#include <cmath>

#include "choir/core/error.hpp"

namespace choir {
namespace {

constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();

// Upper edges of `count` parts of the ascending `value` with equal total duration; fewer if several
// parts would end at the same value.
template <class Length>
std::vector<std::int64_t> equal_parts(const std::vector<Length>& sorted, std::int64_t count,
                                      std::int64_t Length::*value, double sample_rate) {
  double total = 0, sum = 0;
  for (const auto& length : sorted)
    total += length.weight * static_cast<double>(length.samples) / sample_rate;
  std::vector<std::int64_t> edges;
  for (const auto& length : sorted) {
    sum += length.weight * static_cast<double>(length.samples) / sample_rate;
    const auto part = static_cast<double>(edges.size() + 1);
    if (std::ssize(edges) + 1 >= count || sum * static_cast<double>(count) < total * part) continue;
    if (edges.empty() || edges.back() < length.*value) edges.push_back(length.*value);
  }
  if (edges.empty() || edges.back() < sorted.back().*value) edges.push_back(sorted.back().*value);
  return edges;
}

void check_options(const SpeechBucketOptions& o) {
  const auto positive = [](double x) { return x > 0 && std::isfinite(x); };
  if (!positive(o.batch_duration))
    throw DeckError(fmt::format("data.batch_duration is {}", o.batch_duration),
                    "give the seconds of audio in a micro-batch");
  if (o.quadratic_duration < 0 || !std::isfinite(o.quadratic_duration))
    throw DeckError(fmt::format("data.quadratic_duration is {}", o.quadratic_duration),
                    "seconds, 15 to 40 are usual; 0: no penalty");
  if (o.max_samples < 0 || o.buckets < 1 || o.label_buckets < 1)
    throw DeckError(fmt::format("{} utterances at most in {} x {} buckets", o.max_samples,
                                o.buckets, o.label_buckets),
                    "give at least one bucket of durations and one of labels");
  for (std::size_t i = 0; i < o.bins.size(); ++i) {
    const bool ascends =
        i == 0 || o.bins[i - 1].seconds < o.bins[i].seconds ||
        (o.bins[i - 1].seconds == o.bins[i].seconds && o.bins[i - 1].labels < o.bins[i].labels);
    if (!ascends || !positive(o.bins[i].seconds) || o.bins[i].labels < 0)
      throw DeckError(
          fmt::format("bucket {} ends at {} s, not above the one before", i + 1, o.bins[i].seconds),
          "bins ascend by duration, those of equal duration by labels");
  }
  if (!o.sizes.empty() && o.sizes.size() != o.bins.size())
    throw DeckError(fmt::format("{} batch sizes for {} buckets", o.sizes.size(), o.bins.size()),
                    "give one size for each bin");
  for (const std::int64_t size : o.sizes)
    if (size < 1)
      throw DeckError(fmt::format("a bucket's batch size is {}", size), "use 1 or more");
}

}  // namespace

std::int64_t ctc_frames(std::span<const std::int32_t> labels) {
  auto needed = static_cast<std::int64_t>(labels.size());
  for (std::size_t i = 1; i < labels.size(); ++i) needed += labels[i] == labels[i - 1] ? 1 : 0;
  return needed;
}

SpeechBuckets::SpeechBuckets(const SpeechBucketOptions& options, int sample_rate,
                             std::span<const SpeechLength> lengths)
    : options_(options), sample_rate_(sample_rate), bins_(options.bins) {
  check_options(options);
  CHOIR_CHECK(sample_rate > 0 && !lengths.empty(), "{} Hz, {} lengths", sample_rate,
              lengths.size());
  if (bins_.empty()) {
    estimate(lengths);
  } else {
    for (const SpeechBin& bin : bins_)
      edges_.push_back(static_cast<std::int64_t>(std::llround(bin.seconds * sample_rate_)));
  }
  check_lengths(lengths);
  if (!options.whole) return;
  std::vector<std::int64_t> longest(bins_.size());
  for (const SpeechLength& length : lengths) {
    std::int64_t& of_bucket = longest[static_cast<std::size_t>(of(length.samples, length.labels))];
    of_bucket = std::max(of_bucket, length.samples);
  }
  longest_ = std::move(longest);
}

void SpeechBuckets::estimate(std::span<const SpeechLength> lengths) {
  std::vector<SpeechLength> sorted(lengths.begin(), lengths.end());
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.samples < b.samples; });
  const auto edges = equal_parts(sorted, options_.buckets, &SpeechLength::samples, sample_rate_);
  std::vector<SpeechLength> part;
  auto begin = sorted.begin();
  for (const std::int64_t edge : edges) {
    const auto end =
        std::find_if(begin, sorted.end(), [&](const auto& l) { return l.samples > edge; });
    std::vector<std::int64_t> labels;
    if (options_.label_buckets > 1) {
      part.assign(begin, end);
      std::sort(part.begin(), part.end(),
                [](const auto& a, const auto& b) { return a.labels < b.labels; });
      labels = equal_parts(part, options_.label_buckets, &SpeechLength::labels, sample_rate_);
    } else {
      labels = {kAny};
    }
    for (const std::int64_t most : labels) {
      bins_.push_back({static_cast<double>(edge) / sample_rate_, most});
      edges_.push_back(edge);
    }
    begin = end;
  }
}

void SpeechBuckets::check_lengths(std::span<const SpeechLength> lengths) const {
  std::int64_t longest = 0;
  for (const auto& length : lengths) longest = std::max(longest, length.samples);
  const double seconds = static_cast<double>(longest) / sample_rate_;
  if (effective(longest) > options_.batch_duration)
    throw DeckError(
        fmt::format("data.batch_duration is {} s, the longest utterance counts for {:.2f} s "
                    "({:.2f} s{})",
                    options_.batch_duration, effective(longest), seconds,
                    options_.quadratic_duration > 0 ? ", with the quadratic penalty" : ""),
        fmt::format("set data.batch_duration to {:.0f} or more, or leave out long utterances by "
                    "data.max_duration",
                    std::ceil(effective(longest))));
  if (!options_.sizes.empty() && longest > edges_.back())
    throw DeckError(fmt::format("the last bucket ends at {} s, the longest utterance has {:.2f} s",
                                bins_.back().seconds, seconds),
                    "tune again, or leave out long utterances by data.max_duration");
}

int SpeechBuckets::of(std::int64_t samples, std::int64_t labels) const {
  auto first = std::lower_bound(edges_.begin(), edges_.end(), samples);
  if (first == edges_.end()) first = std::lower_bound(edges_.begin(), edges_.end(), edges_.back());
  auto at = static_cast<std::size_t>(first - edges_.begin());
  while (at + 1 < bins_.size() && edges_[at + 1] == *first && labels > bins_[at].labels) ++at;
  return static_cast<int>(at);
}

double SpeechBuckets::effective(std::int64_t samples) const {
  const double d = static_cast<double>(samples) / sample_rate_;
  return options_.quadratic_duration > 0 ? d + d * d / options_.quadratic_duration : d;
}

bool SpeechBuckets::fits(int bucket, std::int64_t n, std::int64_t samples) const {
  if (options_.max_samples > 0 && n > options_.max_samples) return false;
  if (!options_.sizes.empty() && n > options_.sizes[static_cast<std::size_t>(bucket)]) return false;
  samples = counted(bucket, samples);
  return static_cast<double>(n) * effective(samples) <= options_.batch_duration;
}

std::int64_t SpeechBuckets::counted(int bucket, std::int64_t samples) const {
  return longest_.empty() ? samples : std::max(samples, longest_[static_cast<std::size_t>(bucket)]);
}

std::int64_t SpeechBuckets::limit(int bucket, std::int64_t samples) const {
  samples = counted(bucket, samples);
  auto n = static_cast<std::int64_t>(options_.batch_duration / effective(samples)) + 1;
  if (options_.max_samples > 0) n = std::min(n, options_.max_samples);
  if (!options_.sizes.empty()) n = std::min(n, options_.sizes[static_cast<std::size_t>(bucket)]);
  while (n > 1 && !fits(bucket, n, samples)) --n;  // rounding of the quotient
  return std::max<std::int64_t>(n, 1);
}

std::vector<SpeechShape> SpeechBuckets::shapes(std::span<const SpeechLength> lengths,
                                               const SpeechFrames& frames) const {
  std::vector<std::vector<std::int64_t>> members(bins_.size());
  std::vector<std::int64_t> labels(bins_.size(), 1);
  for (const auto& length : lengths) {
    const auto bucket = static_cast<std::size_t>(of(length.samples, length.labels));
    members[bucket].push_back(length.samples);
    labels[bucket] = std::max(labels[bucket], length.labels);
  }
  std::vector<SpeechShape> shapes;
  for (int bucket = 0; bucket < count(); ++bucket) {
    auto& sorted = members[static_cast<std::size_t>(bucket)];
    if (sorted.empty()) continue;
    std::sort(sorted.begin(), sorted.end());
    const std::int64_t most = limit(bucket, sorted.front());
    std::int64_t n = limit(bucket, sorted.back());
    const auto add = [&](std::int64_t utterances, std::int64_t samples) {
      const std::int64_t padded = frames.padded(samples);
      const std::int64_t u = labels[static_cast<std::size_t>(bucket)];
      if (!shapes.empty() && shapes.back().samples == padded && shapes.back().labels == u)
        shapes.back().utterances = std::max(shapes.back().utterances, utterances);
      else
        shapes.push_back({utterances, padded, u});
    };
    add(n, sorted.back());
    while (n < most) {
      // Micro-batches of n + 1 ... next utterances, bounded by the longest utterance of which n + 1
      // fit.
      const std::int64_t next = std::min(most, n + std::max<std::int64_t>(1, n / 16));
      const auto longer =
          std::partition_point(sorted.begin(), sorted.end(),
                               [&](std::int64_t samples) { return fits(bucket, n + 1, samples); });
      add(next, *std::prev(longer));
      n = next;
    }
  }
  return shapes;
}

std::string SpeechBuckets::to_string() const {
  std::string text;
  for (const SpeechBin& bin : bins_) {
    text += fmt::format("{}{:.2f} s", text.empty() ? "" : ", ", bin.seconds);
    if (bin.labels != kAny) text += fmt::format("/{}", bin.labels);
  }
  return text;
}

}  // namespace choir
