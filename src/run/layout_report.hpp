#pragma once
// The layout of the ranks of a run on one screen: the axes and their groups, which of them cross
// nodes, the transport and the traffic of each axis per step, and the neighbours of a rank.
#include <array>
#include <string>
#include <vector>

#include "src/run/step_plan.hpp"

namespace choir {

struct LayoutFacts {
  Layout layout;
  int rank = 0;                   ///< the rank whose neighbours, transport and traffic are shown
  std::vector<int> node_of_rank;  ///< nodes from 0
  std::array<std::string, kAxes> transport{};  ///< of the groups of `rank`
  StepTraffic traffic{};                       ///< traffic of one step
};

/// `traffic` is the plan of this rank. Collective over the world of `mesh`.
LayoutFacts layout_facts(Mesh& mesh, const StepTraffic& traffic);

/// Nodes of ranks 0, 1 ..., with `ranks_per_node` on each; the last node may be smaller.
std::vector<int> nodes_of_ranks(int ranks, int ranks_per_node);

/// Number of groups along `axis` with ranks on more than one node.
int groups_across_nodes(const Layout& layout, Axis axis, const std::vector<int>& node_of_rank);

/// Lines of at most 100 columns; long lists of groups and ranks are abbreviated. Pure.
std::string layout_report(const LayoutFacts& facts);

}  // namespace choir
