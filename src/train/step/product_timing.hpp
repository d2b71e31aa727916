#pragma once
// train.time_products: times the algorithms that a library proposes for the matrix products of a
// step, once on rank 0, which chooses for all ranks so that equal products have equal bits. The
// result is stored in every checkpoint and in a file of the run, so that a resumed run computes the
// same bits. Another run may choose differently.
#include <set>
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "kernels/gemm/gemm.hpp"

namespace choir {

/// A table of times and choices that an earlier process of the run wrote (ProductTiming::table).
struct StoredProducts {
  std::string source;  ///< a checkpoint or a file, for messages
  std::string table;   ///< "" if the source has none
};

/// Result on rank 0; empty on the others.
struct ProductTiming {
  /// The device and the library, and one line per product with its algorithm; or the reason why
  /// nothing was timed.
  std::string report;
  std::string warning;  ///< why no stored table could be used, or ""
  std::string table;    ///< times and choices as JSON; "" if there are none
};

/// Chooses products: by the first table of `stored` (used on rank 0) that was measured on this card
/// and contains every product, otherwise by timing. Collective over the mesh, before its devices
/// computed any product. `asked`: the planned products of this rank (StepPlan::products).
ProductTiming time_products(Mesh& mesh, Device& device, const std::set<ops::Product>& asked,
                            const std::vector<StoredProducts>& stored);

}  // namespace choir
