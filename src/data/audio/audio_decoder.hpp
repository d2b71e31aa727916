#pragma once
// Decoding of sound files (WAV, FLAC, OGG, MP3 and others, see sound_stream.hpp) to 16-bit samples
// of one channel at one rate: whole files, and segments that are read in parts, so that a file of
// any length needs the memory of one part.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace choir {

/// The channel of a recording to use: a number from 0, or one of the two constants below.
struct ChannelChoice {
  static constexpr int kUnset = -1;    ///< valid for a single channel; AudioError for more
  static constexpr int kAverage = -2;  ///< the mean of all channels
  int value = kUnset;
  friend bool operator==(const ChannelChoice&, const ChannelChoice&) = default;
};
/// Parses "average" or a number from 0; "" is unset. Throws DeckError for anything else.
ChannelChoice channel_choice_of(const std::string& word);

/// The file of a recording: FILE.ark of Kaldi's "FILE.ark:BYTE", where a WAV file begins at that
/// byte; any other path itself. Local.
std::string file_of_recording(const std::string& path);

struct Pcm {
  std::vector<std::int16_t> samples;
  float peak = 0;  ///< largest magnitude of samples that were converted; 1 is full scale
  /// True if three consecutive samples have the largest magnitude, or some were cut to fit 16 bits.
  bool clipped = false;
};

/// One open recording. Not thread safe.
class AudioDecoder {
 public:
  /// Local. `name` is used in messages. Both throw AudioError {missing_file, empty, unreadable,
  /// zero_length}, and DeckError in a build without libsndfile.
  static AudioDecoder from_file(const std::string& path);  ///< also "FILE.ark:BYTE" of Kaldi
  static AudioDecoder from_memory(std::vector<char> bytes, const std::string& name);
  ~AudioDecoder();
  AudioDecoder(AudioDecoder&&) noexcept;

  int rate() const;
  int channels() const;
  std::int64_t frames() const;
  double seconds() const { return static_cast<double>(frames()) / rate(); }
  /// "ends after N of the M samples that its header promises" for a file that was cut off; else "".
  std::string shortfall() const;
  /// True if more is missing than the padding of an MP3 encoder: over 0.2 s and 1 % of the samples
  /// that the header promises.
  bool cut_off() const;
  /// Throws AudioError {unreadable} if cut_off(): the text of a whole recording would not be that
  /// of its sound.
  void require_complete(const std::string& name) const;

  /// Returns frames [first, first + count) of the recording at `rate`. 16-bit sound of the same
  /// rate is passed through bit for bit; anything else is converted to fp32 and rounded to nearest.
  /// If calls ascend in `first`, nothing is decoded twice. Throws AudioError {too_short,
  /// not_finite, unreadable, channels}.
  Pcm read(std::int64_t first, std::int64_t count, ChannelChoice channel, int rate);

 private:
  struct State;
  explicit AudioDecoder(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct RecordingSource {
  std::string path;
  double offset = 0;     ///< seconds
  double duration = -1;  ///< seconds; negative: to the end
  ChannelChoice channel;
};

class Recording {
 public:
  /// Local. `rate` is in hertz. Throws the AudioError of AudioDecoder::from_file, and AudioError
  /// for a segment that does not exist (too_short, zero_length) and for several channels if none
  /// was chosen (channels).
  static Recording open(const RecordingSource& source, int rate);

  /// Number of samples at the rate of the model.
  std::int64_t samples() const { return samples_; }
  double seconds() const { return static_cast<double>(samples_) / rate_; }
  /// AudioDecoder::shortfall() of a recording that is read to the end of its file; else "".
  std::string shortfall() const;
  /// Says that samples far above full scale were cut by read(), or "": a file of floating-point
  /// numbers holds samples from -1 to 1.
  std::string overload() const;

  /// Local. Returns samples [first, first + count), with zeros past the end. If the rates differ,
  /// each part is converted together with kMargin seconds on both sides, which exceeds the reach of
  /// the filter, so the parts equal the conversion of the whole except for the rounding to 16 bits.
  /// If calls ascend in `first`, little is decoded twice. Throws AudioError (unreadable,
  /// not_finite, too_short).
  std::vector<std::int16_t> read(std::int64_t first, std::int64_t count);

  static constexpr double kMargin = 0.2;

 private:
  Recording(AudioDecoder decoder, const RecordingSource& source, int rate);

  AudioDecoder decoder_;
  ChannelChoice channel_;
  int rate_;
  std::int64_t native_first_ = 0, native_count_ = 0;  ///< frames of the file
  std::int64_t samples_ = 0;
  float peak_ = 0;  ///< of all calls of read()
};

}  // namespace choir
