#pragma once
// A training run from its deck to its exit code: where data, model, optimizer, communication and
// checkpoints meet.
#include "choir/core/error.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "choir/train/step/workplace.hpp"

namespace choir {

/// Collective. Opens the data, plans memory, reports, builds the model, resumes, and trains to the
/// end or to an agreed stop. `started`: now_seconds() when the program began. Throws what is wrong,
/// agreed by all ranks.
ExitCode train(Deck deck, const Workplace& place, Logger& log, double started);

}  // namespace choir
