#include "choir/comm/mesh.hpp"

#include <algorithm>

#include "choir/comm/mpi_communicator.hpp"
#include "choir/comm/node_communicator.hpp"
#include "choir/comm/null_communicator.hpp"
#include "choir/core/error.hpp"

namespace choir {
namespace {

// A group made by a split, freed when the communicators have their own copies.
struct SplitGroup {
  SplitGroup(MPI_Comm from, int color, int key) {
    mpi_check(MPI_Comm_split(from, color, key, &comm), "MPI_Comm_split", "world");
  }
  ~SplitGroup() { MPI_Comm_free(&comm); }
  SplitGroup(const SplitGroup&) = delete;
  SplitGroup& operator=(const SplitGroup&) = delete;
  MPI_Comm comm = MPI_COMM_NULL;
};

struct Nodes {
  std::vector<int> of_rank{};  ///< node of each world rank, nodes numbered by their lowest rank
  int count = 1;
};

// Ranks that can share memory, cut further when a rehearsal asks for it: the colour is the lowest
// rank.
int lowest_rank_on_node(MPI_Comm all, int rank, int ranks_per_node) {
  MPI_Comm node = MPI_COMM_NULL;
  mpi_check(MPI_Comm_split_type(all, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node),
            "MPI_Comm_split_type", "world");
  int inside = 0, size = 1;
  MPI_Comm_rank(node, &inside);
  MPI_Comm_size(node, &size);
  std::vector<int> members(static_cast<std::size_t>(size));
  members[static_cast<std::size_t>(inside)] = rank;
  const int code =
      MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, members.data(), 1, MPI_INT, node);
  MPI_Comm_free(&node);
  mpi_check(code, "MPI_Allgather", "node");
  const int first = ranks_per_node > 0 ? inside - inside % ranks_per_node : 0;
  return members[static_cast<std::size_t>(first)];
}

Nodes find_nodes(MPI_Comm all, int rank, int ranks, int ranks_per_node) {
  std::vector<int> lowest(static_cast<std::size_t>(ranks));
  lowest[static_cast<std::size_t>(rank)] = lowest_rank_on_node(all, rank, ranks_per_node);
  mpi_check(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, lowest.data(), 1, MPI_INT, all),
            "MPI_Allgather", "world");
  std::vector<int> leaders = lowest;
  std::sort(leaders.begin(), leaders.end());
  leaders.erase(std::unique(leaders.begin(), leaders.end()), leaders.end());
  Nodes nodes;
  nodes.count = static_cast<int>(leaders.size());
  for (const int leader : lowest)
    nodes.of_rank.push_back(static_cast<int>(
        std::lower_bound(leaders.begin(), leaders.end(), leader) - leaders.begin()));
  return nodes;
}

bool on_one_node(const std::vector<int>& group, const Nodes& nodes) {
  const auto node = [&](int rank) { return nodes.of_rank[static_cast<std::size_t>(rank)]; };
  return std::all_of(group.begin(), group.end(), [&](int r) { return node(r) == node(group[0]); });
}

// The same decision on every rank, from the same table: no group may choose differently from its
// members.
void refuse_split_groups(const Layout& layout, const Nodes& nodes) {
  for (int a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    for (const auto& group : layout.groups({axis}))
      if (!on_one_node(group, nodes))
        throw DeckError(
            fmt::format("the node transport was asked for, but ranks {} and {} of axis {} are "
                        "on different nodes",
                        group.front(), group.back(), short_name(axis)),
            "choose the automatic or the mpi transport");
  }
}

std::unique_ptr<Communicator> make_communicator(MPI_Comm group, const std::string& name,
                                                bool windows) {
  if (windows) return make_node_communicator(group, name);
  return make_mpi_communicator(group, name);
}

constexpr const char* kReplicas = "dp-cp";
constexpr const char* kPeers = "peers";
constexpr std::array kPeerAxes{Axis::tensor, Axis::context, Axis::pipeline};

bool several_peer_axes(const Layout& layout) {
  return std::count_if(kPeerAxes.begin(), kPeerAxes.end(),
                       [&](Axis axis) { return layout.size(axis) > 1; }) > 1;
}

std::vector<int> peers_of(const Layout& layout, int rank) {
  return layout.group(rank, {kPeerAxes.begin(), kPeerAxes.end()});
}

}  // namespace

std::unique_ptr<Mesh> Mesh::over_world(const Layout& layout, Transport transport,
                                       int ranks_per_node) {
  int started = 0;
  MPI_Initialized(&started);
  CHOIR_CHECK(started != 0, "Mesh::over_world needs an MpiSession");
  return over(*make_mpi_communicator(MPI_COMM_WORLD, "started"), layout, transport, ranks_per_node);
}

