#pragma once
// Where a tuned deck is to run: ranks, nodes, devices and their memory.
#include <optional>
#include <string>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/lab/plan/layout_plan.hpp"

namespace choir {

/// As on the command line; what is empty is found out.
struct TunePlace {
  std::string memory;  ///< of one rank, see memory_of_word()
  std::string target;
  std::optional<int> ranks, ranks_per_node;
};

/// Bytes: "6" and "6GiB" are GiB; B, KiB, MiB and TiB are themselves. Throws DeckError.
double memory_of_word(const std::string& word);

/// Collective over the world. Sets ranks and target of a case whose deck is known: under mpiexec
/// those of this job, with the least memory that any rank has; threads are set as in training.
/// Returns where the limit of memory comes from. DeckError.
std::string take_place(const TunePlace& place, Mesh& mesh, PlanCase& to);

}  // namespace choir
