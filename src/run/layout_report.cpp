#include "src/run/layout_report.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>

#include "src/core/quantities.hpp"
#include "src/core/text.hpp"

namespace choir {
namespace {

constexpr std::array<Axis, kAxes> kInnermostFirst{Axis::tensor, Axis::context, Axis::data,
                                                  Axis::pipeline};

std::size_t index_of(Axis axis) {
  return static_cast<std::size_t>(axis);
}

/// "0-3" for neighbours, "0,4,8", or with at most `most` numbers "0,4,...,60", "0,...,60".
std::string members_text(const std::vector<int>& group, std::size_t most) {
  const auto last = static_cast<std::size_t>(group.back() - group.front());
  if (group.size() > 2 && last + 1 == group.size())
    return fmt::format("{}-{}", group.front(), group.back());
  std::vector<std::string> texts;
  for (const int rank : group) texts.push_back(std::to_string(rank));
  if (texts.size() <= most) return join(texts, ",");
  texts = {texts[0], texts[1], "...", texts.back()};
  if (most < texts.size()) texts.erase(texts.begin() + 1);
  return join(texts, ",");
}

/// The groups, shortened to the available width: "{0-3} {4-7}", "{0,4} {1,5} ... {59,63}".
std::string groups_text(const std::vector<std::vector<int>>& groups) {
  constexpr std::size_t kWidth = 36;
  std::string text;
  for (const std::size_t most : {4, 3}) {
    std::vector<std::string> texts;
    for (const auto& group : groups) texts.push_back("{" + members_text(group, most) + "}");
    if (std::string all = join(texts, " "); all.size() <= kWidth) return all;
    const std::string tail = texts.size() > 1 ? " ... " + texts.back() : "";
    if (texts.size() > 2)
      text = texts[0] + " " + texts[1] + tail;
    else
      text = join(texts, " ");
    if (text.size() > kWidth) text = texts[0] + tail;
    if (text.size() <= kWidth) break;
  }
  return text;
}

std::string crossing_text(const LayoutFacts& facts, Axis axis, std::size_t groups) {
  const int across = groups_across_nodes(facts.layout, axis, facts.node_of_rank);
  if (across == 0) return "no";
  return across == static_cast<int>(groups) ? "yes" : fmt::format("{} of them", across);
}

/// Stages form a line; on other axes the neighbours form a ring.
std::string neighbours_text(const LayoutFacts& facts, Axis axis) {
  const Coordinates here = facts.layout.coordinates(facts.rank);
  const int size = facts.layout.size(axis);
  const auto neighbour = [&](int by) -> std::string {
    Coordinates there = here;
    there[axis] = (here[axis] + by + size) % size;
    const bool line = axis == Axis::pipeline;
    if (line && (here[axis] + by < 0 || here[axis] + by >= size)) return "none";
    return "rank " + std::to_string(facts.layout.rank(there));
  };
  return fmt::format("    {} {} of {}{}: previous {}, next {}\n", short_name(axis), here[axis],
                     size, axis == Axis::pipeline ? " stages" : "", neighbour(-1), neighbour(1));
}

int count_nodes(const std::vector<int>& node_of_rank) {
  return 1 + *std::max_element(node_of_rank.begin(), node_of_rank.end());
}

/// "4 nodes of 8", or "2 nodes of 4 to 8" if they differ.
std::string nodes_text(const LayoutFacts& facts) {
  std::vector<int> ranks(static_cast<std::size_t>(count_nodes(facts.node_of_rank)));
  for (const int node : facts.node_of_rank) ++ranks[static_cast<std::size_t>(node)];
  const auto [least, most] = std::minmax_element(ranks.begin(), ranks.end());
  if (ranks.size() == 1) return "one node";
  return *least == *most ? fmt::format("{} nodes of {}", ranks.size(), *most)
                         : fmt::format("{} nodes of {} to {}", ranks.size(), *least, *most);
}

}  // namespace

LayoutFacts layout_facts(Mesh& mesh, const StepTraffic& traffic) {
  LayoutFacts facts{.layout = mesh.layout(), .rank = mesh.rank(), .traffic = traffic};
  for (int rank = 0; rank < mesh.world().size(); ++rank)
    facts.node_of_rank.push_back(mesh.node_of(rank));
  for (const Axis axis : kInnermostFirst)
    facts.transport[index_of(axis)] = mesh.along(axis).transport();
  return facts;
}

std::vector<int> nodes_of_ranks(int ranks, int ranks_per_node) {
  std::vector<int> nodes;
  for (int rank = 0; rank < ranks; ++rank) nodes.push_back(rank / ranks_per_node);
  return nodes;
}

int groups_across_nodes(const Layout& layout, Axis axis, const std::vector<int>& node_of_rank) {
  const auto groups = layout.groups({axis});
  const auto node = [&](int rank) { return node_of_rank[static_cast<std::size_t>(rank)]; };
  return static_cast<int>(std::count_if(groups.begin(), groups.end(), [&](const auto& group) {
    return std::any_of(group.begin(), group.end(),
                       [&](int rank) { return node(rank) != node(group.front()); });
  }));
}

std::string layout_report(const LayoutFacts& facts) {
  const Layout& layout = facts.layout;
  if (layout.ranks() == 1) return "layout: single rank";
  std::string text = fmt::format(
      "layout: {} on {} ranks, {}, order {}\n"
      "  axis ranks  groups                                crosses nodes "
      "transport  calls and bytes a step\n",
      layout.to_string(), layout.ranks(), nodes_text(facts), layout.order());
  std::string neighbours;
  for (const Axis axis : kInnermostFirst) {
    if (layout.size(axis) == 1) continue;
    const auto groups = layout.groups({axis});
    const CommTraffic& traffic = facts.traffic[index_of(axis)];
    text += fmt::format("  {:<4} {:>5}  {:<36}  {:<13} {:<9}  {} x, {}\n", short_name(axis),
                        layout.size(axis), groups_text(groups),
                        crossing_text(facts, axis, groups.size()), facts.transport[index_of(axis)],
                        format_count(traffic.calls), format_bytes(traffic.bytes));
    neighbours += neighbours_text(facts, axis);
  }
  text += fmt::format("  rank {} is\n", facts.rank) + neighbours;
  text.pop_back();
  return text;
}

}  // namespace choir
