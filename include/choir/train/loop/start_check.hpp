#pragma once
// What a start would find, without starting: `choir train --check`, which jobs run before they
// start anything on their nodes.
#include <string>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"

namespace choir {

/// By one rank, whatever layout the deck has: `mesh` is of one rank, with MPI up. Opens the data (a
/// text is prepared as at a start) with their vocabulary, and the checkpoint to begin with; sees
/// whether run.dir can be written. Says what it found. Throws what training would.
void check_start(Deck deck, Mesh& mesh, Logger& log);

}  // namespace choir
