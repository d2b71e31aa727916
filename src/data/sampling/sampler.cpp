#include "src/data/sampling/sampler.hpp"

#include <algorithm>
#include <bit>

#include "choir/core/error.hpp"
#include "src/data/sampling/permutation.hpp"

namespace choir {
namespace {

constexpr const char* kOtherData =
    "the position in the data belongs to other folders, filters, buckets or weights; begin the "
    "data "
    "anew";

}  // namespace

std::vector<std::int64_t> SpeechCursor::to_integers() const {
  std::vector<std::int64_t> integers{window, offset};
  integers.insert(integers.end(), drawn.begin(), drawn.end());
  return integers;
}

SpeechCursor SpeechCursor::of_integers(std::span<const std::int64_t> integers, int pools) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;  // no run draws as many utterances
  const bool sound =
      std::ssize(integers) == 2 + pools &&
      std::all_of(integers.begin(), integers.end(), [](auto n) { return n >= 0 && n <= kMost; });
  if (!sound)
    throw DataError(
        fmt::format("a position in the data has {} integers; {} from 0 to {} are needed",
                    integers.size(), 2 + pools, kMost),
        kOtherData);
  return {integers[0], integers[1], {integers.begin() + 2, integers.end()}};
}

SpeechSampler::SpeechSampler(SpeechBlend blend, SpeechBuckets buckets, std::int64_t window,
                             std::uint64_t seed)
    : blend_(std::move(blend)),
      buckets_(std::move(buckets)),
      window_(window),
      order_key_(philox_key(seed, "data.speech.batches")) {
  CHOIR_CHECK(window >= 1, "a window of {}", window);
}

SpeechCursor SpeechSampler::begin() const {
  return {0, 0, std::vector<std::int64_t>(static_cast<std::size_t>(blend_.pools()), 0)};
}

std::uint64_t SpeechSampler::hash() const {
  std::uint64_t h = blend_.hash();
  const auto add = [&](std::uint64_t value) {
    h = (h ^ value) * 0x100000001b3ull;
    h ^= h >> 29;
  };
  add(static_cast<std::uint64_t>(window_));
  for (int b = 0; b < buckets_.count(); ++b) {
    add(std::bit_cast<std::uint64_t>(buckets_.bin(b).seconds));
    add(static_cast<std::uint64_t>(buckets_.bin(b).labels));
  }
  // The limit of a micro-batch for every utterance, which is where it could differ.
  for (int p = 0; p < blend_.pools(); ++p)
    for (const SpeechItem& item : blend_.pool(p).items)
      add(static_cast<std::uint64_t>(
          buckets_.limit(buckets_.of(item.samples, item.labels), item.samples)));
  return h;
}

void SpeechSampler::plan(std::int64_t number, std::span<const std::int64_t> drawn,
                         SpeechWindow& to) const {
  CHOIR_CHECK(std::ssize(drawn) == blend_.pools(), "{} counts of {} pools", drawn.size(),
              blend_.pools());
  to.number = number;
  to.drawn.assign(drawn.begin(), drawn.end());
  const auto size = static_cast<std::size_t>(window_);
  to.rows.resize(2 * size);  // draws in the upper half, sorted into the lower half
  const auto buckets = static_cast<std::size_t>(buckets_.count());
  to.ends.assign(buckets + 1, 0);
  for (std::size_t i = 0; i < size; ++i) {
    const int pool = blend_.pool_of(number * window_ + static_cast<std::int64_t>(i));
    SpeechRow& row = to.rows[size + i];
    row = blend_.row(pool, to.drawn[static_cast<std::size_t>(pool)]++);
    ++to.ends[static_cast<std::size_t>(buckets_.of(row.item.samples, row.item.labels)) + 1];
  }
  for (std::size_t b = 0; b < buckets; ++b) to.ends[b + 1] += to.ends[b];
  // ends[b] is the begin of bucket b until the bucket is filled.
  for (std::size_t i = 0; i < size; ++i) {
    const SpeechItem& item = to.rows[size + i].item;
    auto& at = to.ends[static_cast<std::size_t>(buckets_.of(item.samples, item.labels))];
    to.rows[static_cast<std::size_t>(at++)] = to.rows[size + i];
  }
  cut(to);
}

