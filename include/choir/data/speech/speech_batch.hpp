#pragma once
// A micro-batch of speech (views of memory) and the buffer that owns such memory.
#include <cstdint>
#include <span>
#include <vector>

#include "choir/core/tensor.hpp"
#include "choir/data/speech/speech_corpus.hpp"
#include "choir/data/speech/speech_sampler.hpp"

namespace choir {

struct SpeechBatch {
  TensorView audio;          ///< [B, S] i16 PCM (stored as u16), zero beyond the length of a row
  TensorView audio_lengths;  ///< [B] i32, samples; 0 in a row of padding
  TensorView frame_lengths;  ///< [stages + 1, B] i32: SpeechFrames::after for each stage
  TensorView sample_ids;     ///< [B] i64: a number that is unique for (source, epoch, utterance)
  TensorView labels;         ///< [B, U] i32, kIgnoredTarget beyond the length of a row
  TensorView label_lengths;  ///< [B] i32

  std::span<const SpeechRow> rows;  ///< its utterances; none in an empty micro-batch (B = 1)
  std::int64_t step = 0;            ///< steps since the start of training
  std::int64_t micro_batch = 0;  ///< global index within the step, or within the set in evaluation
  std::int64_t targets = 0;      ///< labels of this micro-batch
  /// Labels of all micro-batches of the step on all ranks: the divisor of summed losses. It
  /// includes the labels of utterances that turn out to be damaged, although they add no loss.
  std::int64_t step_targets = 0;
  std::int64_t samples = 0;             ///< audio samples without padding
  const SpeechCursor* after = nullptr;  ///< start of the next step, which a checkpoint stores
};

/// Memory of one batch, and a batch of views of it.
class SpeechBatchBuffer {
 public:
  /// `shapes` are the largest shapes that will occur. With `whole`, a batch is padded (also with
  /// empty rows) to the first shape that can hold it.
  SpeechBatchBuffer(std::span<const SpeechShape> shapes, const SpeechFrames& frames,
                    bool whole = false);
  SpeechBatchBuffer(const SpeechBatchBuffer&) = delete;
  SpeechBatchBuffer& operator=(const SpeechBatchBuffer&) = delete;

  /// Fills everything except the audio, which stays as it is: shapes, lengths, labels, ids.
  void lay_out(std::span<const SpeechRow> rows, const SpeechCorpus& corpus);
  /// Makes a row empty: no audio, no labels. Used for damaged utterances.
  void empty_row(std::int64_t row);
  std::size_t bytes() const;
  SpeechBatch batch;
  /// Memory behind `batch.rows` and `batch.after`.
  std::vector<SpeechRow> rows;
  SpeechCursor after;

 private:
  void set_lengths(std::int64_t row, std::int64_t samples, std::int64_t labels);

  /// The shape [B, S, U] of a batch of these rows.
  SpeechShape shape_of(std::span<const SpeechRow> of) const;

  SpeechFrames frames_;
  std::vector<SpeechShape> whole_;  // shapes that batches are padded to
  std::vector<std::uint16_t> audio_;
  std::vector<std::int32_t> audio_lengths_, frame_lengths_, labels_, label_lengths_;
  std::vector<std::int64_t> ids_;
};

}  // namespace choir
