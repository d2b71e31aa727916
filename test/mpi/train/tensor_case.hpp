#pragma once
// Small models whose layers are shared by the ranks of the world, and their training.
#include <memory>
#include <vector>

#include "choir/store/collectives.hpp"
#include "choir/train/step/train_checkpoint.hpp"
#include "test/support/mpi_test.hpp"
#include "test/unit/train/engine_case.hpp"

namespace choir::test {

inline constexpr int kSteps = 20;
inline constexpr std::int64_t kMicroBatches = 4;  // of all ranks together, where they divide it

/// Layouts of all ranks with every possible tensor size but 1.
inline std::vector<Layout> layouts() {
  std::vector<Layout> list;
  for (int t = 2; t <= world_size(); ++t)
    if (world_size() % t == 0) list.push_back(Layout(t, 1, world_size() / t, 1));
  return list;
}

inline std::unique_ptr<Mesh> mesh_of(const Layout& layout,
                                     Transport transport = Transport::automatic) {
  return Mesh::over_world(layout, transport);
}

/// 7 tokens a sequence, two sequences: rows divide among 2 ranks, not among 3 or 4, and a share
/// ends inside a sequence. A vocabulary that divides among none.
inline GptConfig gpt() {
  return {.vocab_size = 19,
          .block_size = 7,
          .n_layer = 2,
          .n_head = 12,
          .n_kv_head = 12,
          .n_embd = 48,
          .ffn_width = 96,
          .dropout = 0.2};
}

inline GptConfig llama(std::int64_t kv_heads) {
  GptConfig c = gpt();
  c.n_kv_head = kv_heads;
  c.bias = false;
  c.tied = false;
  c.norm = ops::Norm::rmsnorm;
  c.activation = ops::Activation::swiglu;
  c.position = Position::rope;
  return c;
}

inline EngineOptions options_of(const GptConfig& model, bool sequence) {
  EngineOptions options = engine_options(model, "fp64", kMicroBatches);
  options.sequence = sequence;
  options.grad_clip = 0.5;  // clips at first
  return options;
}

struct Curve {
  std::vector<double> losses, norms, state;
};

inline Curve train(EngineOptions options, Mesh& mesh, int steps = kSteps) {
  options.micro_batches /= mesh.along(Axis::data).size();
  EngineRun run(options, mesh);
  Curve curve;
  for (int i = 0; i < steps; ++i) {
    const StepResult result = run.step();
    curve.losses.push_back(result.loss);
    curve.norms.push_back(result.grad_norm);
  }
  curve.state = run.state();
  require_equal_parameters(run.engine(), "parameters after training");
  return curve;
}

inline Curve alone(EngineOptions options, int steps = kSteps) {
  options.sequence = false;
  SingleRank single;
  return train(options, *single.mesh, steps);
}

}  // namespace choir::test
