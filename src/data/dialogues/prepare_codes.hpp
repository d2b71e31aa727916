#pragma once
// Encodes the recordings of packed speech as codes beside them (src/data/dialogues/code_file.hpp).

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/log.hpp"
#include "src/data/dialogues/code_file.hpp"

namespace choir {

/// Local. [T, K] codes of one recording at the codec's sample rate, T = frames_of(its samples).
using CodeMaker = std::function<std::vector<std::uint16_t>(std::span<const std::int16_t>)>;

struct PrepareCodesSummary {
  std::string path;
  std::int64_t recordings = 0, frames = 0;
  std::int64_t used = 0;  ///< distinct codes over all books, at most codebooks * codes_per_book
  double entropy = 0;     ///< bits per code, mean of the books
  CodecDescription codec;
  bool there_before = false;  ///< written by an earlier run of the same codec
  double seconds = 0;         ///< of this run
  double audio_seconds = 0;
  /// A few lines for people.
  std::string to_string() const;
};

/// Collective over `world`. The ranks encode shares of the recordings of equal duration; the bytes
/// written do not depend on the number of ranks. The file gets its final name when it is complete.
/// Codes of another codec under this name are replaced, those of this codec are kept. Throws
/// DataError (no packed speech, a sample rate other than the codec's, damaged audio), DeckError
/// (the name) and StorageError.
PrepareCodesSummary prepare_codes(Communicator& world, Logger& log, const std::string& folder,
                                  const std::string& name, const CodecDescription& codec,
                                  const CodeMaker& make);

}  // namespace choir
