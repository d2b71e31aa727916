#pragma once
// How well a codec tells what it heard: the distance of mel spectra over validation sets, and how
// much its codes say.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "choir/core/progress_line.hpp"
#include "choir/data/speech/speech_dataset.hpp"
#include "choir/infer/model_instance.hpp"
#include "choir/train/step/training_data.hpp"
#include "src/models/codec/codec_config.hpp"

namespace choir {

/// What a codec makes of a micro-batch: the sums of the losses of its frames, and their codes.
class CodedFrames {
 public:
  explicit CodedFrames(ModelInstance& instance) : instance_(instance) {}
  /// Collective as ModelInstance::forward(); the batch is in host memory. Codes are on the last
  /// stage alone.
  void run(const ModelBatch& batch);
  const ByTerm& loss_sums() const { return loss_sums_; }
  /// [B*T, K], frames of padding too; empty on other stages.
  std::span<const std::int32_t> codes() const { return codes_; }

 private:
  ModelInstance& instance_;
  ByTerm loss_sums_;
  std::vector<std::int32_t> codes_;
};

/// How often each code of each codebook was used.
class CodeCounts {
 public:
  CodeCounts(std::int64_t books, std::int64_t codes)
      : codes_(codes), counts_(static_cast<std::size_t>(books * codes)) {}
  /// A frame [K].
  void add(std::span<const std::int32_t> frame);
  std::vector<std::int64_t>& counts() { return counts_; }
  CodeCounts& operator+=(const CodeCounts& other);
  std::int64_t books() const { return std::ssize(counts_) / codes_; }
  /// Bits of a code of this codebook: -sum p log2 p.
  double entropy(std::int64_t book) const;
  /// Share of the codes that were used at all.
  double used(std::int64_t book) const;
  /// The means over codebooks.
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
  ByTerm losses;  ///< sums; the first one is of mel powers
  std::int64_t frames = 0;
  double audio_seconds = 0, seconds = 0;

  /// A difference of ln of powers in decibels: 10 / ln 10 times as much.
  double decibels() const {
    return 4.342944819032518 * losses.first() / static_cast<double>(frames);
  }
  Validation validation() const;
  std::string to_string() const;
};

/// Collective over the mesh of the instance, the same on every rank: in the same micro-batches on
/// any number of ranks, and the order of sums is theirs.
std::vector<CodecSetScores> score_codec(ModelInstance& instance, SpeechDataset& data,
                                        ProgressLine* progress);

/// All together under the name "" first, then, where there are several, each; the same for people.
std::vector<Validation> validations_of(const std::vector<CodecSetScores>& sets);
std::vector<std::string> lines_of(const std::vector<CodecSetScores>& sets);

/// A batch as the engine takes it: the same host memory, with lengths in frames, which are written
/// to `lengths`.
ModelBatch codec_batch(const CodecConfig& config, const SpeechBatch& batch,
                       std::vector<std::int32_t>& lengths);

}  // namespace choir
