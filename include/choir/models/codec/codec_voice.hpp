#pragma once
// What a codec makes audible: codes to sound, a recording to what is left of it, and how much that
// is. Local.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "choir/data/codes/code_file.hpp"
#include "choir/data/sound/vocoder.hpp"
#include "choir/models/codec/codec_coder.hpp"

namespace choir {

/// As files of codes describe it; its codes of silence are those of a frame of zeros among zeros.
CodecDescription describe(CodecCoder& coder);
/// Codes as files hold them; Error for one that is not within 16 bits.
std::vector<std::uint16_t> stored_codes(std::span<const std::int32_t> codes);
/// That turns the codec's features into sound.
VocoderOptions vocoder_of(const CodecCoder& coder);

/// Codes that come frame by frame become sound that comes as regularly, after delay() samples.
class CodeSpeaker {
 public:
  /// `coder` lives longer than this.
  explicit CodeSpeaker(CodecCoder& coder);
  /// codes [frames, K]; samples that are finished.
  std::vector<std::int16_t> push(std::span<const std::int32_t> codes, std::int64_t frames);
  std::vector<std::int16_t> finish() { return vocoder_.finish(); }
  std::int64_t delay() const { return vocoder_.delay(); }

 private:
  CodecCoder& coder_;
  Vocoder vocoder_;
};

/// All frames at once, frame_samples each: with a longer look-ahead and so a little better.
std::vector<std::int16_t> speak_codes(CodecCoder& coder, std::span<const std::int32_t> codes,
                                      std::int64_t frames);

/// Sum over all features of |ln P - ln P'| between those of a recording and those that its codes
/// become, and how many there are. 4.343 times the mean is the difference in dB.
struct MelDistance {
  double sum = 0;
  std::int64_t features = 0;
  double decibels() const;
};
MelDistance mel_distance(CodecCoder& coder, std::span<const std::int16_t> audio,
                         std::span<const std::int32_t> codes);

}  // namespace choir
