#include "src/models/codec/evaluation.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "src/core/quantities.hpp"

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

CodeCounts& CodeCounts::operator+=(const CodeCounts& other) {
  std::transform(counts_.begin(), counts_.end(), other.counts_.begin(), counts_.begin(),
                 std::plus<>());
  return *this;
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

Validation CodecSetScores::validation() const {
  Validation v = validation_of(terms, losses, ByTerm(terms.size(), static_cast<double>(frames)));
  v.name = name;
  v.metrics.insert(
      v.metrics.begin(),
      {{"mel_db", decibels()}, {"code_bits", codes.entropy()}, {"codes_used", codes.used()}});
  return v;
}

std::string CodecSetScores::to_string() const {
  std::string bits, used;
  for (std::int64_t book = 0; book < codes.books(); ++book) {
    bits += fmt::format("{}{:.2f}", book > 0 ? " " : "", codes.entropy(book));
    used += fmt::format("{}{:.0f}", book > 0 ? " " : "", 100 * codes.used(book));
  }
  return fmt::format(
      "loss {:.4f}, mel {:.2f} dB, {} bits a code, {} % of codes used, {:.0f} x "
      "real time",
      validation().loss, decibels(), bits, used, audio_seconds / std::max(seconds, 1e-9));
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

namespace {

class CodecScoring {
 public:
  CodecScoring(ModelInstance& instance, SpeechDataset& data, int set)
      : mesh_(instance.mesh()),
        data_(data),
        set_(set),
        config_(instance.options().model.as<CodecConfig>()),
        coded_(instance),
        all_walk_(instance.storage().sharding().values_sharded()),
        terms_(instance.loss_terms().size()),
        // Each micro-batch and term has an entry, which is zero on the other ranks: sums are taken
        // in the order of the micro-batches.
        losses_(
            static_cast<std::size_t>(data.eval_calls(set) * mesh_.host_along(Axis::data).size()) *
            terms_),
        result_{.name = data.eval_name(set),
                .codes = CodeCounts(config_.codebooks, config_.vocab_size),
                .terms = instance.loss_terms(),
                .losses = ByTerm(terms_, 0)} {}

  CodecSetScores run(ProgressLine* progress) {
    const double start = now_seconds();
    const std::int64_t calls = data_.eval_calls(set_);
    for (std::int64_t call = 0; call < calls; ++call) {
      if (progress != nullptr) progress->at(call, calls);
      const SpeechBatch& batch = data_.eval_batch(set_, call);
      // A rank without a batch of its own still provides its part of the parameters to the others.
      if (batch.rows.empty() && !all_walk_) continue;
      const ModelBatch fields = codec_batch(config_, batch, lengths_);
      coded_.run(fields);
      std::ranges::copy(coded_.loss_sums(),
                        losses_.begin() + batch.micro_batch * static_cast<std::int64_t>(terms_));
      if (counts_here() && !batch.rows.empty()) count(fields, batch.samples);
    }
    reduce();
    result_.seconds = now_seconds() - start;
    mesh_.world().all_reduce(&result_.seconds, 1, DType::f64, ReduceOp::max);
    return std::move(result_);
  }

 private:
  /// True on the one rank that counts the codes of a micro-batch, among those that have them.
  bool counts_here() const {
    Communicator& stages = mesh_.host_along(Axis::pipeline);
    return stages.rank() == stages.size() - 1 && mesh_.coordinates()[Axis::tensor] == 0;
  }

  void count(const ModelBatch& fields, std::int64_t samples) {
    samples_ += samples;
    const std::int64_t rows = fields["audio"].shape[0], books = config_.codebooks;
    const std::int64_t padded = config_.frames(fields["audio"].shape[1]);
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t frames = lengths_[static_cast<std::size_t>(rows + row)];
      frames_ += frames;
      for (std::int64_t t = 0; t < frames; ++t)
        result_.codes.add(coded_.codes().subspan(
            static_cast<std::size_t>((row * padded + t) * books), static_cast<std::size_t>(books)));
    }
  }

  void reduce() {
    for (Communicator* all : {&mesh_.host_replicas(), &mesh_.host_along(Axis::pipeline)})
      all->all_reduce(losses_.data(), losses_.size(), DType::f64, ReduceOp::sum);
    for (std::size_t i = 0; i < losses_.size(); ++i) result_.losses[i % terms_] += losses_[i];
    std::vector<std::int64_t>& counts = result_.codes.counts();
    counts.insert(counts.end(), {frames_, samples_});
    mesh_.world().all_reduce(counts.data(), counts.size(), DType::i64, ReduceOp::sum);
    result_.audio_seconds =
        static_cast<double>(counts.back()) / static_cast<double>(config_.mel.sample_rate);
    counts.pop_back();
    result_.frames = counts.back();
    counts.pop_back();
  }

  Mesh& mesh_;
  SpeechDataset& data_;
  int set_;
  CodecConfig config_;
  CodedFrames coded_;
  bool all_walk_;
  std::size_t terms_;  // terms of the loss
  std::vector<double> losses_;
  std::vector<std::int32_t> lengths_;
  std::int64_t frames_ = 0, samples_ = 0;
  CodecSetScores result_;
};

CodecSetScores sum_of(const std::vector<CodecSetScores>& sets) {
  CodecSetScores all = sets.front();
  all.name.clear();
  for (std::size_t i = 1; i < sets.size(); ++i) {
    const CodecSetScores& set = sets[i];
    all.codes += set.codes;
    all.losses += set.losses;
    all.frames += set.frames;
    all.audio_seconds += set.audio_seconds;
    all.seconds += set.seconds;
  }
  return all;
}

}  // namespace

std::vector<CodecSetScores> score_codec(ModelInstance& instance, SpeechDataset& data,
                                        ProgressLine* progress) {
  std::vector<CodecSetScores> sets;
  for (int set = 0; set < data.eval_sets(); ++set)
    sets.push_back(CodecScoring(instance, data, set).run(progress));
  return sets;
}

std::vector<Validation> validations_of(const std::vector<CodecSetScores>& sets) {
  std::vector<Validation> list{sum_of(sets).validation()};
  if (sets.size() > 1)
    for (const CodecSetScores& set : sets) list.push_back(set.validation());
  return list;
}

std::vector<std::string> lines_of(const std::vector<CodecSetScores>& sets) {
  std::vector<std::string> lines;
  for (const CodecSetScores& set : sets)
    lines.push_back(fmt::format("'{}': {}", set.name, set.to_string()));
  if (sets.size() > 1) lines.push_back("all: " + sum_of(sets).to_string());
  return lines;
}

}  // namespace choir
