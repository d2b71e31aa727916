#pragma once
// Calls and bytes that one rank sends along each axis of the mesh in a step, counted as in
// CommTraffic. Null communicators plan them and real ones measure them, with the same convention.
#include <array>
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/parallel/sharding/sharding.hpp"

namespace choir {

/// Indexed by Axis.
using StepTraffic = std::array<CommTraffic, kAxes>;

struct StepCommunicator {
  Axis axis;  ///< the axis whose traffic it carries
  Communicator* communicator;
};
/// All communicators that a step may use, each once: those of the axes, and on the data axis also
/// that of all replicas and the groups of hybrid sharding. Local.
std::vector<StepCommunicator> step_communicators(Mesh& mesh, const Sharding& sharding);

/// Resets the counts of these communicators. Local.
void reset_traffic(Mesh& mesh, const Sharding& sharding);
/// Their counts since the reset. Local.
StepTraffic traffic_of(Mesh& mesh, const Sharding& sharding);

}  // namespace choir
