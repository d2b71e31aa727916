#include "choir/train/step/step_traffic.hpp"

#include <algorithm>

namespace choir {

std::vector<StepCommunicator> step_communicators(Mesh& mesh, const Sharding& sharding) {
  std::vector<StepCommunicator> list;
  for (int a = 0; a < kAxes; ++a)
    list.push_back({static_cast<Axis>(a), &mesh.along(static_cast<Axis>(a))});
  for (Communicator* more :
       {&sharding.data(), &sharding.group(), &sharding.gathers(), sharding.replicas()}) {
    const bool known = std::any_of(list.begin(), list.end(), [&](const StepCommunicator& other) {
      return other.communicator == more;
    });
    if (more != nullptr && !known) list.push_back({Axis::data, more});
  }
  return list;
}

void reset_traffic(Mesh& mesh, const Sharding& sharding) {
  for (const StepCommunicator& c : step_communicators(mesh, sharding))
    c.communicator->reset_traffic();
}

StepTraffic traffic_of(Mesh& mesh, const Sharding& sharding) {
  StepTraffic sum;
  for (const StepCommunicator& c : step_communicators(mesh, sharding)) {
    const CommTraffic& traffic = c.communicator->traffic();
    CommTraffic& axis = sum[static_cast<std::size_t>(c.axis)];
    axis.calls += traffic.calls;
    axis.bytes += traffic.bytes;
    axis.seconds += traffic.seconds;
  }
  return sum;
}

}  // namespace choir
