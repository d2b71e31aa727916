#pragma once
// The texts of a folder of packed audio written in units: labels.NAME.bin, and tokenizer.NAME.json
// beside it, so that the folder alone says what its ids mean.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/data/on_bad.hpp"
#include "choir/data/text/text_units.hpp"

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
LabelSummary write_labels(const std::string& folder, const TextUnits& units,
                          const std::string& name, OnBad on_bad);

/// Where the units of labels NAME lie in a folder.
std::string units_path(const std::string& folder, const std::string& name);

}  // namespace choir
