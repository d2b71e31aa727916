#pragma once
// Recordings of packed speech to codes beside them (choir/data/codes/code_file.hpp).
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/log.hpp"
#include "choir/data/codes/code_file.hpp"

namespace choir {

/// Local. [T, K] codes of one recording at the codec's sample rate, T = frames_of(its samples).
using CodeMaker = std::function<std::vector<std::uint16_t>(std::span<const std::int16_t>)>;

struct PrepareCodesSummary {
  std::string path;
  std::int64_t recordings = 0, frames = 0;
  std::int64_t used = 0;  ///< different codes over all books, of codebooks codes_per_book
  double entropy = 0;     ///< bits a code, mean of the books
  CodecDescription codec;
  bool there_before = false;  ///< written by an earlier run of the same codec
  double seconds = 0;         ///< of this run
  double audio_seconds = 0;
  /// A few lines for people.
  std::string to_string() const;
};

/// Collective over `world`, whose ranks take shares of the recordings that are equally long; the
/// bytes written do not depend on how many there are. The file appears under its name when all of
/// it is written; codes of another codec under the name are replaced, those of this one stay.
/// Throws DataError: no packed speech, of another sample rate than the codec's, damaged audio;
/// DeckError: the name; StorageError.
PrepareCodesSummary prepare_codes(Communicator& world, Logger& log, const std::string& folder,
                                  const std::string& name, const CodecDescription& codec,
                                  const CodeMaker& make);

}  // namespace choir
