#pragma once
// The texts of corpora, which a vocabulary is made of, and these texts as ids: labels.NAME.bin in a
// folder of packed audio, and tokenizer.NAME.json beside it, so that the folder alone says what its
// ids mean.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "choir/data/audio/audio_error.hpp"
#include "choir/data/vocabulary/vocabulary.hpp"

namespace choir {

struct LabelSummary {
  std::int64_t utterances = 0, without_text = 0, bad = 0;
  std::int64_t ids = 0, letters = 0;    ///< of the utterances that are not bad
  std::vector<std::string> first_bad;   ///< at most five: line, text and what is unknown
  std::string labels_path, units_path;  ///< what was written
  /// A few lines for people.
  std::string to_string() const;
};

/// Local; uses the threads of OpenMP. Throws DataError: no packed audio in `folder`, a manifest
/// that does not fit it, bad texts (counted, the first five named; nothing is written then).
/// DeckError for a name of labels that is none.
LabelSummary write_labels(const std::string& folder, const Vocabulary& vocabulary,
                          const std::string& name, OnBad on_bad);

/// Where the units of labels NAME lie in a folder.
std::string units_path(const std::string& folder, const std::string& name);

/// Local. Texts in order: of a folder of packed audio the "text" of every line of its
/// manifest.jsonl; of a file whose lines are JSON objects (a NeMo manifest) the same; of any other
/// file its lines. Blanks at both ends are cut off, texts without anything else left out. Throws
/// DataError: missing, empty of texts, a line that is not JSON (file:line).
std::vector<std::string> read_corpus_texts(const std::vector<std::string>& paths);

/// Local. Calls use(line number from 0, text) for every line of a manifest, in order; "" where it
/// has no text. Throws DataError with file:line.
void read_manifest_texts(const std::string& path,
                         const std::function<void(std::int64_t, std::string&&)>& use);

}  // namespace choir
