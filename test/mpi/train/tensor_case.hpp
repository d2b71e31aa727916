#pragma once
// Small models whose layers are shared by the ranks of the world.
#include <memory>
#include <vector>

#include "test/mpi/train/curve.hpp"

namespace choir::test {

/// Layouts of all ranks with every possible tensor size except 1.
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

/// 7 tokens per sequence, two sequences: rows can be divided among 2 ranks, but not among 3 or 4,
/// and a share ends inside a sequence. No number of ranks divides the vocabulary.
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
  options.grad_clip = 0.5;  // clips in the first steps
  return options;
}

}  // namespace choir::test
