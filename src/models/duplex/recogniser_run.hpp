#pragma once
// Runs of other families that a duplex model is heard and understood by: what makes each the right
// one. Local; `key` is what messages call the run.
#include <string>

#include "choir/data/vocabulary/vocabulary.hpp"
#include "choir/train/step/whole_model.hpp"

namespace choir {

/// DeckError unless `right`; `wanted` is the family.
void require_family(const WholeModel& run, bool right, const std::string& key, const char* wanted);
/// The units of text of a recogniser of audio of this rate. DeckError for another family or rate,
/// DataError where it has none.
Vocabulary units_of_recogniser(const WholeModel& run, const std::string& key, int sample_rate);

}  // namespace choir
