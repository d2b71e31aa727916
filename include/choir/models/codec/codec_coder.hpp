#pragma once
// Speech as codes and back, by a codec that was trained (model.type = "codec"): 16-bit samples to K
// codes for each frame of 80 ms, and codes to log-mel features, 10 ms each.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace choir {

class ModelInstance;

/// A frame is coded from its own features alone, and those are a function of its samples and of 176
/// beside them on both sides. Memory does not grow with the length of what is coded: features are
/// made and coded in pieces that see what lies around them, so codes are those of the whole.
class CodecCoder {
 public:
  /// Local. `instance`: a codec on one rank, with its parameters; lives longer than this. Error for
  /// another family, or a model divided among ranks.
  explicit CodecCoder(ModelInstance& instance);
  ~CodecCoder();
  CodecCoder(const CodecCoder&) = delete;
  CodecCoder& operator=(const CodecCoder&) = delete;

  int sample_rate() const;                ///< 16000
  std::int64_t frame_samples() const;     ///< 1280: samples of a frame
  std::int64_t mels() const;              ///< 80: numbers of a row of features
  std::int64_t rows_per_frame() const;    ///< 8: rows of features of a frame
  std::int64_t codebooks() const;         ///< K
  std::int64_t codes_per_book() const;    ///< 1000: a code is 0 to this - 1
  /// Of the values of all parameters and of the configuration: the same after training in any
  /// layout saved it, another for another codec.
  std::uint64_t hash() const;
  /// Samples after a frame that its codes depend on: so much later than its end it can be coded.
  std::int64_t samples_ahead() const;

  /// Local. [T, K], T = ceil(samples / frame_samples()); what the last frame lacks is silence.
  std::vector<std::int32_t> encode(std::span<const std::int16_t> audio);
  /// Local. `codes` [T, K] to ln-mel features [rows_per_frame() * T, mels()]. Error for a code out
  /// of range, naming its frame.
  std::vector<float> decode(std::span<const std::int32_t> codes, std::int64_t frames);

  /// Local. Codes of speech that comes piece by piece: the same as those of the whole.
  class Stream {
   public:
    explicit Stream(CodecCoder& coder);
    ~Stream();
    /// Codes [T, K] of the frames that can be coded now, T >= 0.
    std::vector<std::int32_t> add(std::span<const std::int16_t> audio);
    /// Those of the rest; nothing can be added after.
    std::vector<std::int32_t> finish();

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace choir
