#pragma once
// Speech by espeak-ng, and corpora of speech as folders: sound files, NeMo manifests for `choir
// prepare audio`, and corpus.json, which is written last and describes the corpus. One request
// gives the same bytes on any number of ranks.
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
  std::string voice;  ///< a voice of espeak-ng, "en-us+f2"
  int words_per_minute = 160;
  int pitch = 50;        ///< 0 to 99
  double snr_db = 25;    ///< power of the speech relative to the white noise
  std::uint64_t id = 0;  ///< selects the noise
  /// The line of an agent has no pause at its end, one gain for all lines (0: the largest sample of
  /// each line becomes half of full scale), and a length of whole frames of this many samples.
  bool final_pause = true;
  double gain = 0;
  std::int64_t frame = kSpokenRate / 1000;
};

/// Local: "eSpeak NG text-to-speech: 1.51  Data at: ...". Throws a DataError that names the package
/// if it is not installed.
std::string espeak_version();

/// Local; may be called by several threads. Resamples espeak-ng's 22,050 Hz to 16 kHz, scales the
/// largest sample to half of full scale, and adds Gaussian noise by Philox(seed, "spoken noise",
/// id) (none for an infinite snr_db). The length is a whole number of milliseconds. The bits are
/// the same on every machine with the same espeak-ng. Throws DataError.
std::vector<std::int16_t> speak(const SpokenLine& line, std::uint64_t seed);

/// train.json; val.json: texts that are not in training; val_voices.json: such texts by voices that
/// are not in training either; val_barge_in.json: dialogues in which the user interrupts the agent.
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

/// The contents of corpus.json, which the command prints.
struct CorpusReport {
  std::string request;  ///< the request, a line of JSON
  struct Part {
    std::int64_t utterances = 0;
    double seconds = 0;
    friend bool operator==(const Part&, const Part&) = default;
  };
  Part parts[kCorpusSplits];
  std::string note;  ///< a line about excluded items; often empty
  bool made = true;  ///< false: it existed already
  std::string to_string(const std::string& folder) const;
};

/// Local. Returns true with the report of a finished corpus in `folder` if it answers `request`;
/// else creates the folder (removing an older corpus from it) and returns false. Throws DataError
/// if the folder contains anything else, and StorageError.
bool find_corpus(const std::string& folder, const std::string& request, CorpusReport& report);
/// Local. Writes the manifests (of parts with entries) and corpus.json.
CorpusReport finish_corpus(const std::string& folder, const std::string& request,
                           const std::vector<CorpusEntry>& entries);

/// An endless list of sentences to speak.
struct SpokenPlan {
  struct Line {
    SpokenLine spoken;
    CorpusSplit split = CorpusSplit::train;
  };
  std::function<Line(std::int64_t)> line;  ///< may be called by several threads
  double hours = 0;                        ///< of all parts together; generation stops there
  std::uint64_t seed = 1;
  std::string request;
};

/// Collective; all ranks pass equal arguments. Speaks the plan into FOLDER/audio/part_00000.wav ...
/// of kLinesPerPart sentences each, on all ranks and their OpenMP threads. Throws on all ranks like
/// find_corpus() and speak(), and CommError if the ranks have different versions of espeak-ng.
CorpusReport speak_corpus(Communicator& world, const std::string& folder, const SpokenPlan& plan,
                          Logger& log);
inline constexpr std::int64_t kLinesPerPart = 128;

}  // namespace choir
