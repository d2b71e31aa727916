#pragma once
// Groups of roles that need the same memory and send the same messages, private to the reports.
// Their work may differ a little: the last tensor rank has less of the vocabulary.
#include <string>
#include <vector>

#include "choir/lab/plan/layout_plan.hpp"

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

}  // namespace choir
