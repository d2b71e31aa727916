#include "choir/train/loop/async_choice.hpp"

#include <fmt/core.h>

#include "choir/comm/agreement.hpp"
#include "choir/comm/mpi/mpi_session.hpp"
#include "choir/core/clock.hpp"

namespace choir {

bool choose_async(const Deck& deck, const StepPlan& plan, Mesh& mesh, const Device& device,
                  std::string& why) {
  why.clear();
  const CheckpointSection& section = deck.checkpoint;
  if (section.async == "false" || !section.on_the_way()) return false;
  const bool short_of_memory = !snapshot_fits(plan, mesh.node().size(), device);
  const bool no_threads = mesh.world().size() > 1 && !mpi_serves_threads();
  const std::string what =
      no_threads ? "this MPI does not support multiple threads (MPI_THREAD_MULTIPLE)"
      : short_of_memory
          ? fmt::format(
                "{} rank(s) on this node need {} each for a copy of the state in addition to the "
                "memory of training, but it has {}",
                mesh.node().size(), format_bytes(static_cast<double>(plan.snapshot_bytes)),
                format_bytes(node_memory()))
          : "";
  if (section.async == "true")
    together(mesh.world(), [&] {
      if (!what.empty())
        throw DeckError("checkpoint.async: " + what,
                        "set checkpoint.async to \"auto\" or false, spread the state over more "
                        "ranks (parallel.zero), or use fewer ranks per node");
    });
  std::int64_t without = what.empty() ? 0 : 1;
  mesh.world().all_reduce(&without, 1, DType::i64, ReduceOp::sum);
  if (without > 0)
    why = "checkpoint.async: training waits for saves, because " +
          (what.empty() ? fmt::format("{} other rank(s) have to", without) : what);
  return without == 0;
}

void add_snapshot(MemoryPlan& memory, const StepPlan& plan) {
  memory.add("checkpoint snapshot", plan.snapshot_bytes, false, MemoryPlace::host);
}

}  // namespace choir
