#pragma once
// A model of two layers that learns within 20 steps, for `choir doctor`.
#include <cstdint>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"

namespace choir {

struct TinyTraining {
  std::vector<double> losses;          ///< of the steps
  std::vector<std::uint64_t> digests;  ///< of the parameters of each rank; equal if all ranks agree
  double seconds = 0;
};
/// Collective over the mesh, on the CPU. The result is the same on all ranks except for `seconds`.
TinyTraining train_tiny_gpt(Mesh& mesh);

}  // namespace choir
