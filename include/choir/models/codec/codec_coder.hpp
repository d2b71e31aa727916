#pragma once
// Speech as codes and back, by a codec that was trained (model.type = "codec"): 16-bit samples to K
// codes for each frame of 80 ms, and codes to log-mel features, 10 ms each.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "choir/infer/model_instance.hpp"
#include "choir/ops/log_mel.hpp"

namespace choir {

/// A frame is coded from its own features alone, and those are a function of its samples and of
/// some milliseconds beside them. Memory does not grow with the length of what is coded: features
/// are made and coded in pieces of one shape that see what lies around them, so codes are those of
/// the whole, and those of a stream are the same however it comes.
class CodecCoder {
 public:
  /// Local. `instance`: a codec with its parameters, whole on this rank, in fp32 or fp64; its arena
  /// as plan_codec() says; lives longer than this. DeckError for another family or precision, or a
  /// model that is divided among ranks.
  explicit CodecCoder(ModelInstance& instance);
  ~CodecCoder();
  CodecCoder(const CodecCoder&) = delete;
  CodecCoder& operator=(const CodecCoder&) = delete;

  /// What features are: their `mean` and `deviation` are undone by decode(), which returns ln(guard
  /// + power).
  const ops::MelOptions& mel() const;
  int sample_rate() const;              ///< 16000
  std::int64_t frame_samples() const;   ///< 1280: samples of a frame
  std::int64_t mels() const;            ///< 80: numbers of a row of features
  std::int64_t rows_per_frame() const;  ///< 8: rows of features of a frame
  std::int64_t codebooks() const;       ///< K
  std::int64_t codes_per_book() const;  ///< 1000: a code is 0 to this - 1
  /// Samples behind the end of a frame that its codes depend on: so much later it can be coded.
  std::int64_t samples_ahead() const;
  /// The hash of all parameters, as fp32, and of the configuration: the same whatever layout
  /// trained and stored the codec, another for another codec.
  std::uint64_t hash() const;

  /// Local. [T, K], T = ceil(samples / frame_samples()); what the last frame lacks is silence.
  std::vector<std::int32_t> encode(std::span<const std::int16_t> audio);
  /// Whether its decoder makes sound (model.head = "istft"), not features.
  bool makes_sound() const;
  /// Local. `codes` [T, K] to features [rows_per_frame() * T, mels()] or, where the codec makes
  /// sound, to frames of it for an OverlapAdd, [rows_per_frame() * T, mel().fft]. DataError for
  /// codes that are not T K, or one out of range, with its frame.
  std::vector<float> decode(std::span<const std::int32_t> codes, std::int64_t frames);

  /// Speech that comes piece by piece. Several may be open.
  class Stream {
   public:
    explicit Stream(CodecCoder& coder);
    /// Local. Codes [T, K] of the frames that are complete now, T >= 0.
    std::vector<std::int32_t> add(std::span<const std::int16_t> audio);
    /// Local. Those of the rest: with all that add() returned as many as encode() returns. Nothing
    /// can be added after.
    std::vector<std::int32_t> finish();

   private:
    void code(std::int64_t frames, std::vector<std::int32_t>& to);

    CodecCoder* coder_;
    std::vector<std::int16_t> held_;  ///< from the border before the next frame on
    bool finished_ = false;
  };

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Local, by coding silence on the null device: bytes of the arena of an instance for a CodecCoder.
std::size_t plan_codec(const ModelInstance::Options& options);

}  // namespace choir
