#pragma once
// Private to the reports: roles with equal plans.
#include <string>
#include <vector>

#include "choir/plan/layout_plan.hpp"

namespace choir {

struct RoleGroup {
  const StepPlan* plan = nullptr;
  std::vector<const RolePlan*> roles;
};

bool equal(const StepPlan& a, const StepPlan& b);

/// In the order of their first ranks.
std::vector<RoleGroup> group_roles(const LayoutPlan& plan);

/// "every rank", "stage 0 of 4, tensor 0-7 of 8 (64 ranks)".
std::string describe(const RoleGroup& group, const LayoutPlan& plan);

}  // namespace choir