void SpeechSampler::cut(SpeechWindow& window) const {
  window.cut.clear();
  std::int64_t first = 0;
  for (int bucket = 0; bucket < buckets_.count(); ++bucket) {
    const std::int64_t end = window.ends[static_cast<std::size_t>(bucket)];
    std::int32_t longest = 0;
    for (std::int64_t i = first; i < end; ++i) {
      const std::int32_t samples = window.rows[static_cast<std::size_t>(i)].item.samples;
      if (i > first && !buckets_.fits(bucket, i + 1 - first, std::max(longest, samples))) {
        window.cut.push_back({first, i - first});
        first = i;
        longest = 0;
      }
      longest = std::max(longest, samples);
    }
    if (end > first) window.cut.push_back({first, end - first});
    first = end;
  }
  const Permutation order(window.cut.size(), order_key_, static_cast<std::uint64_t>(window.number));
  window.parts.clear();
  for (std::size_t j = 0; j < window.cut.size(); ++j) window.parts.push_back(window.cut[order(j)]);
}

SpeechSteps::SpeechSteps(const SpeechSampler& sampler, const SpeechCursor& from,
                         std::int64_t micro_batches)
    : sampler_(sampler), micro_batches_(micro_batches), at_(from) {
  CHOIR_CHECK(micro_batches >= 1, "{} micro-batches a step", micro_batches);
  const auto size = static_cast<std::size_t>(sampler.window());
  window_.rows.reserve(2 * size);
  window_.parts.reserve(size);
  window_.cut.reserve(size);
  enter_window();
  if (at_.offset > std::ssize(window_.parts))
    throw DataError(fmt::format("window {} of the data has {} micro-batches, {} were used",
                                at_.window, window_.parts.size(), at_.offset),
                    kOtherData);
}

void SpeechSteps::enter_window() {
  sampler_.plan(at_.window, at_.drawn, window_);
}

void SpeechSteps::next(SpeechStep& step) {
  step.rows.clear();
  step.begins.assign(1, 0);
  step.targets = 0;
  for (std::int64_t j = 0; j < micro_batches_; ++j) {
    if (at_.offset == std::ssize(window_.parts)) {
      ++at_.window;
      at_.offset = 0;
      at_.drawn = window_.drawn;
      enter_window();
    }
    for (const SpeechRow& row : window_.part(at_.offset)) {
      step.rows.push_back(row);
      step.targets += row.item.labels;
    }
    step.begins.push_back(std::ssize(step.rows));
    ++at_.offset;
  }
  step.after = at_;
}

SpeechCursor seek_step(const SpeechSampler& sampler, std::int64_t step,
                       std::int64_t micro_batches) {
  SpeechCursor at = sampler.begin();
  SpeechWindow window;
  for (std::int64_t left = step * micro_batches; left > 0;) {
    sampler.plan(at.window, at.drawn, window);
    if (left <= std::ssize(window.parts)) {
      at.offset = left;
      break;
    }
    left -= std::ssize(window.parts);
    at = {at.window + 1, 0, window.drawn};
  }
  return at;
}

SpeechPadding measure_padding(const SpeechSampler& sampler, const SpeechFrames& frames) {
  SpeechWindow window;
  sampler.plan(0, sampler.begin().drawn, window);
  const auto padded = [&](std::span<const SpeechRow> rows) {
    std::int32_t longest = 0;
    for (const SpeechRow& row : rows) longest = std::max(longest, row.item.samples);
    return static_cast<double>(std::ssize(rows) * frames.padded(longest));
  };
  double samples = 0, bucketed = 0, naive = 0;
  for (std::int64_t j = 0; j < std::ssize(window.parts); ++j) bucketed += padded(window.part(j));
  // plan() leaves the rows in the order of the draws in the upper half.
  const auto drawn =
      std::span<const SpeechRow>(window.rows).subspan(static_cast<std::size_t>(sampler.window()));
  for (const SpeechRow& row : drawn) samples += static_cast<double>(row.item.samples);
  SpeechPadding result;
  result.micro_batches = std::ssize(window.parts);
  result.mean_utterances =
      static_cast<double>(drawn.size()) / static_cast<double>(window.parts.size());
  const auto count =
      std::max<std::size_t>(1, static_cast<std::size_t>(result.mean_utterances + 0.5));
  for (std::size_t i = 0; i < drawn.size(); i += count) {
    naive += padded(drawn.subspan(i, std::min(count, drawn.size() - i)));
    ++result.naive_micro_batches;
  }
  result.bucketed = 1 - samples / bucketed;
  result.naive = 1 - samples / naive;
  return result;
}

}  // namespace choir
