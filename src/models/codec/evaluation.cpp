#include "src/models/codec/evaluation.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace choir {

void CodedFrames::run(const ModelBatch& batch) {
  codes_.clear();
  loss_sums_ = instance_.loss_sums(batch);
  const Tensor codes = instance_.forward(Mode::generate, batch);
  if (codes.empty() || instance_.device().kind() == DeviceKind::null) return;
  codes_.resize(static_cast<std::size_t>(codes.count()));
  instance_.device().copy_to_host(codes_.data(), codes.data, codes.bytes());
}

void CodeCounts::add(std::span<const std::int32_t> frame) {
  for (std::size_t book = 0; book < frame.size(); ++book)
    ++counts_[book * static_cast<std::size_t>(codes_) + static_cast<std::size_t>(frame[book])];
}

double CodeCounts::entropy(std::int64_t book) const {
  std::int64_t all = 0;
  for (const std::int64_t n : of(book)) all += n;
  double bits = 0;
  for (const std::int64_t n : of(book)) {
    const double p = static_cast<double>(n) / static_cast<double>(all);
    if (n > 0) bits -= p * std::log2(p);
  }
  return bits;
}

double CodeCounts::used(std::int64_t book) const {
  const auto counts = of(book);
  return static_cast<double>(std::ranges::count_if(counts, [](auto n) { return n > 0; })) /
         static_cast<double>(codes_);
}

double CodeCounts::entropy() const {
  double sum = 0;
  for (std::int64_t book = 0; book < books(); ++book) sum += entropy(book);
  return sum / static_cast<double>(books());
}

double CodeCounts::used() const {
  double sum = 0;
  for (std::int64_t book = 0; book < books(); ++book) sum += used(book);
  return sum / static_cast<double>(books());
}

namespace {

constexpr const char *kSamples = "samples", *kCodes = "codes";

}  // namespace

std::vector<ScoreCounter> CodecMeaning::counters() const {
  return {{kTargetsCounter},
          {kSamples},
          {kComparedCounter, 1, true},
          {kCodes, static_cast<std::size_t>(config_.codebooks * config_.vocab_size), true}};
}

std::string CodecMeaning::describe(const Scores& scores, Validation& to) const {
  const CodeCounts codes(config_.vocab_size, scores.of(kCodes));
  // The first loss is that of ln of powers; decibels are 10 / ln 10 times as large.
  const double decibels = 4.342944819032518 * scores.losses.first() /
                          static_cast<double>(scores.count(kTargetsCounter));
  to.metrics.insert(
      to.metrics.begin(),
      {{"mel_db", decibels}, {"code_bits", codes.entropy()}, {"codes_used", codes.used()}});
  std::string bits, used;
  for (std::int64_t book = 0; book < codes.books(); ++book) {
    bits += fmt::format("{}{:.2f}", book > 0 ? " " : "", codes.entropy(book));
    used += fmt::format("{}{:.0f}", book > 0 ? " " : "", 100 * codes.used(book));
  }
  const double audio =
      static_cast<double>(scores.count(kSamples)) / static_cast<double>(config_.mel.sample_rate);
  return fmt::format(
      "loss {:.4f}, mel {:.2f} dB, {} bits a code, {} % of codes used, {:.0f} x "
      "real time",
      to.loss, decibels, bits, used, audio / std::max(scores.seconds, 1e-9));
}

std::string CodecMeaning::describe_tag(const Scores& scores, const std::string& tag,
                                       Validation& to) const {
  const CodeCounts codes(config_.vocab_size, scores.of(kCodes));
  to.metrics.emplace_back("code_bits/" + tag, codes.entropy());
  to.metrics.emplace_back("codes_used/" + tag, codes.used());
  return fmt::format("{:.2f} bits a code, {:.0f} % of codes used", codes.entropy(),
                     100 * codes.used());
}

std::vector<SampleTags> CodecScorer::tags(int set) const {
  std::vector<SampleTags> all;
  for (const SpeechLeaf& leaf : data_.eval_leaves(set)) all.push_back(leaf.tags);
  return all;
}

ModelBatch codec_batch(const CodecConfig& config, const SpeechBatch& batch,
                       std::vector<std::int32_t>& lengths) {
  const std::int64_t rows = batch.audio.shape[0];
  ModelBatch result = codec_fields({.samples = rows});
  lengths.resize(static_cast<std::size_t>(2 * rows));
  result["audio"] = batch.audio;
  result["audio_lengths"] = batch.audio_lengths;
  result["frame_lengths"] = {lengths.data(), DType::i32, {2, rows}};
  set_frame_lengths(config, result);
  return result;
}

void CodecScorer::score(int set, std::int64_t call, SetSums& sums) {
  const SpeechBatch& batch = data_.eval_batch(set, call);
  if (sums.leaves_out(batch.rows.empty())) return;
  const ModelBatch fields = codec_batch(config_, batch, lengths_);
  coded_.run(fields);
  sums.add_losses(coded_.loss_sums());
  if (!sums.counts_here() || batch.rows.empty()) return;
  sums.add(kSamples, batch.samples);
  count(set, batch, fields, sums);
}

void CodecScorer::count(int set, const SpeechBatch& batch, const ModelBatch& fields,
                        SetSums& sums) const {
  const std::int64_t rows = fields["audio"].shape[0], books = config_.codebooks;
  const std::int64_t padded = config_.frames(fields["audio"].shape[1]);
  for (std::int64_t row = 0; row < std::ssize(batch.rows); ++row) {
    const std::int64_t frames = lengths_[static_cast<std::size_t>(rows + row)];
    if (frames == 0) continue;  // damaged, and reported as such
    CodeCounts codes(books, config_.vocab_size);
    for (std::int64_t t = 0; t < frames; ++t)
      codes.add(coded_.codes().subspan(static_cast<std::size_t>((row * padded + t) * books),
                                       static_cast<std::size_t>(books)));
    const auto leaf = static_cast<std::size_t>(batch.rows[static_cast<std::size_t>(row)].item.leaf);
    const SampleTags& tags = data_.eval_leaves(set)[leaf].tags;
    sums.add(kTargetsCounter, frames);
    sums.add(kComparedCounter, 1, tags);
    sums.add(kCodes, codes.counts(), tags);
  }
}

}  // namespace choir
