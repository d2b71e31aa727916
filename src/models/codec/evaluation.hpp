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
  /// Counts the codes of a frame [K].
  void add(std::span<const std::int32_t> frame);
  std::vector<std::int64_t>& counts() { return counts_; }
  CodeCounts& operator+=(const CodeCounts& other);
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

struct CodecSetScores {
  std::string name;
  CodeCounts codes;
  std::vector<LossTerm> terms;
  ByTerm losses;  ///< sums; the first one is that of mel powers
  std::int64_t frames = 0;
  double audio_seconds = 0, seconds = 0;

  /// The difference of ln of powers in decibels, which is 10 / ln 10 times as large.
  double decibels() const {
    return 4.342944819032518 * losses.first() / static_cast<double>(frames);
  }
  Validation validation() const;
  std::string to_string() const;
};

/// Collective over the mesh of the instance, with the same result on every rank. Micro-batches and
/// the order of sums do not depend on the number of ranks.
std::vector<CodecSetScores> score_codec(ModelInstance& instance, SpeechDataset& data,
                                        ProgressLine* progress);

/// The scores of all sets together, named "", then, if there are several, those of each set; and
/// the same as lines for users.
std::vector<Validation> validations_of(const std::vector<CodecSetScores>& sets);
std::vector<std::string> lines_of(const std::vector<CodecSetScores>& sets);

/// A batch in the engine's form: the same host memory, and lengths in frames, which are written to
/// `lengths`.
ModelBatch codec_batch(const CodecConfig& config, const SpeechBatch& batch,
                       std::vector<std::int32_t>& lengths);

}  // namespace choir
