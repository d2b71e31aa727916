#pragma once
// A micro-batch of speech: views of memory that somebody else owns.
#include <cstdint>
#include <span>
#include <vector>

#include "choir/core/tensor.hpp"
#include "choir/data/speech/speech_corpus.hpp"
#include "choir/data/speech/speech_sampler.hpp"

namespace choir {

struct SpeechBatch {
  TensorView audio;          ///< [B, S] i16 PCM (held as u16), 0 from a row's length on
  TensorView audio_lengths;  ///< [B] i32, samples; 0: a row of padding
  TensorView frame_lengths;  ///< [stages + 1, B] i32: SpeechFrames::after of each stage
  TensorView sample_ids;     ///< [B] i64: one number for each (source, epoch, utterance)
  TensorView labels;         ///< [B, U] i32, kIgnoredTarget from a row's length on
  TensorView label_lengths;  ///< [B] i32

  std::span<const SpeechRow> rows;  ///< what they are; none in an empty micro-batch (B = 1)
  std::int64_t step = 0;            ///< since the start of training
  std::int64_t micro_batch = 0;     ///< global, of the step; of the set in evaluation
  std::int64_t targets = 0;         ///< labels of this micro-batch
  /// Labels of all micro-batches of the step on all ranks: what sums of losses are divided by.
  /// Labels of utterances that turned out to be damaged count, though they add nothing.
  std::int64_t step_targets = 0;
  std::int64_t samples = 0;             ///< of audio, without padding
  const SpeechCursor* after = nullptr;  ///< where the next step begins: what a checkpoint keeps
};

/// Memory of one batch, and a batch of views of it.
class SpeechBatchBuffer {
 public:
  /// `shapes`: the largest there will be. With `whole` a batch is padded, by rows without sound
  /// too, to the first of them that holds it.
  SpeechBatchBuffer(std::span<const SpeechShape> shapes, const SpeechFrames& frames,
                    bool whole = false);
  SpeechBatchBuffer(const SpeechBatchBuffer&) = delete;
  SpeechBatchBuffer& operator=(const SpeechBatchBuffer&) = delete;

  /// Everything but the audio, which is left as it was: shapes, lengths, labels, ids.
  void lay_out(std::span<const SpeechRow> rows, const SpeechCorpus& corpus);
  /// A row without sound or labels: what a damaged utterance becomes.
  void empty_row(std::int64_t row);
  std::size_t bytes() const;
  SpeechBatch batch;
  /// Kept for `batch`.
  std::vector<SpeechRow> rows;
  SpeechCursor after;

 private:
  void set_lengths(std::int64_t row, std::int64_t samples, std::int64_t labels);

  /// [B, S, U] of a batch of these rows.
  SpeechShape shape_of(std::span<const SpeechRow> of) const;

  SpeechFrames frames_;
  std::vector<SpeechShape> whole_;  // shapes that batches are padded to
  std::vector<std::uint16_t> audio_;
  std::vector<std::int32_t> audio_lengths_, frame_lengths_, labels_, label_lengths_;
  std::vector<std::int64_t> ids_;
};

}  // namespace choir
