#pragma once
// Formats of plans: text and JSON. Roles that need the same memory and send the same messages are
// grouped; their work may differ a little: the last tensor rank has less of the vocabulary. Pure.

#include <cstdint>
#include <string>
#include <vector>

#include "src/lab/plan/layout_plan.hpp"
#include "src/lab/plan/layout_search.hpp"

namespace choir {

struct RoleGroup {
  std::vector<const RolePlan*> roles;
};

bool same_memory_and_traffic(const StepPlan& a, const StepPlan& b);
/// "work of one step: 1.25 to 1.27 GFLOP, 3.2 GiB touched".
std::string work_of(const RoleGroup& group);

/// The groups in the order of their first ranks.
std::vector<RoleGroup> group_roles(const LayoutPlan& plan);

/// "every rank", "stage 0 of 4, tensor 0-7 of 8 (64 ranks)".
std::string describe(const RoleGroup& group, const LayoutPlan& plan);

/// An exact plan: axes and groups, the memory of every role (roles with equal plans are grouped) in
/// the words of `choir train`, totals, bytes along each axis, FLOPs, bubble, and the verdict.
std::string to_string(const LayoutPlan& plan, const PlanTarget& target);

/// The words of the command line that the answer repeats.
struct PlanWords {
  std::vector<std::string> command{};  ///< deck and overrides
  std::string preset{};     ///< the name of a model in place of a deck; "": there is a deck
  std::string repeated{};   ///< the whole command of the plan
  std::string out{};        ///< the deck that was written, with everything that the plan changes
  bool asked_node = false;  ///< the ranks of a node are given
};

/// The answer in short: the verdict, the simplest layout that fits, the deck's own one, what was
/// assumed, and the command to type. A plan that is too large never stands below "FITS" alone.
/// `chosen` is the layout of the search to use. Pointers may be nullptr as in plan_json().
std::string answer(const LayoutPlan* plan, const LayoutSearch* search, const LayoutChoice* chosen,
                   const PlanCase& request, const PlanWords& words);

/// The results of a plan. Pointers are nullptr where there is none.
struct PlanFindings {
  const LayoutPlan* written = nullptr;   ///< the layout of the deck
  const LayoutPlan* plan = nullptr;      ///< the layout to use, planned rank by rank
  const LayoutSearch* search = nullptr;  ///< only if the deck leaves the layout open
  const LayoutChoice* chosen = nullptr;  ///< the one of `search` to use
  std::string obstacle{};                ///< the reason why the deck does not run as written
};

/// The lines below the answer, at most 12: the memory of the fullest rank by its largest parts, its
/// messages, and the first layouts of the search.
std::string summary(const PlanFindings& found, const PlanCase& request);

/// Everything in full: the exact plan of the layout to use, and all layouts with their reasons.
std::string details(const PlanFindings& found, const PlanCase& request);

/// A table of the layouts that fit, or else the closest one.
std::string to_string(const LayoutSearch& search, const PlanCase& request);

/// The number of parameters of a deck's whole model.
std::int64_t parameters_of(const Deck& deck);

/// Returns one object: "target", "layout" (an exact plan) and, if there was a search, "choices". A
/// nullptr means that there is no plan or no search.
std::string plan_json(const LayoutPlan* plan, const LayoutSearch* search, const PlanCase& request);

}  // namespace choir
