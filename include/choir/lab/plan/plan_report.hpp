#pragma once
// Plans as text and as JSON. Pure.
#include <cstdint>
#include <string>

#include "choir/lab/plan/layout_plan.hpp"
#include "choir/lab/plan/layout_search.hpp"

namespace choir {

/// Axes and groups, the memory of every role (roles with equal plans stand together) in the words
/// of train, totals, bytes of each axis, FLOPs, bubble, and whether it fits. An exact plan.
std::string to_string(const LayoutPlan& plan, const PlanTarget& target);

/// What was asked: whether it fits, the deck's own layout and the simplest that fits, and what to
/// type. `command`: the deck and the overrides that were given. Nothing: see plan_json().
std::string answer(const LayoutPlan* plan, const LayoutSearch* search, const PlanCase& request,
                   const std::string& command);

/// The table of layouts that fit, or what comes closest.
std::string to_string(const LayoutSearch& search, const PlanCase& request);

/// How many the whole model of a deck has.
std::int64_t parameters_of(const Deck& deck);

/// One object: "target", "layout" (an exact plan) and "choices" where there was a search (nullptr:
/// there was none).
std::string plan_json(const LayoutPlan* plan, const LayoutSearch* search, const PlanCase& request);

}  // namespace choir
