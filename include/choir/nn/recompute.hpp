#pragma once
// The choice of tensors that backward recomputes instead of keeping them.
#include <cstdint>

namespace choir {

/// Tensors of a block that are kept for backward; it recomputes the others (Korthikanti et al. 2022
/// for the idea). Scores of attention are never kept. No number depends on the choice: the same
/// kernels run on the same inputs, and random numbers are functions of global coordinates.
enum class Recompute : std::uint8_t {
  none,       ///< everything that backward reads
  selective,  ///< the stream at both norms and the results of products, but not the outputs of
              ///< norms and activations
  full,       ///< the incoming stream, [N, C]
};

}  // namespace choir
