#pragma once
// The communicators of one rank of a Layout: the world, the node, and one per axis.
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/comm/layout.hpp"

namespace choir {

/// How collectives along an axis travel. `automatic`: node-shared windows where the whole group
/// lives on one node, MPI otherwise. `mpi`: no windows anywhere. `node`: refused where a group
/// spans nodes.
enum class Transport { automatic, mpi, node };

class Mesh {
 public:
  /// Collective over the world (MPI must be initialised, see MpiSession). Throws DeckError on every
  /// rank when the layout does not have as many ranks as the world. `ranks_per_node` above 0 cuts
  /// each node into several that are taken for different ones (to rehearse several nodes on one).
  static std::unique_ptr<Mesh> over_world(const Layout& layout, Transport transport,
                                          int ranks_per_node = 0);
  /// Local: the mesh of `rank` of any layout with null communicators (nothing is sent).
  static std::unique_ptr<Mesh> planned(const Layout& layout, int rank, int ranks_per_node);

  const Layout& layout() const { return layout_; }
  const Coordinates& coordinates() const { return coordinates_; }
  int rank() const { return rank_; }
  /// Control plane: always MPI (or null), never windows.
  Communicator& world() { return *world_; }
  /// Ranks of this node, ordered by world rank; node-shared windows unless alone or Transport::mpi.
  Communicator& node() { return *node_; }
  int node_index() const { return node_index_; }
  int nodes() const { return nodes_; }
  /// Ranks that differ from this one along `axis` only, ordered by coordinate.
  Communicator& along(Axis axis) { return *axes_[static_cast<std::size_t>(axis)]; }
  /// Node of any world rank, as node_index() of that rank.
  int node_of(int rank) const { return node_of_rank_[static_cast<std::size_t>(rank)]; }
  /// Collective over `axis`: a communicator for host memory of those of its ranks that have the
  /// given coordinates along it (ascending; this rank among them).
  std::unique_ptr<Communicator> subgroup(Axis axis, const std::vector<int>& members,
                                         const std::string& name);

 private:
  Mesh() = default;
  Layout layout_;
  Coordinates coordinates_;
  int rank_ = 0, node_index_ = 0, nodes_ = 1;
  std::vector<int> node_of_rank_;
  Transport transport_ = Transport::automatic;
  bool planned_ = false;  // null communicators
  std::unique_ptr<Communicator> world_, node_;
  std::array<std::unique_ptr<Communicator>, kAxes> axes_;
};

}  // namespace choir
