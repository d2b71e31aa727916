#pragma once
// Reductions (sum, max, min) of equal blocks of several ranks in one fixed binary tree over ranks.
#include <cstddef>

#include "choir/comm/communicator.hpp"
#include "choir/core/dtype.hpp"

namespace choir {

/// out[d][i] = tree over p of in[p][i], for i < count and each of `outs` outputs. The tree is
/// ((0+1)+(2+3))+...; an odd last term is carried up: over n ranks the left child has the largest
/// power of two below n. bf16 and f16 are summed in float and rounded once. Outputs may be the
/// inputs (same index), but must not overlap them otherwise. Large counts use the OpenMP threads of
/// the caller. Never allocates. Floor: (ranks + outs) * bytes of memory traffic if the outputs are
/// the inputs; streaming stores are slower then, because the lines were just read.
void tree_reduce(const void* const* in, int ranks, void* const* out, int outs, std::size_t count,
                 DType dtype, ReduceOp op);

/// Sums 16-bit inputs as f32, for a tree that continues elsewhere before it is rounded; or ends
/// such a tree, f32 -> 16 bits.
void tree_sum(const void* const* in, int ranks, void* out, std::size_t count, DType from, DType to);

/// memcpy with stores that bypass the cache if `streaming` (visible to others after this returns
/// and the caller publishes with a release); threaded like tree_reduce.
void bulk_copy(void* to, const void* from, std::size_t bytes, bool streaming);

}  // namespace choir
