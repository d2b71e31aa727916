#pragma once
// The cost of saves of a deck on its ranks: the state of its real engine is saved and read back.
#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "choir/store/bench_checkpoint.hpp"

namespace choir {

struct SaveBenchOptions {
  std::string folder = ".";
  int rounds = 5;
  std::int64_t transfer_bytes = 1 << 20;
  double step_seconds = 0;  ///< duration of a training step; 0: it is measured
};

struct SaveBench {
  CheckpointBench access;
  double step_seconds = 0;  ///< 0: unknown
};

/// Measures the saves of the deck's engine. Collective over the mesh. Throws DeckError, DataError,
/// StorageError.
SaveBench bench_save(Deck deck, Mesh& mesh, Device& device, Logger& log,
                     const SaveBenchOptions& options);

/// Measures saves of a state of `bytes` in total, of which every rank has an equal share.
SaveBench bench_save(std::int64_t bytes, Mesh& mesh, Device& device,
                     const SaveBenchOptions& options);

}  // namespace choir
