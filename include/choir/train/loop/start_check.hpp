#pragma once
// Checks a start without starting: `choir train --check`, which jobs run before they start the
// ranks.
#include <string>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"

namespace choir {

/// Checks the deck on one rank, whatever its layout: `mesh` has one rank, with MPI initialised.
/// Opens the data (text is prepared as at a start) with its vocabulary, and the checkpoint to start
/// from; checks that run.dir is writable. Logs the results. Throws the same errors as training.
void check_start(Deck deck, Mesh& mesh, Logger& log);

}  // namespace choir
