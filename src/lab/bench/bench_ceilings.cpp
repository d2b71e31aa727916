#include "src/lab/bench/bench_ceilings.hpp"

#include <algorithm>

#include "choir/core/clock.hpp"
#include "choir/device/cuda.hpp"
#include "choir/nn/precision.hpp"
#include "choir/ops/ceiling.hpp"

namespace choir {
namespace {

/// Bytes/s (read + written) of updating `bytes` of host memory in place, the best of a few rounds.
/// A copy also reads the lines it overwrites; an optimizer has already read them and does not pay
/// for that.
double measure_update(Device& device, std::size_t bytes = std::size_t{512} << 20) {
  const Buffer memory(device, bytes);
  auto* values = static_cast<float*>(memory.data());
  const auto n = static_cast<std::int64_t>(bytes / sizeof(float));
#pragma omp parallel for schedule(static)
  for (std::int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(i % 1021);
  double best = 1e30;
  for (int round = 0; round < 5; ++round) {
    const double start = now_seconds();
#pragma omp parallel for simd schedule(static)
    for (std::int64_t i = 0; i < n; ++i) values[i] = 0.75f * values[i] + 1.0f;
    best = std::min(best, now_seconds() - start);
  }
  return 2.0 * static_cast<double>(bytes) / best;
}

/// The manufacturer's figure for the GPUs of a node, per rank; 0 if unknown.
double nominal_rate(const Device& device, DType compute, int ranks_of_node) {
  if (device.kind() != DeviceKind::cuda || size_of(compute) != 2) return 0;
  const cuda::Availability seen = cuda::availability();
  if (seen.cards.empty()) return 0;
  const double cards = std::min(static_cast<double>(seen.cards.size()) / ranks_of_node, 1.0);
  return seen.cards[0].peak_bf16_flops * cards;
}

}  // namespace

double max_over(Communicator& comm, double value) {
  comm.all_reduce(&value, 1, DType::f64, ReduceOp::max);
  return value;
}

void measure_products(Mesh& mesh, Device& device, StepBench& bench) {
  const Stream stream(device);
  Communicator& world = mesh.world();
  world.barrier();
  const DType compute = precision_of(bench.precision).compute;
  const double flops = ops::measure_gemm(stream, compute, bench.product_extent);
  bench.nominal_flops = nominal_rate(device, compute, mesh.node().size());
  world.all_reduce(&bench.nominal_flops, 1, DType::f64, ReduceOp::sum);
  double sum = flops;
  world.all_reduce(&sum, 1, DType::f64, ReduceOp::sum);
  bench.peak_flops = std::max(bench.peak_flops, sum);
  bench.rates.flops_per_second = std::max(bench.rates.flops_per_second, -max_over(world, -flops));
}

void measure_memory(Mesh& mesh, Device& device, StepBench& bench) {
  Communicator& world = mesh.world();
  world.barrier();
  bench.copy_rate = -max_over(world, -ops::measure_copy(Stream(device)));
  world.barrier();
  // On a GPU a store does not read its line first: a copy costs as much as an update.
  bench.update_rate =
      device.host_visible() ? -max_over(world, -measure_update(device)) : bench.copy_rate;
  bench.rates.bytes_per_second = std::max(bench.copy_rate, bench.update_rate);
}

}  // namespace choir
