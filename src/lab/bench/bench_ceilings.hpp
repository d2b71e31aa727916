#pragma once
// The ceilings that `choir bench step` compares a step with: products of matrices, and memory. They
// are measured in the same run, on all ranks at once as in a step.
#include "choir/comm/mesh/mesh.hpp"
#include "choir/device/device.hpp"
#include "choir/lab/bench/bench_step.hpp"

namespace choir {

/// Measures the product of `bench.precision` and `bench.product_extent`. The better of this
/// measurement and of the earlier ones goes into `rates` (slowest rank) and `peak_flops` (sum of
/// all). Collective.
void measure_products(Mesh& mesh, Device& device, StepBench& bench);
/// Measures `copy_rate` and `update_rate`, and puts the better of the two into `rates`. Collective.
void measure_memory(Mesh& mesh, Device& device, StepBench& bench);

/// The maximum over the ranks. Collective.
double max_over(Communicator& comm, double value);

}  // namespace choir
