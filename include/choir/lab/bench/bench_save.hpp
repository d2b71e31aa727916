#pragma once
// What saves cost a deck on its ranks: the state of its real engine, saved and read back.
#include "choir/comm/mesh/mesh.hpp"
#include "choir/core/log.hpp"
#include "choir/deck/deck.hpp"
#include "choir/store/bench_checkpoint.hpp"

namespace choir {

struct SaveBenchOptions {
  std::string folder = ".";
  int rounds = 5;
  std::int64_t transfer_bytes = 1 << 20;
  double step_seconds = 0;  ///< of a training step; 0: to be measured
};

struct SaveBench {
  CheckpointBench access;
  double step_seconds = 0;  ///< 0: not known
};

/// Collective over the mesh. Throws DeckError, DataError, StorageError.
SaveBench bench_save(Deck deck, Mesh& mesh, Device& device, Logger& log,
                     const SaveBenchOptions& options);

/// The same with `bytes` of state in all, that every rank has an equal share of.
SaveBench bench_save(std::int64_t bytes, Mesh& mesh, Device& device,
                     const SaveBenchOptions& options);

}  // namespace choir
