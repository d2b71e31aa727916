#include "role_groups.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "choir/core/clock.hpp"
#include "choir/core/text.hpp"

namespace choir {
namespace {

/// The coordinates of the group along an axis.
std::set<int> places_of(const RoleGroup& group, Axis axis) {
  std::set<int> places;
  for (const RolePlan* role : group.roles) places.insert(role->at[axis]);
  return places;
}

/// "3", "0-7", "0, 2".
std::string list_text(const std::set<int>& numbers) {
  const int first = *numbers.begin(), last = *numbers.rbegin();
  if (first == last) return std::to_string(first);
  if (last - first + 1 == static_cast<int>(numbers.size()))
    return fmt::format("{}-{}", first, last);
  std::vector<std::string> texts;
  for (const int number : numbers) texts.push_back(std::to_string(number));
  return join(texts, ", ");
}

}  // namespace

bool same_memory_and_traffic(const StepPlan& a, const StepPlan& b) {
  const auto same_entry = [](const MemoryPlan::Entry& x, const MemoryPlan::Entry& y) {
    return x.name == y.name && x.bytes == y.bytes && x.shared == y.shared && x.place == y.place;
  };
  const auto same_traffic = [](const CommTraffic& x, const CommTraffic& y) {
    return x.calls == y.calls && x.bytes == y.bytes;
  };
  return std::equal(a.memory.entries.begin(), a.memory.entries.end(), b.memory.entries.begin(),
                    b.memory.entries.end(), same_entry) &&
         std::equal(a.traffic.begin(), a.traffic.end(), b.traffic.begin(), same_traffic) &&
         a.arena_bytes == b.arena_bytes;
}

std::vector<RoleGroup> group_roles(const LayoutPlan& plan) {
  std::vector<RoleGroup> groups;
  for (const RolePlan& role : plan.roles) {
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const RoleGroup& other) {
      return same_memory_and_traffic(other.roles.front()->plan, role.plan);
    });
    if (group == groups.end())
      groups.push_back({{&role}});
    else
      group->roles.push_back(&role);
  }
  return groups;
}

std::string work_of(const RoleGroup& group) {
  const auto range = [&](auto value, auto text) {
    double least = value(group.roles.front()->plan), most = least;
    for (const RolePlan* role : group.roles) {
      least = std::min(least, value(role->plan));
      most = std::max(most, value(role->plan));
    }
    const std::string high = text(most);
    return text(least) == high ? high : text(least) + " to " + high;
  };
  return fmt::format("work of one step: {} GFLOP, {} touched",
                     range([](const StepPlan& plan) { return plan.flops; },
                           [](double flops) { return fmt::format("{:.2f}", flops / 1e9); }),
                     range([](const StepPlan& plan) { return plan.bytes; }, format_bytes));
}

std::string describe(const RoleGroup& group, const LayoutPlan& plan) {
  if (group.roles.size() == plan.roles.size()) return "every rank";
  const std::size_t ranks = group.roles.size() * static_cast<std::size_t>(plan.ranks_of_role());
  std::vector<std::string> parts;
  std::size_t product = 1;
  for (const auto& [axis, name] :
       {std::pair{Axis::pipeline, "stage"}, std::pair{Axis::tensor, "tensor"},
        std::pair{Axis::context, "context"}})
    if (const int size = plan.layout.size(axis); size > 1) {
      const std::set<int> places = places_of(group, axis);
      product *= places.size();
      parts.push_back(fmt::format("{} {} of {}", name, list_text(places), size));
    }
  if (product == group.roles.size()) return fmt::format("{} ({} ranks)", join(parts, ", "), ranks);
  std::set<int> first;  // the roles are not a product of coordinates
  for (const RolePlan* role : group.roles) first.insert(role->rank);
  return fmt::format("the roles of ranks {} ({} ranks)", list_text(first), ranks);
}

}  // namespace choir
