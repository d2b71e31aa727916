#pragma once
// train.time_products: times the algorithms that a library proposes for the matrix products of a
// step, once on rank 0, which chooses for all ranks so that equal products have equal bits. The
// result is kept in a file of the run, which a resumed run reads. Another run may choose
// differently.
#include <set>
#include <string>

#include "choir/comm/mesh/mesh.hpp"
#include "kernels/gemm/gemm.hpp"

namespace choir {

/// Result on rank 0; empty on the others.
struct ProductTiming {
  /// The device and the library, and one line per product with its algorithm; or the reason why
  /// nothing was timed.
  std::string report;
  std::string warning;  ///< why the file could not be used, or ""
};

/// Times and chooses products. Collective over the mesh, before its devices computed any product.
/// `asked`: the planned products of this rank (StepPlan::products). `file`: "" for none; written
/// with a temporary file and a rename. Throws StorageError.
ProductTiming time_products(Mesh& mesh, Device& device, const std::set<ops::Product>& asked,
                            const std::string& file);

}  // namespace choir
