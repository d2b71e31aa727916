#pragma once
// Sound from the codes of a codec, and the distance between a recording and the speech that its
// codes reproduce. Local.
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

/// The description of the codec for files of codes. Its codes of silence are those of a frame of
/// zeros between frames of zeros.
CodecDescription describe(CodecCoder& coder);
/// Codes in the type that files store; Error for one that does not fit into 16 bits.
std::vector<std::uint16_t> stored_codes(std::span<const std::int32_t> codes);
/// Converts the output of a codec's decoder to sound: a vocoder estimates the phases of features,
/// frames of sound are summed. Both have push(), finish() and delay().
using DecodedSound = std::variant<Vocoder, OverlapAdd>;
/// `look_ahead`: rows that a Vocoder looks ahead.
DecodedSound sound_of(const CodecCoder& coder,
                      std::int64_t look_ahead = VocoderOptions().look_ahead);

/// Converts codes that arrive frame by frame to sound, which follows after delay() samples.
class CodeSpeaker {
 public:
  /// `coder` must outlive this object.
  explicit CodeSpeaker(CodecCoder& coder);
  /// Takes codes [frames, K] and returns the samples that are finished.
  std::vector<std::int16_t> push(std::span<const std::int32_t> codes, std::int64_t frames);
  std::vector<std::int16_t> finish();
  std::int64_t delay() const;

 private:
  CodecCoder& coder_;
  DecodedSound sound_;
};

/// Converts all frames at once to frame_samples samples each. For features it uses a longer
/// look-ahead and so sounds slightly better than CodeSpeaker.
std::vector<std::int16_t> speak_codes(CodecCoder& coder, std::span<const std::int32_t> codes,
                                      std::int64_t frames);

/// The sum over all features of |ln P - ln P'|, and their number. 4.343 times the mean is the
/// difference in dB.
struct MelDistance {
  double sum = 0;
  std::int64_t features = 0;
  double decibels() const;
};
/// The distance between the features of a recording and those decoded from its codes; Error for a
/// codec that produces sound.
MelDistance mel_distance(CodecCoder& coder, std::span<const std::int16_t> audio,
                         std::span<const std::int32_t> codes);
/// The distance between the features of a recording and those of sound in whole frames of the
/// codec.
MelDistance sound_distance(const CodecCoder& coder, std::span<const std::int16_t> audio,
                           std::span<const std::int16_t> sound);

}  // namespace choir
