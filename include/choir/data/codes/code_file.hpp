#pragma once
// The file codes.NAME.bin: codec codes of the recordings of a folder of packed speech, stored
// beside the audio, so that a model that speaks is trained without the codec.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "choir/data/audio/audio_catalog.hpp"

namespace choir {

/// Description of the codec of a file of codes, for readers that do not have the codec.
struct CodecDescription {
  std::uint64_t hash = 0;              ///< of its weights and settings
  int sample_rate = 0;                 ///< hertz
  std::int64_t frame_samples = 0;      ///< samples of a frame of codes
  std::int64_t codebooks = 0;          ///< K codes a frame
  std::int64_t codes_per_book = 0;     ///< N: codes are 0 ... N - 1, at most 65,536
  std::vector<std::uint16_t> silence;  ///< [K] a frame of digital silence
  friend bool operator==(const CodecDescription&, const CodecDescription&) = default;

  /// Frames of this many samples, the last one padded with zeros.
  std::int64_t frames_of(std::int64_t samples) const {
    return (samples + frame_samples - 1) / frame_samples;
  }
};

/// The codes of every recording of a catalog, read on request. Copies share one open file, which
/// several threads may read.
class CodeFile {
 public:
  /// FOLDER/codes.NAME.bin. Throws DeckError for a name with other characters than letters,
  /// digits, '_' and '-'.
  static std::string path(const std::string& folder, const std::string& name);
  /// Local. Opens the codes in the folder of `catalog` and checks everything except the codes,
  /// which read() checks. Throws DataError if the file is missing (naming `choir prepare codes`),
  /// truncated or too long, damaged, or if its version, the state of the audio, the number of
  /// recordings, the sample rate or the numbers of frames do not match.
  static CodeFile open(const AudioCatalog& catalog, const std::string& name);
  /// Local. Throws a DataError that names both codecs unless the codes are of this codec.
  void require(const CodecDescription& codec) const;

  const CodecDescription& codec() const;
  std::int64_t size() const;                          ///< recordings
  std::int64_t frames(std::int64_t recording) const;  ///< T
  std::int64_t frames() const;                        ///< frames of all recordings
  const std::string& path() const;

  /// Local. Returns frames [first, first + count) of a recording, [count, K]. All of them must
  /// exist, else Error. The whole recording (2 T K bytes) is read, so that its checksum can be
  /// compared. Throws DataError if it is damaged.
  std::vector<std::uint16_t> read(std::int64_t recording, std::int64_t first,
                                  std::int64_t count) const;
  /// All frames of a recording.
  std::vector<std::uint16_t> read(std::int64_t recording) const {
    return read(recording, 0, frames(recording));
  }

 private:
  struct State;
  explicit CodeFile(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

}  // namespace choir
