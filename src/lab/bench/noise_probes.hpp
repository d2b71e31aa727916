#pragma once
// The gradient noise scale on the batches of `choir bench step`: gradients of one micro-batch and
// of the global batch, in pairs, after the timed steps.
#include "choir/comm/mesh/mesh.hpp"
#include "choir/lab/bench/bench_batches.hpp"
#include "choir/lab/bench/bench_step.hpp"
#include "choir/train/step/engine.hpp"

namespace choir {

/// Throws DeckError if there is nothing to compare.
void require_probes(const Deck& deck, const BatchSizes& batch, bool communicate);

/// Returns `schedule` up to decay_steps and zero afterwards. The probes run there, so that all
/// pairs have the same parameters.
LrSchedule standing_after(LrSchedule schedule);

struct NoiseProbes {
  Engine& engine;  ///< its lr_schedule comes from standing_after()
  BenchBatches& data;
  Mesh& mesh;
  PhaseClock& clock;
  BatchSizes batch;
  std::int64_t steps_before = 0;
  int pairs = 0;
};
/// Measures the pairs and estimates the noise scale. Collective.
GradientNoise probe_gradient_noise(const NoiseProbes& probes);

}  // namespace choir
