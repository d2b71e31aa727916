#pragma once
// Sums (max, min) of equal blocks of several ranks in one fixed binary tree over ranks.
#include <cstddef>

#include "choir/comm/communicator.hpp"
#include "choir/core/dtype.hpp"

namespace choir {

/// out[d][i] = tree over p of in[p][i], for i < count and each of `outs` outputs. The tree is
/// ((0+1)+(2+3))+..., an odd one out is carried up: over n ranks the left child has the largest
/// power of two below n. bf16 and f16 are summed in float and rounded once. Outputs may be the
/// inputs (same index), not shifted ones. Uses the OpenMP threads of the caller for big counts.
/// Never allocates. Floor: (ranks + outs) * bytes of memory traffic when the outputs are inputs;
/// stores past the cache are slower then, for the lines were just read.
void tree_reduce(const void* const* in, int ranks, void* const* out, int outs, std::size_t count,
                 DType dtype, ReduceOp op);

/// The sum of inputs of 16 bits as f32, for a tree that goes on elsewhere before it is rounded, and
/// the end of such a tree, f32 -> 16 bits.
void tree_sum(const void* const* in, int ranks, void* out, std::size_t count, DType from, DType to);

/// memcpy, with stores that bypass the cache when `streaming` (visible to others after this returns
/// and the caller publishes with a release); threaded like tree_reduce.
void bulk_copy(void* to, const void* from, std::size_t bytes, bool streaming);

}  // namespace choir
