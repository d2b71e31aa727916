#pragma once
// Checks that weights which several ranks hold have the same bits on all of them. If they differ,
// the memory (or the arithmetic) of a rank is faulty; averaging gradients hides that for a while.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/layout.hpp"
#include "src/store/background_saver.hpp"
#include "src/train/step/engine.hpp"

namespace choir {

/// Checksums of the weights of one rank.
struct WeightDigest {
  std::uint64_t all = 0;     ///< of every parameter: equal on all replicas (data and context axes)
  std::uint64_t shared = 0;  ///< of parameters that are whole on every rank of the tensor axis
};

/// A group whose ranks disagree.
struct WeightDispute {
  std::vector<int> ranks;  ///< all ranks of the group, numbered in the world
  std::vector<int> wrong;  ///< the ranks that differ from the majority; all if there is none
};
/// Finds the disputes in the digests of all ranks of the world; each group is listed once.
std::vector<WeightDispute> disputes(const Layout& layout, const std::vector<WeightDigest>& digests);

/// Compares weights, between steps or before an update. If weights that should be equal differ,
/// throws NumericError (exit code 4) on every rank; it names the ranks that differ from the
/// majority of their group, their hosts and the first parameter. Parameters that ZeRO 3 shards are
/// compared between groups that hold all of them. Costs an all_gather of 16 bytes and a pass over
/// the weights. Collective over the world.
void check_weights(Engine& engine, std::int64_t step);

/// The same check for a save by a thread: it refuses a save that check_weights() would refuse. It
/// refers only to the weights of the engine. Requires reads_weights_aside(); on one rank there is
/// nothing to compare. Local.
SaveCheck weight_check_of_save(Engine& engine);
/// True if weights are in memory that any thread may read and that only the update changes.
bool reads_weights_aside(Engine& engine);

}  // namespace choir
