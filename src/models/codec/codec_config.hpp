#pragma once
// The configuration of a speech codec (model.type = "codec"): the log-mel rows of a frame are
// compressed to a few numbers, rounded (kernels/fsq/fsq.hpp) and decoded to rows again.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/core/enum_words.hpp"
#include "choir/models/batch.hpp"
#include "choir/models/model_config.hpp"
#include "choir/nn/pass.hpp"
#include "kernels/features/features.hpp"
#include "kernels/fsq/fsq.hpp"

namespace choir {

/// Weights of the terms of a loss that compares sound (src/models/codec/waveform_head.hpp).
struct WaveformLoss {
  double mel = 1, stft = 1, convergence = 1;
  friend bool operator==(const WaveformLoss&, const WaveformLoss&) = default;
};

/// Parses the transform lengths of a loss that compares sound: "256,512,1024". The DeckError for
/// invalid text names the key.
std::vector<std::int64_t> parse_resolutions(const std::string& text, const std::string& key);

/// Features are neither emphasised nor dithered nor normalised by utterance: a frame is a function
/// of its own samples, and a vocoder needs its loudness. Two constants standardise them, those of
/// the mel spectra of speech with this guard: a learned affine map would only repeat what the first
/// layer can do, and a codec would have to store its statistics.
/// The output of the decoder: rows of mel features, or sound.
enum class CodecHead : std::uint8_t { mel, istft };
constexpr auto words_of(CodecHead) {
  return words<CodecHead>({{CodecHead::mel, "mel"}, {CodecHead::istft, "istft"}});
}

struct CodecConfig {
  std::int64_t rows = 8;             ///< rows of features in a frame
  std::int64_t encoder_width = 192;  ///< hidden layer of the encoder
  std::int64_t decoder_width = 384;  ///< both hidden layers of the decoder
  std::int64_t codebooks = 4;        ///< K
  std::string levels = "8,5,5,5";    ///< levels of the numbers of a codebook
  CodecHead head = CodecHead::mel;
  std::string resolutions = "256,512,1024";  ///< transforms of the loss of sound
  WaveformLoss loss;
  ops::MelOptions mel{.preemphasis = 0, .guard = 1e-6, .mean = -7, .deviation = 3};

  // ModelConfig reads these of the whole model; complete() sets the derived ones.
  std::int64_t n_layer = 2;  ///< units between encoder and decoder: rounding, rows of codes
  std::int64_t n_embd = 384;
  std::int64_t vocab_size = 1000;
  Recompute recompute = Recompute::none;

  ops::FsqLevels fsq() const { return ops::FsqLevels::parse(levels, "model.levels"); }
  void complete() {
    n_embd = decoder_width;
    vocab_size = fsq().codes();
  }
  bool makes_sound() const { return head == CodecHead::istft; }
  std::vector<std::int64_t> transforms() const {
    return parse_resolutions(resolutions, "model.resolutions");
  }
  std::int64_t features() const { return rows * mel.mels; }  ///< per frame
  /// Decoder outputs per frame: features, or magnitude and phase of each bin.
  std::int64_t outputs() const { return makes_sound() ? rows * (mel.fft + 2) : features(); }
  std::int64_t numbers() const { return codebooks * fsq().count; }  ///< rounded numbers per frame
  std::int64_t frame_samples() const { return rows * mel.hop; }
  /// Frames of a number of samples; the last one is filled up with silence.
  std::int64_t frames(std::int64_t samples) const {
    return (samples + frame_samples() - 1) / frame_samples();
  }
};

const ModelFamily& family_of(const CodecConfig& config);

/// The fields of a micro-batch of speech [B, S], whose rows are padded with zeros, without memory:
///   "audio"         [B, S] 16-bit PCM
///   "audio_lengths" [B] i32, samples; 0: a row of padding
///   "frame_lengths" [2, B] i32, numbers without padding: rows of features, then frames of them
ModelBatch codec_fields(const BatchShape& shape);
/// Computes "frame_lengths" from "audio_lengths".
void set_frame_lengths(const CodecConfig& config, ModelBatch& batch);
/// The batch of codes to decode. Its only field is "codes", [T K] i32 of one recording.
ModelBatch code_fields(const TensorView& codes, std::int64_t frames);

}  // namespace choir
