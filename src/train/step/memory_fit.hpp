#pragma once
// The head's logits in the memory plan, and plans whose chunks of the head are as large as the
// memory allows (train.head_chunk = auto). Smaller chunks change only the order of the sum of the
// head's gradient, so reproducible runs, whose bits depend on the model alone, keep theirs.
#include <cstdint>
#include <string>

#include "choir/comm/layout.hpp"
#include "choir/comm/mesh/mesh.hpp"
#include "src/train/step/engine_options.hpp"
#include "src/train/step/step_planner.hpp"

namespace choir {

/// The logits that a rank with the head has in memory together, in the largest micro-batch.
struct HeadMemory {
  std::int64_t rows = 0;      ///< 0: the model has no head with chunks
  std::int64_t all_rows = 0;  ///< of the micro-batch
  double bytes = 0;           ///< of `rows` rows
  /// "head: 1024 of 8192 rows at a time, 501.0 MiB of logits"; "" without such a head.
  std::string to_string() const;
};
HeadMemory head_memory(const EngineOptions& options, const Layout& layout);

/// Bytes of queries, keys, values and outputs of attention that a rank does not keep of the largest
/// micro-batch, because backward computes them again in tiles (train.attention_chunk): in each of
/// its layers or, with full recomputation, in the one at work. 0 without tiles.
double bytes_of_tiles(const EngineOptions& options, const Layout& layout);
/// "attention: 512 positions at a time, 96.0 MiB of a micro-batch are computed again instead of
/// kept"; "" without tiles.
std::string tiles_text(const EngineOptions& options, const Layout& layout);

/// Halves the automatic chunk of the head of a plan that needs `excess` bytes too many. Returns
/// false if that cannot help: the deck gives the chunk, the run is reproducible, fewer than 128
/// rows would remain, or even without all logits the plan would not fit. Local, the same on every
/// rank.
bool halve_head_chunk(EngineOptions& options, double excess, const Layout& layout);

/// Bytes by which the plan of a rank exceeds the memory of this machine (require_memory); 0: it
/// fits. Local.
double excess_bytes(const StepPlan& plan, int ranks_per_node, const Device& device);

/// plan_step() for this rank on this machine, with smaller chunks of the head on all ranks
/// (`options`) if some rank needs them. The plan may still not fit. Afterwards the options contain
/// the planned arena requests. Collective over the mesh.
StepPlan plan_in_memory(EngineOptions& options, Mesh& mesh, bool generate, const Device& device,
                        bool snapshot = true);

}  // namespace choir
