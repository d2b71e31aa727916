#pragma once
// The configuration of the FastConformer encoder (Rekesh et al. 2023, arXiv 2305.05084) with a CTC
// head.
#include <cstdint>
#include <string>

#include "choir/core/enum_words.hpp"
#include "choir/models/batch.hpp"
#include "choir/models/model_config.hpp"
#include "choir/nn/pass.hpp"
#include "kernels/features/features.hpp"
#include "src/data/sampling/buckets.hpp"

namespace choir {

/// The norm inside the convolution module.
enum class ConvNorm { layernorm, batchnorm };
constexpr auto words_of(ConvNorm) {
  return words<ConvNorm>({{ConvNorm::layernorm, "layernorm"}, {ConvNorm::batchnorm, "batchnorm"}});
}
/// The frames that a frame attends to. `regular`: left ... right around it; `chunked`: its own
/// chunk of right + 1 frames and the left / (right + 1) chunks before it.
enum class ContextStyle { regular, chunked };
constexpr auto words_of(ContextStyle) {
  return words<ContextStyle>(
      {{ContextStyle::regular, "regular"}, {ContextStyle::chunked, "chunked"}});
}

struct FastConformerConfig {
  std::int64_t n_layer = 16;     ///< blocks
  std::int64_t n_embd = 176;     ///< C
  std::int64_t n_head = 4;       ///< divides n_embd
  std::int64_t ffn_width = 0;    ///< F; 0: 4 C
  std::int64_t conv_kernel = 9;  ///< taps, odd
  std::int64_t subsampling = 8;  ///< 2, 4 or 8 frames of features per frame of the encoder
  std::int64_t subsampling_channels = 256;
  ConvNorm conv_norm = ConvNorm::layernorm;
  bool xscaling = true;  ///< the input of the blocks is multiplied by sqrt(C)
  bool causal = false;   ///< subsampling and convolutions see no future
  ContextStyle context_style = ContextStyle::regular;
  std::int64_t left_context = -1, right_context = -1;  ///< frames of the encoder; -1: all
  double dropout = 0.1;         ///< of every residual branch, and after the subsampling
  double stochastic_depth = 0;  ///< of the last block; linear from 0 at the first
  std::int64_t vocab_size = 0;  ///< V, without the blank, which is symbol V

  ops::MelOptions mel{};
  bool normalise = true;       ///< normalise features per utterance and bin
  ops::SpecAugment augment{};  ///< only in training
  double norm_eps = 1e-5;
  bool attention_in_one_kernel = false;  ///< gradients of attention, on a GPU in 16 bits
  Recompute recompute = Recompute::none;

  std::int64_t hidden() const { return ffn_width > 0 ? ffn_width : 4 * n_embd; }
  /// Number of halvings of time and frequency.
  int stages() const { return subsampling == 8 ? 3 : subsampling == 4 ? 2 : 1; }
  SpeechFrames speech_frames() const { return {mel.hop, stages(), causal}; }
  /// Frames of an utterance of a number of samples after `stage` halvings, without padding (stage
  /// 0: frames of features).
  std::int64_t lengths_after(int stage, std::int64_t samples) const {
    return speech_frames().after(stage, samples);
  }
  std::int64_t frames(std::int64_t samples) const { return lengths_after(stages(), samples); }
  /// The duration of one frame of the encoder.
  double seconds_per_frame() const {
    return static_cast<double>(mel.hop * subsampling) / static_cast<double>(mel.sample_rate);
  }
};

const ModelFamily& family_of(const FastConformerConfig& config);

/// The fields of a micro-batch of speech, whose rows are utterances padded with zeros, without
/// memory:
///   "audio"         [B, S] 16-bit PCM
///   "audio_lengths" [B] i32, samples; 0: a row of padding
///   "frame_lengths" [stages + 1, B] i32, numbers of frames without padding: row 0 of the features,
///                   row k after the k-th halving of time (FastConformerConfig::lengths_after of
///                   audio_lengths)
///   "sample_ids"    [B] i64; random numbers of a row depend on it and on the seed
///   "labels"        [B, U] i32, padding -1
///   "label_lengths" [B] i32
ModelBatch speech_fields(int stages, const BatchShape& shape);

}  // namespace choir
