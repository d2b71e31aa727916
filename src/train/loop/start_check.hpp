#pragma once
// The check of a start without starting: `choir train --check`. It opens, plans and compares what a
// start would, so that a deck which passes it trains on a machine like this one.

#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"

namespace choir {

/// The ranks that the check was started with, as far as they say how the run will be started.
struct CheckedRanks {
  int all = 0;      ///< 0: unknown; the deck then decides as far as it can
  int on_node = 1;  ///< those on this machine
};

/// Checks the deck on one rank, whatever its layout: `alone` has one rank, over MPI, because text,
/// manifests and tokenizers are prepared as at a start. Checks that run.dir is writable; opens the
/// data with its vocabulary; builds the model and its plan without memory, and compares the plan
/// with the memory of this machine where the deck or `ranks` determine it; compares deck, data and
/// every shape with the checkpoint that the run would continue or begin with. It reads no tensors:
/// their checksums, and whether weights are finite, are verified at the start. Logs the results.
/// Throws the same errors as training. Collective over `alone`.
void check_start(Deck deck, const CheckedRanks& ranks, Mesh& alone, Logger& log);

}  // namespace choir
