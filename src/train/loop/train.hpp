#pragma once
// A training run from its deck to its exit code, and the check of a start without starting: `choir
// train --check`.

#include <string>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/error.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "src/run/run_setup.hpp"

namespace choir {

/// Opens the data, plans memory, reports, builds the model, resumes, and trains to the end or until
/// the ranks agree to stop. `started` is now_seconds() at the start of the program. Errors are
/// agreed on by all ranks. Collective.
ExitCode train(Deck deck, const Workplace& place, Logger& log, double started);

/// Checks the deck on one rank, whatever its layout: `mesh` has one rank, with MPI initialised.
/// Opens the data (text is prepared as at a start) with its vocabulary, and the checkpoint to start
/// from; checks that run.dir is writable. Logs the results. Throws the same errors as training.
void check_start(Deck deck, Mesh& mesh, Logger& log);

}  // namespace choir
