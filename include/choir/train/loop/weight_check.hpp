#pragma once
// Weights that several ranks hold must be the same bits on all of them. Where they are not, the
// memory (or the arithmetic) of a rank lies, and averaging gradients hides it for a while.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/layout.hpp"
#include "choir/store/background_saver.hpp"
#include "choir/train/step/engine.hpp"

namespace choir {

/// Checksums of what one rank holds.
struct WeightDigest {
  std::uint64_t all = 0;     ///< every parameter: equal on all replicas (data and context axes)
  std::uint64_t shared = 0;  ///< parameters that are whole on every rank of the tensor axis
};

/// A group whose ranks do not agree.
struct WeightDispute {
  std::vector<int> ranks;  ///< of the world, all of the group
  std::vector<int> wrong;  ///< those that differ from the majority; all of them when there is none
};
/// By the digests of all ranks of the world; a group is named once.
std::vector<WeightDispute> disputes(const Layout& layout, const std::vector<WeightDigest>& digests);

/// Collective over the world, between steps or before an update. NumericError (exit code 4) on
/// every rank when weights that should be equal are not; it names the ranks that differ from the
/// majority of their group, their hosts and the first parameter. Parameters that ZeRO 3 shards are
/// compared between groups that hold all of them. An all_gather of 16 bytes and a pass over the
/// weights.
void check_weights(Engine& engine, std::int64_t step);

/// The same for a save by a thread: it refuses what check_weights() would not let pass. Local;
/// holds nothing of the engine but its weights. Only where reads_weights_aside(); nothing to ask on
/// one rank.
SaveCheck weight_check_of_save(Engine& engine);
/// Weights are memory that any thread may read and that nothing but the update touches.
bool reads_weights_aside(Engine& engine);

}  // namespace choir
