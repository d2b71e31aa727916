#pragma once
// Trainings on ranks of the world, their results, and the same on one rank.
#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "src/comm/agreement.hpp"
#include "src/models/gpt/token_data.hpp"
#include "src/store/collectives.hpp"
#include "src/train/step/train_checkpoint.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir::test {

inline constexpr int kSteps = 20;
inline constexpr std::int64_t kMicroBatches = 4;  // of all ranks together, if they divide it

/// All ranks are on the data axis.
inline std::unique_ptr<Mesh> world_mesh(Transport transport = Transport::automatic) {
  return Mesh::over_world(Layout(1, 1, world_size(), 1), transport);
}

inline bool power_of_two_ranks() {
  return std::has_single_bit(static_cast<unsigned>(world_size()));
}

struct Curve {
  std::vector<double> losses, norms, state;
};

inline void take_steps(EngineRun& run, int steps, Curve& curve) {
  for (int i = 0; i < steps; ++i) {
    const StepResult result = run.step();
    curve.losses.push_back(result.loss);
    curve.norms.push_back(result.grad_norm);
  }
}

/// `options.micro_batches`: number of all ranks together.
inline Curve train(EngineOptions options, Mesh& mesh, int steps = kSteps) {
  options.micro_batches /= mesh.along(Axis::data).size();
  EngineRun run(options, mesh);
  Curve curve;
  take_steps(run, steps, curve);
  curve.state = run.state();
  require_equal_parameters(run.engine(), "parameters after training");
  return curve;
}

inline Curve alone(EngineOptions options, int steps = kSteps) {
  options.sequence = false;
  SingleRank single;
  return train(options, *single.mesh, steps);
}

/// Ranks on the data axis only: the digests of their state are equal.
inline Curve train_replicas(EngineOptions options, Mesh& mesh, std::int64_t micro_batches,
                            int steps = kSteps) {
  options.micro_batches = micro_batches / mesh.along(Axis::data).size();
  EngineRun run(options, mesh);
  Curve curve;
  take_steps(run, steps, curve);
  curve.state = run.state();
  require_equal(mesh.world(), run.engine().instance().storage().digest(),
                "parameters after training");
  return curve;
}

inline Curve train_one_replica(const EngineOptions& options, std::int64_t micro_batches,
                               int steps = kSteps) {
  SingleRank single;
  return train_replicas(options, *single.mesh, micro_batches, steps);
}

inline double loss_of_validation(EngineRun& run) {
  const EngineOptions& options = run.engine().options();
  Mesh& mesh = run.mesh();
  DataConfig config;
  config.synthetic = true;
  config.seed = 5;
  config.block_size = options.model.as<GptConfig>().block_size;
  config.rows = options.micro_batch_size;
  config.vocab_size = options.model.as<GptConfig>().vocab_size;
  config.eval_windows = 13;  // seven micro-batches: some ranks have none in the last call
  config.peers = &mesh.along(Axis::tensor);
  const auto data = Dataset::open(mesh.along(Axis::data), config);
  return validation_loss(run.engine().instance(), *data);
}

inline double loss_of_validation(const EngineOptions& options, Mesh& mesh) {
  EngineRun run(options, mesh);
  return loss_of_validation(run);
}

inline void expect_equal(const Curve& one, const Curve& many, const std::string& what) {
  EXPECT_ALL_RANKS(distance(one.losses, many.losses) <= 1e-12)
      << what << ": losses " << distance(one.losses, many.losses);
  EXPECT_ALL_RANKS(distance(one.norms, many.norms) <= 1e-12)
      << what << ": norms " << distance(one.norms, many.norms);
  EXPECT_ALL_RANKS(distance(one.state, many.state) <= 1e-12)
      << what << ": state " << distance(one.state, many.state);
}

}  // namespace choir::test
