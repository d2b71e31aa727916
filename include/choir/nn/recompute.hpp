#pragma once
// What backward computes again instead of keeping it. No number depends on the choice: the same
// kernels run on the same inputs, and random numbers are functions of global coordinates.
#include <cstdint>

namespace choir {

/// Kept of a block, one value a letter: C width, F of the feed-forward layer (Korthikanti et al.
/// 2022 for the idea; scores of attention are never kept).
enum class Recompute : std::uint8_t {
  none,       ///< all that backward reads
  selective,  ///< the stream at both norms and the results of products; not what norms and
              ///< activations make of them
  full,       ///< the stream at its entrance, [N, C]
};

}  // namespace choir
