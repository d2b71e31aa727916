#pragma once
// train.time_products: the ways that a library proposes for the matrix products of a step are timed
// once on rank 0, which chooses for all ranks, so that equal products compute equal bits on them.
// What was found is kept in a file beside the run and taken from there when it goes on. Another
// run may choose otherwise.
#include <set>
#include <string>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/ops/product.hpp"

namespace choir {

/// On rank 0; empty on the others.
struct ProductTiming {
  /// What was timed where, and for every product the way it takes, a line each; in words why
  /// nothing was timed.
  std::string report;
  std::string warning;  ///< why the file was of no use; or nothing
};

/// Collective over the mesh, before its devices did any product. `asked`: the planned products of
/// this rank (StepPlan::products). `file`: "" for none; written by temporary file and rename.
/// StorageError.
ProductTiming time_products(Mesh& mesh, Device& device, const std::set<ops::Product>& asked,
                            const std::string& file);

}  // namespace choir
