#pragma once
// Preparation of speech corpora for training: the texts of corpora as ids (labels.NAME.bin in a
// folder of packed audio, with tokenizer.NAME.json beside it, so that the folder alone defines its
// ids), and manifests that a deck names in place of folders, which are packed and labelled on their
// first use.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/core/log.hpp"
#include "src/data/audio/audio_error.hpp"
#include "src/data/audio/packed_audio.hpp"
#include "src/data/speech/label_file.hpp"
#include "src/data/vocabulary/vocabulary.hpp"

namespace choir {

/// The share of bad texts that OnBad::skip allows by default.
inline constexpr double kBadCap = 0.01;

struct LabelSummary {
  std::int64_t utterances = 0, without_text = 0, bad = 0;
  std::int64_t ids = 0, letters = 0;    ///< without bad utterances
  std::vector<std::string> first_bad;   ///< at most five: line, text and unknown character
  std::string labels_path, units_path;  ///< the files written
  /// A few lines for people.
  std::string to_string() const;
};

/// Local; uses the threads of OpenMP. Throws DataError if `folder` has no packed audio, if the
/// manifest does not match it, or for bad texts (they are counted, the first five are named, and
/// nothing is written), and DeckError for an invalid name of labels. `skip` is the setting of the
/// command that runs by which bad texts are skipped, for hints.
LabelSummary write_labels(const std::string& folder, const Vocabulary& vocabulary,
                          const std::string& name, OnBad on_bad, double bad_cap = kBadCap,
                          const char* skip = "--on-bad skip");

/// The labels of the texts of a folder, in memory, for a run with a deck. Local; throws like
/// write_labels(), and writes nothing.
LabelFile labels_in_memory(const AudioCatalog& catalog, const Vocabulary& vocabulary, OnBad on_bad,
                           double bad_cap = kBadCap);

/// The path of the units of labels NAME in a folder.
std::string units_path(const std::string& folder, const std::string& name);

/// Local. Texts in order: for a folder of packed audio the "text" of every line of its
/// manifest.jsonl; the same for a file whose lines are JSON objects (a NeMo manifest); for any
/// other file its lines. Blanks at both ends are removed, and empty texts are skipped. Throws
/// DataError if a file is missing, has no texts, or has a line that is not JSON (file:line).
std::vector<std::string> read_corpus_texts(const std::vector<std::string>& paths);

/// Local. Calls use(line number from 0, text) for every line of a manifest, in order, with "" for a
/// line without text. Throws DataError with file:line.
void read_manifest_texts(const std::string& path,
                         const std::function<void(std::int64_t, std::string&&)>& use);

struct FirstUse {
  /// Name of the labels; "": no labels. If no folder that was packed by hand has units of that
  /// name, they are trained on the training texts as the name specifies: "char", "bpe_256",
  /// "unigram_128".
  std::string labels = "char";
  /// The units of a checkpoint as JSON; "": those of the training data.
  std::string units;
  int sample_rate = 16000;
  std::string channel{};  ///< see channel_choice_of()
  OnBad on_bad = OnBad::stop;
  double bad_cap = kBadCap;  ///< largest share of bad utterances, and of bad texts
  std::string cache_dir = "data/.prepared";
};

/// Collective over `world`. Replaces each path of a file by the path of the folder in `cache_dir`
/// that was packed from it, now or before (identified by its path and contents, the sample rate,
/// and the sizes and times of the recordings, unless some of them are gone); ranks share the
/// decoding. Paths of folders stay. The first `units_from` paths are the training data. The labels
/// of a packed manifest are named by their units (see own_labels_name()), because several runs with
/// different units may share it. With the units of a checkpoint no labels are written:
/// labels_in_memory() makes those that are missing. Returns the units as JSON, "" if neither a path
/// was a file nor units were given. Throws DataError and StorageError like `choir prepare`, and
/// DeckError if there are no units and the name of the labels specifies none.
std::string pack_on_first_use(Communicator& world, Logger& log,
                              const std::vector<std::string*>& paths, std::size_t units_from,
                              const FirstUse& options);

}  // namespace choir
