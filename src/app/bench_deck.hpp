#pragma once
// The deck that a bench measures, on the mesh and the device that it asks for.
#include <functional>
#include <string>

#include "choir/app/bench.hpp"
#include "choir/comm/mpi_session.hpp"
#include "choir/train/deck/deck.hpp"
#include "choir/train/engine/workplace.hpp"

namespace choir {

struct BenchDeck {
  std::string text;  ///< as it was read
  Deck deck;
  Workplace place;
};

/// Collective over the world. `also`: what every rank checks beside, before anything is opened; may
/// throw. Throws DeckError, StorageError, CommError, the same on every rank.
BenchDeck open_bench_deck(MpiSession& session, const BenchWords& words,
                          const std::function<void()>& also);

}  // namespace choir
