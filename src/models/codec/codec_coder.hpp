#pragma once
// Coding of speech by a trained codec (model.type = "codec"): 16-bit samples to K codes for each
// frame of 80 ms, codes to log-mel features (one row for each 10 ms) or frames of sound, and these
// to sound. Local.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "choir/run/model_instance.hpp"
#include "kernels/features/features.hpp"
#include "src/data/audio/synthesis.hpp"
#include "src/data/dialogues/code_file.hpp"
#include "src/run/loaded_model.hpp"

namespace choir {

/// A frame is coded from its own features alone, which are a function of its samples and of some
/// milliseconds around them. Memory does not grow with the length of the recording: features are
/// computed and coded in pieces of one shape that include the samples around them. Therefore codes
/// equal those of the whole recording, and those of a stream do not depend on how it is divided.
class CodecCoder {
 public:
  /// Local. `instance`: a codec with its parameters, whole on this rank, in fp32 or fp64, with an
  /// arena as large as plan_codec() requires; it must outlive this object. DeckError for another
  /// family or precision, or for a model that is divided among ranks.
  explicit CodecCoder(ModelInstance& instance);
  ~CodecCoder();
  CodecCoder(const CodecCoder&) = delete;
  CodecCoder& operator=(const CodecCoder&) = delete;

  /// Options of the features. decode() undoes their `mean` and `deviation` and returns ln(guard +
  /// power).
  const ops::MelOptions& mel() const;
  int sample_rate() const;              ///< 16000
  std::int64_t frame_samples() const;   ///< 1280 samples per frame
  std::int64_t mels() const;            ///< 80 elements of a row of features
  std::int64_t rows_per_frame() const;  ///< 8 rows of features per frame
  std::int64_t codebooks() const;       ///< K
  std::int64_t codes_per_book() const;  ///< 1000; a code is below this
  /// Samples after the end of a frame that its codes depend on, the delay of coding.
  std::int64_t samples_ahead() const;
  /// The hash of all parameters, as fp32, and of the configuration. It does not depend on the
  /// layout that trained and stored the codec, and differs between codecs.
  std::uint64_t hash() const;

  /// Local. Returns [T, K], T = ceil(samples / frame_samples()); the last frame is filled up with
  /// silence.
  std::vector<std::int32_t> encode(std::span<const std::int16_t> audio);
  /// True if the decoder produces sound (model.head = "istft") and not features.
  bool makes_sound() const;
  /// Local. Decodes `codes` [T, K] to features [rows_per_frame() * T, mels()] or, if the codec
  /// produces sound, to frames of sound for an OverlapAdd, [rows_per_frame() * T, mel().fft].
  /// DataError if there are not T K codes, or if one is out of range; the message names its frame.
  std::vector<float> decode(std::span<const std::int32_t> codes, std::int64_t frames);

  /// Codes speech that arrives in parts. Several streams may be open.
  class Stream {
   public:
    explicit Stream(CodecCoder& coder);
    /// Local. Returns codes [T, K] of the frames that are complete now, T >= 0.
    std::vector<std::int32_t> add(std::span<const std::int16_t> audio);
    /// Local. Returns the codes of the rest; together with those of add() they are as many as
    /// encode() returns. Nothing can be added afterwards.
    std::vector<std::int32_t> finish();

   private:
    void code(std::int64_t frames, std::vector<std::int32_t>& to);

    CodecCoder* coder_;
    std::vector<std::int16_t> held_;  ///< samples from the border before the next frame on
    bool finished_ = false;
  };

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Local. Bytes of the arena of an instance for a CodecCoder, found by coding silence on the null
/// device.
std::size_t plan_codec(const ModelInstance::Options& options, const Device* target = nullptr);

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

struct CodecRunRequest {
  const FamilyTable& families;
  std::string checkpoint, precision, device = "auto";
  bool ema = false;
};
class CodecRun {
 public:
  /// Throws DeckError for a checkpoint of another family. Collective.
  CodecRun(MpiSession& session, const CodecRunRequest& request);

  Communicator& world() { return place_.mesh->world(); }
  CodecCoder& coder() { return *coder_; }

 private:
  Workplace place_;
  LoadedModel loaded_;
  std::unique_ptr<CodecCoder> coder_;
};

}  // namespace choir
