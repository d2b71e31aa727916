#pragma once
// What one rank sends along each axis of the mesh in a step: calls and payload, as CommTraffic
// counts them. Planned by null communicators, measured by real ones, in the same convention.
#include <array>
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/parallel/sharding/sharding.hpp"

namespace choir {

/// [axis], of Axis.
using StepTraffic = std::array<CommTraffic, kAxes>;

struct StepCommunicator {
  Axis axis;  ///< whose traffic it carries
  Communicator* communicator;
};
/// Local: every communicator that a step may use, each once: those of the axes, and on the data
/// axis also that of all replicas and the groups of hybrid sharding.
std::vector<StepCommunicator> step_communicators(Mesh& mesh, const Sharding& sharding);

/// Local: forgets what those have counted so far.
void reset_traffic(Mesh& mesh, const Sharding& sharding);
/// Local: what they have counted since.
StepTraffic traffic_of(Mesh& mesh, const Sharding& sharding);

}  // namespace choir
