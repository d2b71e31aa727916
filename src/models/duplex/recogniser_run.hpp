#pragma once
// Checks of the runs of other families that transcribe users and agents of a duplex model. Local;
// `key` is the name of the run in messages.
#include <string>

#include "choir/data/vocabulary/vocabulary.hpp"
#include "choir/train/step/whole_model.hpp"

namespace choir {

/// DeckError unless `right`; `wanted` is the required family.
void require_family(const WholeModel& run, bool right, const std::string& key, const char* wanted);
/// The text units of a recogniser of audio with this rate. DeckError for another family or rate,
/// DataError if it has no units.
Vocabulary units_of_recogniser(const WholeModel& run, const std::string& key, int sample_rate);

}  // namespace choir
