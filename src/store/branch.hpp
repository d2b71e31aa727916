#pragma once
// Branches of a run. A run that continues from its newest checkpoint stays on its branch. A run
// that continues from another one, because the newest is damaged or cannot be read or because the
// deck names one, begins a new branch, whose steps replace those after the fork. Every checkpoint
// names its branch, so that one of a branch that the run left is not mistaken for the newest when
// it can be read again. The branch that began last is the current one.
#include <cstdint>
#include <string>
#include <vector>

namespace choir {

class CheckpointDirectory;
struct Manifest;

struct Branch {
  /// The history of a branch: it continues `branch` after `step`.
  struct Fork {
    std::string branch;
    std::int64_t step = 0;
  };
  std::string id;           ///< random; "" in checkpoints of versions without branches
  std::int64_t began = 0;   ///< seconds since the epoch, and later than that of its ancestors
  std::vector<Fork> forks;  ///< the ancestors, oldest first; the last one is the parent

  /// True if the checkpoint of this step of `branch` belongs to this branch or its history.
  bool includes(const std::string& branch, std::int64_t step) const;
};

/// Local. A new branch after `parent`, or a run's first one (nullptr); it begins later than every
/// branch that has a checkpoint in the folder.
Branch begin_branch(const Manifest* parent, const CheckpointDirectory& folder);

/// A checkpoint folder as one rank sees it.
struct BranchSurvey {
  struct Step {
    std::int64_t step = 0;
    std::string abandoned;  ///< why the step is not part of the current branch, else ""
  };
  Branch current;           ///< its id is "" if no manifest names a branch
  std::vector<Step> steps;  ///< newest first; unreadable ones are not abandoned
};
/// Local. Reads every manifest.
BranchSurvey survey_branches(const CheckpointDirectory& folder);

}  // namespace choir
