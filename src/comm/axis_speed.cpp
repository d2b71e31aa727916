#include "choir/comm/axis_speed.hpp"

#include <algorithm>

#include "choir/core/clock.hpp"

namespace choir {

std::vector<AxisSpeed> measure_axes(Mesh& mesh, Device& device, std::size_t bytes) {
  constexpr int kRounds = 4;  // the first warms up
  std::vector<AxisSpeed> speeds;
  for (int a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    Communicator& comm = mesh.along(axis);
    if (comm.size() == 1) continue;
    const auto memory = comm.allocate(bytes);
    double best = 0;
    for (int round = 0; round < kRounds; ++round) {
      mesh.world().barrier();
      const double from = now_seconds();
      comm.all_reduce(memory->data(), bytes / sizeof(float), DType::f32, ReduceOp::sum);
      Stream(device).synchronize();
      double seconds = now_seconds() - from;
      mesh.host_along(axis).all_reduce(&seconds, 1, DType::f64, ReduceOp::max);
      if (round > 0) best = round == 1 ? seconds : std::min(best, seconds);
    }
    comm.reset_traffic();
    const double n = comm.size();
    speeds.push_back({axis, comm.size(), comm.transport(), bytes,
                      2 * (n - 1) / n * static_cast<double>(bytes) / best / 1e9});
  }
  return speeds;
}

}  // namespace choir
