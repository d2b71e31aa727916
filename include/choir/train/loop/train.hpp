#pragma once
// A training run from its deck to its exit code: connects data, model, optimizer, communication and
// checkpoints.
#include "choir/core/error.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "choir/train/step/workplace.hpp"

namespace choir {

/// Opens the data, plans memory, reports, builds the model, resumes, and trains to the end or until
/// the ranks agree to stop. `started` is now_seconds() at the start of the program. Errors are
/// agreed on by all ranks. Collective.
ExitCode train(Deck deck, const Workplace& place, Logger& log, double started);

}  // namespace choir
