#pragma once
// How the ranks of a run stand to each other, in one screen: the axes and their groups, which of
// them cross nodes, how and how much each axis talks in a step, and who the neighbours of a rank
// are.
#include <array>
#include <string>
#include <vector>

#include "choir/train/step/step_traffic.hpp"

namespace choir {

struct LayoutFacts {
  Layout layout;
  int rank = 0;                   ///< whose neighbours, transport and traffic these are
  std::vector<int> node_of_rank;  ///< nodes from 0
  std::array<std::string, kAxes> transport{};  ///< of the groups of `rank`
  StepTraffic traffic{};                       ///< of one step
};

/// Collective over the world of `mesh`. `traffic`: planned for this rank.
LayoutFacts layout_facts(Mesh& mesh, const StepTraffic& traffic);

/// Ranks 0, 1 ... on nodes of `ranks_per_node`, the last perhaps not full.
std::vector<int> nodes_of_ranks(int ranks, int ranks_per_node);

/// How many of the groups along `axis` have ranks on more than one node.
int groups_across_nodes(const Layout& layout, Axis axis, const std::vector<int>& node_of_rank);

/// Pure. Lines of at most 100 columns; groups and ranks beyond a few are abbreviated.
std::string layout_report(const LayoutFacts& facts);

}  // namespace choir
