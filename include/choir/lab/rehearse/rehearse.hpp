#pragma once
// What a job of many ranks costs each of them, found by playing a few on one process: the code of
// training itself, from its start over one step to its save and its summary, on communicators
// without other ranks (comm/rehearsal.hpp).
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/layout.hpp"
#include "choir/comm/rehearsal.hpp"
#include "choir/deck/deck.hpp"

namespace choir {

struct RehearsalCase {
  Deck deck;
  Layout layout;
  int ranks_per_node = 1;
  std::string folder;  ///< the rehearsal's own, which exists
};

struct RehearsedRank {
  int rank = 0;
  double seconds = 0;
  std::int64_t peak = 0;   ///< bytes that were resident at most
  std::int64_t files = 0;  ///< that it made and left
  std::vector<RehearsedPhase> phases{};
};

/// Local. The deck of `text` for so many ranks, on the CPU, with a run directory in `folder`, which
/// stops after its first step. DeckError as train has it.
RehearsalCase rehearsal_case(const std::string& text, const std::string& path,
                             const std::vector<std::string>& overrides, int ranks,
                             int ranks_per_node, const std::string& folder);

/// One of each role: the first rank, one in the middle of all axes, and the last. Rank 0 comes
/// first.
std::vector<int> ranks_to_play(const Layout& layout);

/// Local, in a process with MPI and without other ranks; rank 0 first. Times, calls and bytes of
/// the phases; `peak` is left to who sees the process end. Throws what train throws, and an Error
/// where it ends with another exit code than that of a stop.
RehearsedRank play_rank(const RehearsalCase& rehearsed, int rank);

/// Local, after a rank was played: the checkpoint becomes one that is being written again, for the
/// next rank to add to it.
void reopen_checkpoint(const RehearsalCase& rehearsed);

std::string rank_json(const RehearsedRank& rank);
RehearsedRank rank_of_json(const std::string& text);

/// A table for people, and one document for programs.
std::string to_string(const RehearsalCase& rehearsed, const std::vector<RehearsedRank>& ranks);
std::string to_json(const RehearsalCase& rehearsed, const std::vector<RehearsedRank>& ranks);

}  // namespace choir
