#pragma once
// A training run from its deck to its exit code.

#include <string>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/error.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "src/run/run_setup.hpp"

namespace choir {

/// Opens the data, plans memory, reports, builds the model, resumes, and trains to the end or until
/// the ranks agree to stop. `started` is now_seconds() at the start of the program. Errors are
/// agreed on by all ranks, and are written to the record of the run (StartRecord). Collective.
ExitCode train(Deck deck, const Workplace& place, Logger& log, double started);

}  // namespace choir
