#pragma once
// Rehearsal of a job of many ranks: the cost of a few of them, played on one process. The code of
// training itself runs, from its start over one step to its save and its summary, on communicators
// without other ranks (src/comm/null_communicator.hpp).
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/layout.hpp"
#include "choir/deck/deck.hpp"
#include "src/comm/null_communicator.hpp"

namespace choir {

struct RehearsalCase {
  Deck deck;
  Layout layout;
  int ranks_per_node = 1;
  std::string folder;  ///< the rehearsal's own folder, which exists
};

/// A temporary folder that is removed with this object. Throws StorageError. Local.
class RehearsalFolder {
 public:
  RehearsalFolder();
  ~RehearsalFolder();
  RehearsalFolder(const RehearsalFolder&) = delete;
  RehearsalFolder& operator=(const RehearsalFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct RehearsedRank {
  int rank = 0;
  double seconds = 0;
  std::int64_t peak = 0;   ///< most resident bytes
  std::int64_t files = 0;  ///< files that it created and kept
  std::vector<RehearsedPhase> phases{};
};

/// Parses the deck of `text` for this number of ranks, on the CPU, with a run directory in
/// `folder`; the run stops after its first step. Local. Throws DeckError as training does.
RehearsalCase rehearsal_case(const FamilyTable& families, const std::string& text,
                             const std::string& path, const std::vector<std::string>& overrides,
                             int ranks, int ranks_per_node, const std::string& folder);

/// The ranks to play: the first rank, one in the middle of all axes, and the last. Rank 0 comes
/// first.
std::vector<int> ranks_to_play(const Layout& layout);

/// Plays one rank and returns times, calls and bytes of the phases; `peak` is filled in by the
/// process that waits for this one. Local, in a process with MPI and without other ranks; rank 0
/// must be played first. Throws the errors of training, and an Error if training ends with an exit
/// code other than that of a stop.
RehearsedRank play_rank(const RehearsalCase& rehearsed, int rank);

/// Marks the checkpoint as unfinished after a rank was played, so that the next rank adds to it.
/// Local.
void reopen_checkpoint(const RehearsalCase& rehearsed);

std::string rank_json(const RehearsedRank& rank);
RehearsedRank rank_of_json(const std::string& text);

/// A table for people, and one JSON document for programs.
std::string to_string(const RehearsalCase& rehearsed, const std::vector<RehearsedRank>& ranks);
std::string to_json(const RehearsalCase& rehearsed, const std::vector<RehearsedRank>& ranks);

}  // namespace choir
