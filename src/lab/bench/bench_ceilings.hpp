#pragma once
// What `choir bench step` holds a step against, measured in the same run on all ranks at once, as
// they compute: products of matrices, and memory.
#include "choir/comm/mesh/mesh.hpp"
#include "choir/device/device.hpp"
#include "choir/lab/bench/bench_step.hpp"

namespace choir {

/// Collective. Of `bench.precision` and `bench.product_extent`: the better of this moment and of
/// those before, in `rates` of the slowest rank and `peak_flops` of all.
void measure_products(Mesh& mesh, Device& device, StepBench& bench);
/// Collective. `copy_rate`, `update_rate`, and the better of the two in `rates`.
void measure_memory(Mesh& mesh, Device& device, StepBench& bench);

/// Collective.
double max_over(Communicator& comm, double value);

}  // namespace choir
