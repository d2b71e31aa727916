#pragma once
// What a codec makes audible: codes to sound, a recording to what is left of it, and how much that
// is. Local.
#include <cstdint>
#include <memory>
#include <span>
#include <variant>
#include <vector>

#include "choir/data/codes/code_file.hpp"
#include "choir/data/sound/overlap_add.hpp"
#include "choir/data/sound/vocoder.hpp"
#include "choir/models/codec/codec_coder.hpp"

namespace choir {

/// As files of codes describe it; its codes of silence are those of a frame of zeros among zeros.
CodecDescription describe(CodecCoder& coder);
/// Codes as files hold them; Error for one that is not within 16 bits.
std::vector<std::uint16_t> stored_codes(std::span<const std::int32_t> codes);
/// What turns that which a codec decodes into sound: phases that are looked for, of features, or a
/// sum of frames. They share push(), finish() and delay().
using DecodedSound = std::variant<Vocoder, OverlapAdd>;
/// `look_ahead`: rows, of a Vocoder.
DecodedSound sound_of(const CodecCoder& coder,
                      std::int64_t look_ahead = VocoderOptions().look_ahead);

/// Codes that come frame by frame become sound that comes as regularly, after delay() samples.
class CodeSpeaker {
 public:
  /// `coder` lives longer than this.
  explicit CodeSpeaker(CodecCoder& coder);
  /// codes [frames, K]; samples that are finished.
  std::vector<std::int16_t> push(std::span<const std::int32_t> codes, std::int64_t frames);
  std::vector<std::int16_t> finish();
  std::int64_t delay() const;

 private:
  CodecCoder& coder_;
  DecodedSound sound_;
};

/// All frames at once, frame_samples each: of features with a longer look-ahead and so a little
/// better.
std::vector<std::int16_t> speak_codes(CodecCoder& coder, std::span<const std::int32_t> codes,
                                      std::int64_t frames);

/// Sum over all features of |ln P - ln P'|, and how many there are. 4.343 times the mean is the
/// difference in dB.
struct MelDistance {
  double sum = 0;
  std::int64_t features = 0;
  double decibels() const;
};
/// Between the features of a recording and those that its codes become; Error for a codec that
/// makes sound.
MelDistance mel_distance(CodecCoder& coder, std::span<const std::int16_t> audio,
                         std::span<const std::int32_t> codes);
/// ... and those of the sound that was made of it, of whole frames of the codec.
MelDistance sound_distance(const CodecCoder& coder, std::span<const std::int16_t> audio,
                           std::span<const std::int16_t> sound);

}  // namespace choir
