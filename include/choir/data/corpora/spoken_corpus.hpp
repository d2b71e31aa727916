#pragma once
// Speech by espeak-ng, and corpora of speech as folders: sound files, NeMo manifests for
// `choir prepare audio`, and corpus.json, written last, which says what it is. For one request the
// bytes are the same on any number of ranks.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/log.hpp"

namespace choir {

inline constexpr int kSpokenRate = 16000;  ///< samples a second

struct SpokenLine {
  std::string text;
  std::string voice;  ///< of espeak-ng, "en-us+f2"
  int words_per_minute = 160;
  int pitch = 50;        ///< 0 to 99
  double snr_db = 25;    ///< power of the speech over that of the white noise
  std::uint64_t id = 0;  ///< which noise
  /// The line of an agent has no pause at the end, one gain for all lines (0: the largest sample of
  /// each becomes half of full scale), and a length in whole frames of so many samples.
  bool final_pause = true;
  double gain = 0;
  std::int64_t frame = kSpokenRate / 1000;
};

/// Local: "eSpeak NG text-to-speech: 1.51  Data at: ...". Throws DataError when it is not there
/// (names the package).
std::string espeak_version();

/// Local; may be called by several threads. espeak-ng's 22,050 Hz resampled to 16 kHz, its largest
/// sample brought to half of full scale, Gaussian noise by Philox(seed, "spoken noise", id) added
/// (none with an infinite snr_db). The length is a whole number of milliseconds. The same bits
/// whenever and wherever it is called with the same espeak-ng. Throws DataError.
std::vector<std::int16_t> speak(const SpokenLine& line, std::uint64_t seed);

/// train.json; val.json: texts that are not in training; val_voices.json: these by voices that are
/// not in training either; val_barge_in.json: dialogues in which the user breaks into what the
/// agent says.
enum class CorpusSplit { train, val, val_voices, val_barge_in };
inline constexpr int kCorpusSplits = 4;
/// "train", "val", "val_voices", "val_barge_in".
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
