#pragma once
// Private to the search: why a layout stands where it does on the decision ladder. Pure.
#include <optional>
#include <string>

#include "choir/plan/layout_plan.hpp"

namespace choir {

/// One sentence: how the layout divides the model, what that costs, and what it saves against
/// `too_large`, the last thing that was tried on the same ranks.
std::string ladder_reason(const LayoutPlan& plan, const std::optional<LayoutPlan>& too_large);

}  // namespace choir
