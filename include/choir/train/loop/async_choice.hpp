#pragma once
// Decides whether a run saves in the background, and accounts for the memory of that.
#include <string>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/deck/deck.hpp"
#include "choir/train/step/step_plan.hpp"

namespace choir {

/// Returns true if checkpoint.async is not false, every node has room for `plan.snapshot_bytes`,
/// and MPI supports threads. If "auto" falls back to false, `why` has the reason; if "true" is
/// impossible, throws DeckError. Returns false for runs without saves during training, which would
/// have nothing to overlap. Collective.
bool choose_async(const Deck& deck, const StepPlan& plan, Mesh& mesh, const Device& device,
                  std::string& why);
/// Adds the entry of the snapshot to a memory plan.
void add_snapshot(MemoryPlan& memory, const StepPlan& plan);

}  // namespace choir
