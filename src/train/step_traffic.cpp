#include "choir/train/step_traffic.hpp"

namespace choir {

void reset_traffic(Mesh& mesh) {
  for (int a = 0; a < kAxes; ++a) mesh.along(static_cast<Axis>(a)).reset_traffic();
}

StepTraffic traffic_of(Mesh& mesh) {
  StepTraffic traffic;
  for (std::size_t a = 0; a < kAxes; ++a) traffic[a] = mesh.along(static_cast<Axis>(a)).traffic();
  return traffic;
}

}  // namespace choir
