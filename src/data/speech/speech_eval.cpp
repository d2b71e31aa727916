#include "src/data/speech/speech_eval.hpp"

#include <algorithm>

#include "choir/core/error.hpp"

namespace choir {
namespace {

SpeechCorpusOptions options_of(const SpeechDataConfig& config, const SpeechEvalSet& set,
                               int sample_rate, std::uint64_t tokenizer_hash) {
  SpeechCorpusOptions options;
  options.labels = config.labels;
  options.sample_rate = sample_rate;
  options.tokenizer_hash = tokenizer_hash;
  options.frames = config.frames;
  options.filter = set.filter;
  options.validation = true;
  options.on_bad = config.on_bad;
  options.bad_cap = config.bad_cap;
  options.verify_bytes = config.verify_bytes;
  options.what = fmt::format("validation set '{}'", set.name);
  return options;
}

std::vector<SpeechLeaf> leaves_of(const SpeechEvalSet& set) {
  CHOIR_CHECK(set.tags.empty() || set.tags.size() == set.folders.size(), "{} tags of {} folders",
              set.tags.size(), set.folders.size());
  std::vector<SpeechLeaf> leaves = leaves_of(SpeechMix::of_folders(set.folders));
  for (std::size_t i = 0; i < set.tags.size(); ++i) leaves[i].tags = set.tags[i];
  return leaves;
}

}  // namespace

SpeechEvaluation::SpeechEvaluation(Communicator& comm, const SpeechDataConfig& config,
                                   const SpeechEvalSet& set, int sample_rate,
                                   std::uint64_t tokenizer_hash)
    : name_(set.name),
      rank_(comm.rank()),
      ranks_(comm.size()),
      leaves_(leaves_of(set)),
      corpus_(SpeechCorpus::load(comm, config.peers, leaves_,
                                 options_of(config, set, sample_rate, tokenizer_hash))) {
  choose(set.limit);
  cut(config, set.batch_duration > 0 ? set.batch_duration : config.batching.batch_duration);
  buffer_ = std::make_unique<SpeechBatchBuffer>(shapes_, config.frames);
  reader_ = std::make_unique<SpeechRowReader>(comm, "data.eval." + name_, corpus_, config, shapes_,
                                              damage_);
}

// Evenly spread over the set, then the longest first: equal lengths go together, and what needs
// most memory is met at once.
void SpeechEvaluation::choose(std::int64_t limit) {
  for (int leaf = 0; leaf < corpus_.folders(); ++leaf)
    for (const SpeechItem& item : corpus_.items(leaf)) rows_.push_back({item, 0});
  const std::int64_t n = std::ssize(rows_);
  if (limit > 0 && limit < n) {
    for (std::int64_t i = 0; i < limit; ++i)
      rows_[static_cast<std::size_t>(i)] = rows_[static_cast<std::size_t>(i * n / limit)];
    rows_.resize(static_cast<std::size_t>(limit));
  }
  std::stable_sort(rows_.begin(), rows_.end(), [](const SpeechRow& a, const SpeechRow& b) {
    return a.item.samples > b.item.samples;
  });
  for (const SpeechRow& row : rows_) targets_ += row.item.labels;
}

void SpeechEvaluation::cut(const SpeechDataConfig& config, double batch_duration) {
  const SpeechBucketOptions& o = config.batching;
  const auto effective = [&](std::int32_t samples) {
    const double d = static_cast<double>(samples) / corpus_.sample_rate();
    return o.quadratic_duration > 0 ? d + d * d / o.quadratic_duration : d;
  };
  begins_ = {0};
  for (std::size_t first = 0; first < rows_.size();) {
    const std::int32_t longest = rows_[first].item.samples;
    auto count = static_cast<std::size_t>(std::max(1.0, batch_duration / effective(longest)));
    if (o.max_samples > 0) count = std::min(count, static_cast<std::size_t>(o.max_samples));
    count = std::min(count, rows_.size() - first);
    std::int64_t labels = 1;
    for (std::size_t i = first; i < first + count; ++i)
      labels = std::max<std::int64_t>(labels, rows_[i].item.labels);
    shapes_.push_back({static_cast<std::int64_t>(count), config.frames.padded(longest), labels});
    first += count;
    begins_.push_back(static_cast<std::int64_t>(first));
  }
}

std::size_t SpeechEvaluation::bytes() const {
  return buffer_->bytes() + (reader_->reader() != nullptr ? reader_->reader()->bytes() : 0);
}

const SpeechBatch& SpeechEvaluation::batch(std::int64_t call) {
  const std::int64_t e = call * ranks_ + rank_;
  std::span<const SpeechRow> rows;
  if (e < std::ssize(shapes_)) {
    const auto first = static_cast<std::size_t>(begins_[static_cast<std::size_t>(e)]);
    const auto end = static_cast<std::size_t>(begins_[static_cast<std::size_t>(e) + 1]);
    rows = std::span(rows_).subspan(first, end - first);
  }
  reader_->read(rows, *buffer_);
  buffer_->batch.micro_batch = e;
  buffer_->batch.step_targets = targets_;
  return buffer_->batch;
}

}  // namespace choir
