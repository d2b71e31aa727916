#pragma once
// Codes of the recordings of a folder of packed speech, beside the audio, so that a model that
// speaks is trained without the codec that made them: codes.NAME.bin.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "choir/data/audio/audio_catalog.hpp"

namespace choir {

/// The codec that codes are of: what a reader must know of it without having it.
struct CodecDescription {
  std::uint64_t hash = 0;              ///< of its weights and what gives them meaning
  int sample_rate = 0;                 ///< hertz
  std::int64_t frame_samples = 0;      ///< a frame of codes stands for so many samples
  std::int64_t codebooks = 0;          ///< K codes a frame
  std::int64_t codes_per_book = 0;     ///< N: codes are 0 ... N - 1, at most 65,536
  std::vector<std::uint16_t> silence;  ///< [K] a frame of digital silence
  friend bool operator==(const CodecDescription&, const CodecDescription&) = default;

  /// Frames that so many samples take, the last one filled up with zeros.
  std::int64_t frames_of(std::int64_t samples) const {
    return (samples + frame_samples - 1) / frame_samples;
  }
};

/// Frames of every recording of a catalog, read where they are asked for. Copies share one open
/// file, which may be read from several threads.
class CodeFile {
 public:
  /// FOLDER/codes.NAME.bin. Throws DeckError for a name with other characters than letters,
  /// digits, '_' and '-'.
  static std::string path(const std::string& folder, const std::string& name);
  /// Local. Of the folder of `catalog`: reads and checks all but the codes, which read() checks.
  /// Throws DataError: missing (names `choir prepare codes`), truncated or too long, damaged, of
  /// another version, of another state of the audio, of another number of recordings, of another
  /// sample rate or with other numbers of frames than the audio takes.
  static CodeFile open(const AudioCatalog& catalog, const std::string& name);
  /// Local. DataError that names both unless the codes are of this codec.
  void require(const CodecDescription& codec) const;

  const CodecDescription& codec() const;
  std::int64_t size() const;                          ///< recordings
  std::int64_t frames(std::int64_t recording) const;  ///< T
  std::int64_t frames() const;                        ///< of all
  const std::string& path() const;

  /// Local. [count, K] frames [first, first + count) of a recording, all of them there (else
  /// Error). The recording is read whole, 2 T K bytes, so that its checksum can be compared.
  /// Throws DataError: damaged.
  std::vector<std::uint16_t> read(std::int64_t recording, std::int64_t first,
                                  std::int64_t count) const;
  /// All of its frames.
  std::vector<std::uint16_t> read(std::int64_t recording) const {
    return read(recording, 0, frames(recording));
  }

 private:
  struct State;
  explicit CodeFile(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

}  // namespace choir
