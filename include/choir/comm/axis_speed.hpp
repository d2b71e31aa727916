#pragma once
// How fast the ranks of each axis add up, measured just now: for the start of a run.
#include <string>
#include <vector>

#include "choir/comm/mesh.hpp"

namespace choir {

struct AxisSpeed {
  Axis axis = Axis::data;
  int ranks = 1;
  std::string transport;
  std::size_t bytes = 0;
  double bus_gb_per_s = 0;  ///< as nccl-tests: 2(n-1)/n * bytes / s; 1e9
};

/// Collective over the world: the axes with more than one rank, each timed by the slowest rank of
/// this rank's group, the best of a few all-reduces of `bytes` in memory of `device`.
std::vector<AxisSpeed> measure_axes(Mesh& mesh, Device& device, std::size_t bytes);

}  // namespace choir
