#pragma once
// The hardware that a deck is tuned for: ranks, nodes, devices and their memory.
#include <optional>
#include <string>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/lab/plan/layout_plan.hpp"

namespace choir {

/// Options of the command line; empty ones are determined automatically.
struct TunePlace {
  std::string memory;  ///< of one rank; see memory_of_word()
  std::string target;
  std::optional<int> ranks, ranks_per_node;
};

/// Parses an amount of memory into bytes: "6" and "6GiB" are GiB; B, KiB, MiB and TiB are also
/// accepted. Throws DeckError.
double memory_of_word(const std::string& word);

/// Sets ranks and target of a case with a known deck: under mpiexec those of this job, with the
/// least memory of any rank. Threads are set as in training. Returns the source of the memory
/// limit. Collective over the world. Throws DeckError.
std::string take_place(const TunePlace& place, Mesh& mesh, PlanCase& to);

}  // namespace choir
