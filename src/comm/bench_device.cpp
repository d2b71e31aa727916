// choir bench comm on device memory.
#include <algorithm>
#include <array>
#include <functional>
#include <string_view>

#include "choir/comm/bench_collectives.hpp"
#include "choir/comm/staged_communicator.hpp"
#include "choir/core/clock.hpp"

namespace choir {
namespace {

/// Median of the slowest rank's seconds for one call.
double time_of(Communicator& control, Device& device, int repeats, int inner,
               const std::function<void()>& call) {
  std::vector<double> all;
  for (int round = 0; round <= repeats; ++round) {  // round 0 warms up
    Stream(device).synchronize();
    control.barrier();
    const double from = now_seconds();
    for (int k = 0; k < inner; ++k) call();
    Stream(device).synchronize();
    double seconds = (now_seconds() - from) / inner;
    control.all_reduce(&seconds, 1, DType::f64, ReduceOp::max);
    if (round > 0) all.push_back(seconds);
  }
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

void add_rows(std::vector<CollectiveRow>& rows, Communicator& control, Communicator& comm,
              Device& device, std::size_t bytes, int repeats) {
  const std::size_t count = bytes / sizeof(float),
                    share = count / static_cast<std::size_t>(comm.size());
  // Zeros stay zeros, however often they are added.
  const auto memory = comm.allocate(bytes);
  void* data = memory->data();
  const int inner = bytes <= (1 << 20) ? 20 : 4;
  const std::array<std::pair<const char*, std::function<void()>>, 3> ways{
      {{"all_reduce", [&] { comm.all_reduce(data, count, DType::f32, ReduceOp::sum); }},
       {"reduce_scatter", [&] { comm.reduce_scatter(data, share, DType::f32, ReduceOp::sum); }},
       {"all_gather", [&] { comm.all_gather(data, share, DType::f32); }}}};
  const double n = comm.size();
  for (std::size_t w = 0; w < ways.size(); ++w) {
    const double seconds = time_of(control, device, repeats, inner, ways[w].second);
    const double factor = (w == 0 ? 2.0 : 1.0) * (n - 1) / n;
    rows.push_back({ways[w].first, comm.transport(), bytes, seconds,
                    factor * static_cast<double>(bytes) / seconds / 1e9});
  }
}

}  // namespace

std::vector<CollectiveRow> bench_device_collectives(Mesh& mesh, Device& device,
                                                    const CollectiveBenchOptions& options) {
  std::vector<CollectiveRow> rows;
  Communicator& comm = mesh.along(Axis::data);
  if (comm.size() == 1) return rows;
  std::vector<Communicator*> ways{&comm};
  std::unique_ptr<Communicator> yardstick;
  if (std::string_view(comm.transport()) != "staged") {
    yardstick = make_staged_communicator(mesh.host_along(Axis::data), device, "bench staged");
    ways.push_back(yardstick.get());
  }
  for (std::size_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= 4)
    for (Communicator* way : ways)
      add_rows(rows, mesh.world(), *way, device, bytes, options.repeats);
  return rows;
}

}  // namespace choir
