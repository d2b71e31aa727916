#pragma once
// Whether a run saves while it trains, and what that costs it in memory.
#include <string>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/deck/deck.hpp"
#include "choir/train/step/step_plan.hpp"

namespace choir {

/// Collective. checkpoint.async as this run can have it: true with room for `plan.snapshot_bytes`
/// on every node and an MPI that serves threads. Where "auto" goes without, `why` says so; "true"
/// is then a DeckError. False without saves on the way: nothing could be overlapped.
bool choose_async(const Deck& deck, const StepPlan& plan, Mesh& mesh, const Device& device,
                  std::string& why);
/// The entry of the snapshot in a memory plan.
void add_snapshot(MemoryPlan& memory, const StepPlan& plan);

}  // namespace choir
