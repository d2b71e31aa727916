#pragma once
// Sound files (WAV, FLAC, OGG, and what else libsndfile reads) to 16-bit samples of one channel at
// one rate.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace choir {

/// Which channel of a recording is used: a number from 0, or one of the two below.
struct ChannelChoice {
  static constexpr int kUnset = -1;    ///< fine where there is one; AudioError where there are more
  static constexpr int kAverage = -2;  ///< the mean of all
  int value = kUnset;
  friend bool operator==(const ChannelChoice&, const ChannelChoice&) = default;
};
/// "average" or a number from 0, "" is unset; DeckError for anything else.
ChannelChoice channel_choice_of(const std::string& word);

struct Pcm {
  std::vector<std::int16_t> samples;
  /// Three samples in a row stand at the rail, or some had to be cut to fit 16 bits.
  bool clipped = false;
};

/// One open recording. Not thread safe.
class AudioDecoder {
 public:
  /// Local. `name` for messages. Throw AudioError {missing_file, empty, unreadable, zero_length};
  /// DeckError without libsndfile in the build.
  static AudioDecoder from_file(const std::string& path);
  static AudioDecoder from_memory(std::vector<char> bytes, const std::string& name);
  ~AudioDecoder();
  AudioDecoder(AudioDecoder&&) noexcept;

  int rate() const;
  int channels() const;
  std::int64_t frames() const;
  double seconds() const { return static_cast<double>(frames()) / rate(); }

  /// Frames [first, first + count) of the recording, brought to `rate`. 16-bit sound of the same
  /// rate passes bit by bit; anything else goes through fp32 and is rounded to nearest. In order of
  /// `first`, nothing is decoded twice. Throws AudioError {too_short, not_finite, unreadable,
  /// channels}.
  Pcm read(std::int64_t first, std::int64_t count, ChannelChoice channel, int rate);

 private:
  struct State;
  explicit AudioDecoder(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace choir
