#pragma once
// Corpora of speech as folders: sound files, NeMo manifests for `choir prepare audio`, and
// corpus.json, written last, which says what it is. For one request the bytes are the same on any
// number of ranks.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/log.hpp"
#include "choir/data/spoken/spoken_voice.hpp"

namespace choir {

/// train.json; val.json: texts that are not in training; val_voices.json: these by voices that are
/// not in training either.
enum class CorpusSplit { train, val, val_voices };
inline constexpr int kCorpusSplits = 3;
/// "train", "val", "val_voices".
std::string name_of(CorpusSplit split);

struct CorpusEntry {
  CorpusSplit split = CorpusSplit::train;
  std::string audio;  ///< path, absolute or relative to the folder
  std::int64_t offset_ms = 0;
  double duration = 0;  ///< seconds
  std::string text, speaker;
};

/// What corpus.json says, and the command prints.
struct CorpusReport {
  std::string request;  ///< a line of JSON: what was asked for
  struct Part {
    std::int64_t utterances = 0;
    double seconds = 0;
    friend bool operator==(const Part&, const Part&) = default;
  };
  Part parts[kCorpusSplits];
  std::string note;  ///< what was left out, a line; often nothing
  bool made = true;  ///< false: it was there already
  std::string to_string(const std::string& folder) const;
};

/// Local. The report of a finished corpus in `folder` that answers `request`; else it makes the
/// folder (and removes an older corpus from it) and returns false. Throws DataError when the folder
/// holds anything else, StorageError.
bool find_corpus(const std::string& folder, const std::string& request, CorpusReport& report);
/// Local. Manifests (of parts with entries) and corpus.json.
CorpusReport finish_corpus(const std::string& folder, const std::string& request,
                           const std::vector<CorpusEntry>& entries);

/// An endless list of sentences to speak.
struct SpokenPlan {
  struct Line {
    SpokenLine spoken;
    CorpusSplit split = CorpusSplit::train;
  };
  std::function<Line(std::int64_t)> line;  ///< may be called by several threads
  double hours = 0;                        ///< of all parts together; stops after that much
  std::uint64_t seed = 1;
  std::string request;
};

/// Collective; every rank passes the same. Speaks the plan into FOLDER/audio/part_00000.wav ... of
/// kLinesPerPart sentences each, on all ranks and their OpenMP threads. Throws as find_corpus() and
/// speak() do, on all ranks; CommError when the ranks have different versions of espeak-ng.
CorpusReport speak_corpus(Communicator& world, const std::string& folder, const SpokenPlan& plan,
                          Logger& log);
inline constexpr std::int64_t kLinesPerPart = 128;

}  // namespace choir
