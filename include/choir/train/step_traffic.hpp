#pragma once
// What one rank sends along each axis of the mesh in a step: calls and payload, as CommTraffic
// counts them. Planned by null communicators, measured by real ones, in the same convention.
#include <array>

#include "choir/comm/mesh.hpp"

namespace choir {

/// [axis], of Axis.
using StepTraffic = std::array<CommTraffic, kAxes>;

/// Local: forgets what the communicators of the axes have counted so far.
void reset_traffic(Mesh& mesh);
/// Local: what they have counted since.
StepTraffic traffic_of(Mesh& mesh);

}  // namespace choir
