#include "src/store/branch.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <random>

#include "src/store/directory.hpp"

namespace choir {
namespace {

/// The branch of every checkpoint whose manifest can be read and has the step of its name.
std::map<std::int64_t, Branch> known_branches(const CheckpointDirectory& folder) {
  std::map<std::int64_t, Branch> branches;
  for (const std::int64_t step : folder.steps()) {
    try {
      Manifest manifest =
          Manifest::parse(read_text_file(folder.final_path(step) + "/" + kManifestName));
      if (manifest.step == step) branches[step] = std::move(manifest.branch);
    } catch (const StorageError&) {
      continue;  // a load reports the reason
    }
  }
  return branches;
}

std::string why_abandoned(const Branch& branch, const std::string& path, const Branch& current) {
  const auto fork = std::ranges::find(current.forks, branch.id, &Branch::Fork::branch);
  return fmt::format(
      "it belongs to branch {}, which the run left{} for branch {}; checkpoint.resume={} continues "
      "from it",
      branch.id.empty() ? "(none)" : branch.id,
      fork == current.forks.end() ? "" : fmt::format(" after step {}", fork->step), current.id,
      path);
}

}  // namespace

bool Branch::includes(const std::string& branch, std::int64_t step) const {
  if (branch == id) return true;
  return std::ranges::any_of(
      forks, [&](const Fork& fork) { return fork.branch == branch && step <= fork.step; });
}

Branch begin_branch(const Manifest* parent, const CheckpointDirectory& folder) {
  std::random_device device;
  Branch branch;
  branch.id = fmt::format("{:08x}", device());
  branch.began = std::time(nullptr);
  if (parent != nullptr) {
    branch.forks = parent->branch.forks;
    branch.forks.push_back({parent->branch.id, parent->step});
    branch.began = std::max(branch.began, parent->branch.began + 1);
  }
  for (const auto& [step, known] : known_branches(folder))
    branch.began = std::max(branch.began, known.began + 1);
  return branch;
}

BranchSurvey survey_branches(const CheckpointDirectory& folder) {
  const std::map<std::int64_t, Branch> known = known_branches(folder);
  BranchSurvey survey;
  for (const auto& [step, branch] : known)
    if (branch.began >= survey.current.began) survey.current = branch;
  for (const std::int64_t step : folder.steps()) {
    const auto at = known.find(step);
    const bool abandoned = at != known.end() && !survey.current.includes(at->second.id, step);
    survey.steps.push_back(
        {step,
         abandoned ? why_abandoned(at->second, folder.final_path(step), survey.current) : ""});
  }
  return survey;
}

}  // namespace choir