std::unique_ptr<Mesh> Mesh::over(const Communicator& group, const Layout& layout,
                                 Transport transport, int ranks_per_node) {
  const MPI_Comm all = mpi_handle(group);
  const int rank = group.rank(), ranks = group.size();
  if (layout.ranks() != ranks)
    throw DeckError(
        fmt::format("parallel: the layout {} has {} ranks, but {} were started", layout.to_string(),
                    layout.ranks(), ranks),
        fmt::format("start with mpiexec -n {}, or set parallel.data to \"auto\"", layout.ranks()));
  const Nodes nodes = find_nodes(all, rank, ranks, ranks_per_node);
  if (transport == Transport::node) refuse_split_groups(layout, nodes);

  std::unique_ptr<Mesh> mesh(new Mesh());
  mesh->layout_ = layout;
  mesh->rank_ = rank;
  mesh->coordinates_ = layout.coordinates(rank);
  mesh->node_index_ = nodes.of_rank[static_cast<std::size_t>(rank)];
  mesh->nodes_ = nodes.count;
  mesh->node_of_rank_ = nodes.of_rank;
  mesh->transport_ = transport;
  mesh->world_ = make_mpi_communicator(all, "world");
  {
    const SplitGroup node(all, mesh->node_index_, rank);
    int on_node = 1;
    MPI_Comm_size(node.comm, &on_node);
    mesh->node_ = make_communicator(node.comm, "node", transport != Transport::mpi && on_node > 1);
  }
  // The members in order, this rank at `index`.
  const auto group_of = [&](const std::vector<int>& members, int index, const std::string& name) {
    const SplitGroup split(all, members.front(), index);
    const bool windows =
        transport != Transport::mpi && members.size() > 1 && on_one_node(members, nodes);
    return make_communicator(split.comm, name, windows);
  };
  for (int a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    mesh->axes_[static_cast<std::size_t>(a)] = group_of(
        layout.group(rank, {axis}), mesh->coordinates_[axis], std::string(short_name(axis)));
  }
  if (layout.size(Axis::context) > 1)
    mesh->replicas_ = group_of(mesh->replica_ranks(), mesh->replica_index(), kReplicas);
  if (several_peer_axes(layout)) mesh->peers_ = group_of(peers_of(layout, rank), rank, kPeers);
  return mesh;
}

std::unique_ptr<Mesh> Mesh::planned(const Layout& layout, int rank, int ranks_per_node) {
  CHOIR_CHECK(ranks_per_node >= 1, "{} ranks per node", ranks_per_node);
  std::unique_ptr<Mesh> mesh(new Mesh());
  mesh->layout_ = layout;
  mesh->rank_ = rank;
  mesh->coordinates_ = layout.coordinates(rank);
  mesh->node_index_ = rank / ranks_per_node;
  mesh->nodes_ = (layout.ranks() + ranks_per_node - 1) / ranks_per_node;
  mesh->planned_ = true;
  for (int r = 0; r < layout.ranks(); ++r) mesh->node_of_rank_.push_back(r / ranks_per_node);
  mesh->world_ = make_null_communicator("world", rank, layout.ranks());
  const int first = mesh->node_index_ * ranks_per_node;
  mesh->node_ = make_null_communicator("node", rank - first,
                                       std::min(ranks_per_node, layout.ranks() - first));
  for (int a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    mesh->axes_[static_cast<std::size_t>(a)] = make_null_communicator(
        std::string(short_name(axis)), mesh->coordinates_[axis], layout.size(axis));
  }
  if (layout.size(Axis::context) > 1)
    mesh->replicas_ = make_null_communicator(kReplicas, mesh->replica_index(),
                                             layout.size(Axis::data) * layout.size(Axis::context));
  if (several_peer_axes(layout)) {
    const std::vector<int> peers = peers_of(layout, rank);
    const auto index = std::find(peers.begin(), peers.end(), rank) - peers.begin();
    mesh->peers_ =
        make_null_communicator(kPeers, static_cast<int>(index), static_cast<int>(peers.size()));
  }
  return mesh;
}

Axis Mesh::peer_axis() const {
  const auto found = std::find_if(kPeerAxes.begin(), kPeerAxes.end(),
                                  [&](Axis axis) { return layout_.size(axis) > 1; });
  return found == kPeerAxes.end() ? Axis::tensor : *found;
}

std::unique_ptr<Communicator> Mesh::subgroup(Axis axis, const std::vector<int>& members,
                                             const std::string& name) {
  const auto mine = std::find(members.begin(), members.end(), coordinates_[axis]);
  CHOIR_CHECK(mine != members.end(), "{}: rank {} is no member", name, rank_);
  const auto size = static_cast<int>(members.size());
  if (planned_) return make_null_communicator(name, static_cast<int>(mine - members.begin()), size);
  std::vector<int> world_ranks;
  for (const int at : members) {
    Coordinates other = coordinates_;
    other[axis] = at;
    world_ranks.push_back(layout_.rank(other));
  }
  const Communicator& all = *axes_[static_cast<std::size_t>(axis)];
  const SplitGroup group(choir::mpi_handle(all), members.front(), coordinates_[axis]);
  const bool windows =
      transport_ != Transport::mpi && size > 1 && on_one_node(world_ranks, {node_of_rank_, nodes_});
  return make_communicator(group.comm, name, windows);
}

}  // namespace choir
