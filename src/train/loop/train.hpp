#pragma once
// A training run from its deck to its exit code, and the check of a start without starting: `choir
// train --check`.

#include <optional>
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

/// The ranks for which a start is checked.
struct CheckedRanks {
  int all = 0;             ///< 0: unknown; the deck then decides as far as it can
  int on_node = 1;         ///< those on a machine like this one
  bool elsewhere = false;  ///< none runs on this machine, whose memory then says nothing

  /// A card on which they run, which need not be in this machine.
  struct Card {
    std::string name;
    double memory = 0;  ///< bytes that a plan may use
    int multiprocessors = 0, compute_major = 0;
  };
  std::optional<Card> card{};
  bool assumed_node = false;  ///< `on_node` is what is usual for the card
};

/// Checks what a start checks, so that a deck which passes it trains on a machine like this one. On
/// one rank, whatever the layout: `alone` has one rank, over MPI, because text, manifests and
/// tokenizers are prepared as at a start. Checks that run.dir is writable; opens the data with its
/// vocabulary; builds the model and its plan without memory, and compares the plan with the memory
/// of this machine, or of `ranks.card`, where the deck or `ranks` determine it; compares deck, data
/// and every shape with the checkpoint that the run would continue or begin with. It reads no
/// tensors: their checksums, and whether weights are finite, are verified at the start. Logs the
/// results. Throws the same errors as training. Collective over `alone`.
std::string check_start(Deck deck, const CheckedRanks& ranks, Mesh& alone, Logger& log);

}  // namespace choir
