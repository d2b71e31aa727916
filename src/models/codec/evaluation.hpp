#pragma once
// Quality of a codec on validation sets: the distance of mel spectra, and the information content
// of its codes.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "choir/core/log.hpp"
#include "choir/run/model_instance.hpp"
#include "choir/run/training_data.hpp"
#include "src/data/speech/speech_dataset.hpp"
#include "src/models/codec/codec_config.hpp"

namespace choir {

/// The results of a codec for one micro-batch: the sums of the losses of its frames, and their
/// codes.
class CodedFrames {
 public:
  explicit CodedFrames(ModelInstance& instance) : instance_(instance) {}
  /// Collective like ModelInstance::forward(); the batch is in host memory. Only the last stage has
  /// codes.
  void run(const ModelBatch& batch);
  const ByTerm& loss_sums() const { return loss_sums_; }
  /// [B*T, K], frames of padding included; empty on other stages.
  std::span<const std::int32_t> codes() const { return codes_; }

 private:
  ModelInstance& instance_;
  ByTerm loss_sums_;
  std::vector<std::int32_t> codes_;
};

/// The number of uses of each code of each codebook.
class CodeCounts {
 public:
  CodeCounts(std::int64_t books, std::int64_t codes)
      : codes_(codes), counts_(static_cast<std::size_t>(books * codes)) {}
  CodeCounts(std::int64_t codes, std::span<const std::int64_t> counts)
      : codes_(codes), counts_(counts.begin(), counts.end()) {}
  /// Counts the codes of a frame [K].
  void add(std::span<const std::int32_t> frame);
  const std::vector<std::int64_t>& counts() const { return counts_; }
  std::int64_t books() const { return std::ssize(counts_) / codes_; }
  /// Bits per code of this codebook: -sum p log2 p.
  double entropy(std::int64_t book) const;
  /// Share of the codes that were used at least once.
  double used(std::int64_t book) const;
  /// The means over all codebooks.
  double entropy() const;
  double used() const;

 private:
  std::span<const std::int64_t> of(std::int64_t book) const {
    return std::span(counts_).subspan(static_cast<std::size_t>(book * codes_),
                                      static_cast<std::size_t>(codes_));
  }
  std::int64_t codes_;
  std::vector<std::int64_t> counts_;
};

/// The distance of mel spectra, the information content of codes, and speed.
class CodecMeaning final : public ScoreMeaning {
 public:
  explicit CodecMeaning(const CodecConfig& config) : config_(config) {}
  std::vector<ScoreCounter> counters() const override;
  std::string describe(const Scores& scores, Validation& to) const override;
  std::string describe_tag(const Scores& scores, const std::string& tag,
                           Validation& to) const override;

 private:
  CodecConfig config_;
};

class CodecScorer final : public SetScorer {
 public:
  /// Everything referred to must outlive this.
  CodecScorer(ModelInstance& instance, SpeechDataset& data)
      : data_(data),
        config_(instance.options().model.as<CodecConfig>()),
        meaning_(config_),
        coded_(instance) {}
  const ScoreMeaning& meaning() const override { return meaning_; }
  int sets() const override { return data_.eval_sets(); }
  std::string name(int set) const override { return data_.eval_name(set); }
  std::int64_t calls(int set) const override { return data_.eval_calls(set); }
  std::vector<SampleTags> tags(int set) const override;
  void score(int set, std::int64_t call, SetSums& sums) override;

 private:
  void count(int set, const SpeechBatch& batch, const ModelBatch& fields, SetSums& sums) const;

  SpeechDataset& data_;
  CodecConfig config_;
  CodecMeaning meaning_;
  CodedFrames coded_;
  std::vector<std::int32_t> lengths_;
};

/// A batch in the engine's form: the same host memory, and lengths in frames, which are written to
/// `lengths`.
ModelBatch codec_batch(const CodecConfig& config, const SpeechBatch& batch,
                       std::vector<std::int32_t>& lengths);

}  // namespace choir
