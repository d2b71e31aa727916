#pragma once
// The gradient noise scale on the batches of `choir bench step`: gradients of one micro-batch and
// of the global batch, in pairs, after the timed steps.
#include "choir/comm/mesh/mesh.hpp"
#include "choir/lab/bench/bench_batches.hpp"
#include "choir/lab/bench/bench_step.hpp"
#include "choir/train/step/engine.hpp"

namespace choir {

/// Throws DeckError where there is nothing to compare.
void require_probes(const Deck& deck, const BatchSizes& batch, bool communicate);

/// As `schedule` while it decays, and zero from decay_steps on: there the probes are made, so that
/// the parameters of all pairs are the same.
LrSchedule standing_after(LrSchedule schedule);

struct NoiseProbes {
  Engine& engine;  ///< its schedule from standing_after()
  BenchBatches& data;
  Mesh& mesh;
  PhaseClock& clock;
  BatchSizes batch;
  std::int64_t steps_before = 0;
  int pairs = 0;
};
/// Collective.
GradientNoise probe_gradient_noise(const NoiseProbes& probes);

}  // namespace choir
