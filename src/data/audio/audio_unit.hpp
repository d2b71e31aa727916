#pragma once
// The unit of work of `choir prepare audio`: the utterances of one shard, which one rank decodes
// and writes, and the record about them (audio_00000.part) that is kept until all shards are
// complete. Records are serialised to bytes, for messages between ranks and for files that only
// their writer reads.

#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "choir/core/error.hpp"
#include "src/data/audio/audio_decoder.hpp"
#include "src/data/audio/audio_manifest.hpp"
#include "src/data/audio/folder_manifest.hpp"
#include "src/data/audio/packed_audio.hpp"

namespace choir {

class BytePacker {
 public:
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put(const std::string& text) {
    put(text.size());
    bytes_ += text;
  }
  template <class T>
  void put(const std::vector<T>& values) {
    put(values.size());
    for (const T& value : values) put(value);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class ByteUnpacker {
 public:
  explicit ByteUnpacker(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  void get(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    require(sizeof value);
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_.remove_prefix(sizeof value);
  }
  void get(std::string& text) {
    const std::size_t length = count();
    require(length);
    text.assign(bytes_.substr(0, length));
    bytes_.remove_prefix(length);
  }
  std::size_t count() {
    std::size_t n = 0;
    get(n);
    require(n);  // each element has at least one byte
    return n;
  }
  bool done() const { return bytes_.empty(); }

 private:
  void require(std::size_t n) const {
    CHOIR_CHECK(n <= bytes_.size(), "packed bytes end {} too early", n - bytes_.size());
  }
  std::string_view bytes_;
};

struct UnitOptions {
  int sample_rate = 16000;
  ChannelChoice channel;
  bool stop_on_bad = true;
  int shards = 1;                           ///< for messages
  std::string skip_hint{}, channel_hint{};  ///< see PrepareAudioOptions
};

struct AudioUnit {
  int shard = 0;
  std::vector<AudioEntry> entries;

  std::string pack() const;
  static AudioUnit unpack(const std::string& bytes);
};

/// The result of a unit. Positions of lines are relative to `lines`.
struct UnitResult {
  std::uint64_t fingerprint = 0;
  std::int64_t shard_samples = 0;
  std::uint32_t payload_crc = 0;
  std::vector<AudioCatalog::Utterance> utterances;
  std::string lines;
  std::vector<OmittedEntry> left_out;
  std::vector<std::string> clipped;  ///< ids
  std::int64_t resampled = 0;
};

/// Local. A fingerprint of the entries, the options, and the size and time of every file that they
/// name.
std::uint64_t unit_fingerprint(const AudioUnit& unit, const UnitOptions& options);

/// Local. Decodes the utterances, writes the shard, then its part. `progress` is called with the
/// planned seconds of every finished utterance. Throws DataError that names all bad utterances of
/// the unit (stop_on_bad), StorageError.
UnitResult run_audio_unit(const AudioUnit& unit, const UnitOptions& options,
                          const std::string& folder, const std::function<void(double)>& progress);

/// Local. Returns the part of a finished shard, or nothing if the shard or its part is missing or
/// damaged.
std::optional<UnitResult> read_unit_part(const std::string& folder, int shard);
std::string unit_part_path(const std::string& folder, int shard);
/// Local. Throws StorageError.
void write_unit_part(const UnitResult& result, const std::string& folder, int shard);

/// The files of recordings that entries name.
struct RecordingFiles {
  std::uint64_t state = 0;  ///< hash of their sizes and times; 0 if one of them is missing
  std::string newest;       ///< the one that was changed last
};
/// Local. Asks the file system for each file once.
RecordingFiles recording_files(const std::vector<AudioEntry>& entries);

}  // namespace choir
