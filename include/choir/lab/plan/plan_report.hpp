#pragma once
// Formats of plans: text and JSON. Pure.
#include <cstdint>
#include <string>

#include "choir/lab/plan/layout_plan.hpp"
#include "choir/lab/plan/layout_search.hpp"

namespace choir {

/// An exact plan: axes and groups, the memory of every role (roles with equal plans are grouped) in
/// the words of `choir train`, totals, bytes along each axis, FLOPs, bubble, and the verdict.
std::string to_string(const LayoutPlan& plan, const PlanTarget& target);

/// The answer in short: the verdict, the deck's own layout, the simplest that fits, and the command
/// to type. `command`: the given deck and overrides. Pointers may be nullptr as in plan_json().
std::string answer(const LayoutPlan* plan, const LayoutSearch* search, const PlanCase& request,
                   const std::string& command);

/// A table of the layouts that fit, or else the closest one.
std::string to_string(const LayoutSearch& search, const PlanCase& request);

/// The number of parameters of a deck's whole model.
std::int64_t parameters_of(const Deck& deck);

/// Returns one object: "target", "layout" (an exact plan) and, if there was a search, "choices". A
/// nullptr means that there is no plan or no search.
std::string plan_json(const LayoutPlan* plan, const LayoutSearch* search, const PlanCase& request);

}  // namespace choir
