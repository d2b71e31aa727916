#include "choir/comm/mesh/mesh.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/comm/communicator_parts.hpp"
#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/comm/nccl/nccl_communicator.hpp"
#include "src/comm/nccl_needs.hpp"
#include "src/comm/node/node_communicator.hpp"
#include "src/comm/node/node_windows.hpp"
#include "src/comm/null_communicator.hpp"
#include "src/comm/staged/staged_communicator.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/device/collective_share.hpp"
#include "src/device/cuda.hpp"

namespace choir {
namespace {

using Way = DeviceTransport::Way;

// A group made by a split. It is freed once the communicators have duplicated it.
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

// Returns the lowest rank among the ranks that share memory with this one, further divided in a
// rehearsal of several nodes. It is the colour of the group.
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

// Every rank checks the same table, so that all members of a group decide alike.
void refuse_split_groups(const Layout& layout, const Nodes& nodes) {
  for (int a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    for (const auto& group : layout.groups({axis}))
      if (!on_one_node(group, nodes))
        throw DeckError(
            fmt::format("the node transport was requested, but ranks {} and {} of axis {} are "
                        "on different nodes",
                        group.front(), group.back(), short_name(axis)),
            "choose the automatic or the mpi transport");
  }
}

/// True if the node of every rank of the group has room for some windows. Collective.
bool has_shared_memory(MPI_Comm group, const std::string& name) {
  double room = free_shared_memory();
  mpi_check(MPI_Allreduce(MPI_IN_PLACE, &room, 1, MPI_DOUBLE, MPI_MIN, group), "MPI_Allreduce",
            name);
  return room >= kLeastSharedMemory;
}

/// A record of windows that do not fit, if the transport may be chosen; otherwise they are refused.
std::shared_ptr<WindowShortage> tolerated_shortage(Transport transport) {
  return transport == Transport::automatic ? std::make_shared<WindowShortage>() : nullptr;
}

/// Chooses the transport of a group from the nodes of its members, equally on every rank.
std::unique_ptr<Communicator> make_communicator(MPI_Comm group, const std::string& name,
                                                const std::vector<int>& members, int rank,
                                                const Nodes& nodes, const MeshOptions& options,
                                                std::shared_ptr<WindowShortage> shortage) {
  NodeOptions windows;
  windows.timeout_seconds = options.timeout_seconds;
  windows.shortage = std::move(shortage);
  if (options.transport == Transport::mpi || members.size() == 1 ||
      (windows.shortage && !has_shared_memory(group, name)))
    return make_mpi_communicator(group, name);
  if (on_one_node(members, nodes)) return make_node_communicator(group, name, windows);
  return make_two_level_communicator(group, name, nodes.of_rank[static_cast<std::size_t>(rank)],
                                     windows);
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

/// Why this rank cannot use NCCL; empty if it can.
std::string nccl_obstacle(const Device& device, const DeviceTransport& transport) {
  if (device.kind() != DeviceKind::cuda)
    return fmt::format("NCCL does not support the {} device", name_of(device.kind()));
  if (transport.shared_cards)
    return "ranks share a GPU or slices of one, which NCCL does not allow";
  return nccl_availability(transport.nccl_library).reason;
}

}  // namespace

std::unique_ptr<Mesh> Mesh::over_world(const Layout& layout, Transport transport,
                                       int ranks_per_node) {
  return over_world(layout, {.transport = transport, .ranks_per_node = ranks_per_node});
}

std::unique_ptr<Mesh> Mesh::over(const Communicator& group, const Layout& layout,
                                 Transport transport, int ranks_per_node) {
  return over(group, layout, {.transport = transport, .ranks_per_node = ranks_per_node});
}

std::unique_ptr<Mesh> Mesh::over_world(const Layout& layout, const MeshOptions& options) {
  int started = 0;
  MPI_Initialized(&started);
  CHOIR_CHECK(started != 0, "Mesh::over_world needs an MpiSession");
  return over(*make_mpi_communicator(MPI_COMM_WORLD, "started"), layout, options);
}

std::unique_ptr<Mesh> Mesh::over(const Communicator& group, const Layout& layout,
                                 const MeshOptions& options) {
  const MPI_Comm all = mpi_handle(group);
  const int rank = group.rank(), ranks = group.size();
  if (layout.ranks() != ranks)
    throw DeckError(
        fmt::format("parallel: the layout {} has {} ranks, but {} were started", layout.to_string(),
                    layout.ranks(), ranks),
        fmt::format("start with mpiexec -n {}, or set parallel.data to \"auto\"", layout.ranks()));
  const Nodes nodes = find_nodes(all, rank, ranks, options.ranks_per_node);
  if (options.transport == Transport::node) refuse_split_groups(layout, nodes);

  std::unique_ptr<Mesh> mesh(new Mesh());
  mesh->layout_ = layout;
  mesh->rank_ = rank;
  mesh->coordinates_ = layout.coordinates(rank);
  mesh->node_index_ = nodes.of_rank[static_cast<std::size_t>(rank)];
  mesh->nodes_ = nodes.count;
  mesh->node_of_rank_ = nodes.of_rank;
  mesh->transport_ = options.transport;
  mesh->timeout_seconds_ = options.timeout_seconds;
  mesh->world_ = make_mpi_communicator(all, "world");
  const std::shared_ptr<WindowShortage> shortage = tolerated_shortage(options.transport);
  const auto communicator = [&](MPI_Comm comm, const std::string& name,
                                const std::vector<int>& members) {
    return make_communicator(comm, name, members, rank, nodes, options, shortage);
  };
  {
    const SplitGroup node(all, mesh->node_index_, rank);
    std::vector<int> neighbours;
    for (int r = 0; r < ranks; ++r)
      if (mesh->node_of(r) == mesh->node_index_) neighbours.push_back(r);
    mesh->node_ = communicator(node.comm, "node", neighbours);
  }
  // The communicator of the members in order; this rank is at `index`.
  const auto group_of = [&](const std::vector<int>& members, int index, const std::string& name) {
    const SplitGroup split(all, members.front(), index);
    return communicator(split.comm, name, members);
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
  return alone(layout, rank, ranks_per_node, [](const std::string& name, int place, int size) {
    return make_null_communicator(name, place, size);
  });
}

std::unique_ptr<Mesh> Mesh::rehearsed(const Layout& layout, int rank, int ranks_per_node,
                                      Rehearsal& book) {
  return alone(layout, rank, ranks_per_node, [&](const std::string& name, int place, int size) {
    return make_rehearsed_communicator(name, place, size, book);
  });
}

std::unique_ptr<Mesh> Mesh::alone(const Layout& layout, int rank, int ranks_per_node,
                                  const Maker& make) {
  CHOIR_CHECK(ranks_per_node >= 1, "{} ranks per node", ranks_per_node);
  std::unique_ptr<Mesh> mesh(new Mesh());
  mesh->layout_ = layout;
  mesh->rank_ = rank;
  mesh->coordinates_ = layout.coordinates(rank);
  mesh->node_index_ = rank / ranks_per_node;
  mesh->nodes_ = (layout.ranks() + ranks_per_node - 1) / ranks_per_node;
  mesh->planned_ = true;
  for (int r = 0; r < layout.ranks(); ++r) mesh->node_of_rank_.push_back(r / ranks_per_node);
  mesh->world_ = make("world", rank, layout.ranks());
  const int first = mesh->node_index_ * ranks_per_node;
  mesh->node_ = make("node", rank - first, std::min(ranks_per_node, layout.ranks() - first));
  for (int a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    mesh->axes_[static_cast<std::size_t>(a)] =
        make(std::string(short_name(axis)), mesh->coordinates_[axis], layout.size(axis));
  }
  if (layout.size(Axis::context) > 1)
    mesh->replicas_ = make(kReplicas, mesh->replica_index(),
                           layout.size(Axis::data) * layout.size(Axis::context));
  if (several_peer_axes(layout)) {
    const std::vector<int> peers = peers_of(layout, rank);
    const auto index = std::find(peers.begin(), peers.end(), rank) - peers.begin();
    mesh->peers_ = make(kPeers, static_cast<int>(index), static_cast<int>(peers.size()));
  }
  return mesh;
}

Axis Mesh::peer_axis() const {
  const auto found = std::find_if(kPeerAxes.begin(), kPeerAxes.end(),
                                  [&](Axis axis) { return layout_.size(axis) > 1; });
  return found == kPeerAxes.end() ? Axis::tensor : *found;
}

std::unique_ptr<Communicator> Mesh::replica_group(const std::vector<int>& members,
                                                  const std::string& name) {
  const Communicator& all = host_replicas();
  const auto mine = std::find(members.begin(), members.end(), all.rank());
  CHOIR_CHECK(mine != members.end(), "{}: rank {} is no member", name, rank_);
  const auto size = static_cast<int>(members.size());
  if (planned_) {
    const auto place = static_cast<int>(mine - members.begin());
    Rehearsal* const book = rehearsal_of(all);
    return book == nullptr ? make_null_communicator(name, place, size, device_)
                           : make_rehearsed_communicator(name, place, size, *book);
  }
  const std::vector<int> everyone = replica_ranks();
  std::vector<int> ranks;
  for (const int member : members) ranks.push_back(everyone[static_cast<std::size_t>(member)]);
  const SplitGroup group(choir::mpi_handle(all), members.front(), all.rank());
  std::shared_ptr<WindowShortage> shortage = shortage_of(*node_);
  if (!shortage) shortage = tolerated_shortage(transport_);
  auto host = make_communicator(group.comm, name, ranks, rank_, {node_of_rank_, nodes_},
                                {.transport = transport_, .timeout_seconds = timeout_seconds_},
                                std::move(shortage));
  if (!device_) return host;
  under_groups_.push_back(std::move(host));
  return on_device(*under_groups_.back(), std::move(ranks));
}

std::vector<Communicator*> Mesh::stage_channels(int count) {
  Communicator& stages = along(Axis::pipeline);
  std::vector<Communicator*> channels{&stages};
  for (int c = 1; c < count; ++c) {
    const auto duplicate = static_cast<std::size_t>(c - 1);
    if (duplicate == stage_channels_.size())
      stage_channels_.push_back(stages.duplicate(fmt::format("{} {}", stages.name(), c + 1)));
    channels.push_back(stage_channels_[duplicate].get());
  }
  return channels;
}

namespace {

/// The number of NCCL's communicators that a rank uses on its GPU at the same time.
int nccl_communicators(const Layout& layout, const DeviceTransport& transport) {
  int count = transport.replica_groups + (layout.size(Axis::context) > 1 ? 1 : 0);
  if (layout.size(Axis::pipeline) > 1) count += transport.stage_channels - 1;
  for (int a = 0; a < kAxes; ++a) count += layout.size(static_cast<Axis>(a)) > 1;
  return count;
}

}  // namespace

std::unique_ptr<Communicator> Mesh::on_device(Communicator& host, std::vector<int> ranks) {
  if (!nccl_ || host.size() == 1) return make_staged_communicator(host, *device_, host.name());
  return make_nccl_communicator(host, *device_, host.name(),
                                {.timeout_seconds = device_transport_.timeout_seconds,
                                 .library = device_transport_.nccl_library,
                                 .ranks = std::move(ranks),
                                 .communicators = nccl_communicators(layout_, device_transport_),
                                 .register_memory = device_transport_.register_memory});
}

// A stage sends to its neighbours; sequences are exchanged with all ranks of the context axis.
// Groups of replicas are at most as large as all replicas.
std::size_t nccl_memory(const Mesh& mesh, const DeviceTransport& transport, int multiprocessors,
                        int compute_major) {
  constexpr int kMulticastMajor = 9;
  const Layout& layout = mesh.layout();
  const int blocks = nccl_blocks(multiprocessors, nccl_communicators(layout, transport));
  const auto of = [&](const std::vector<int>& ranks, int peers) -> std::size_t {
    std::set<int> nodes;
    for (const int rank : ranks) nodes.insert(mesh.node_of(rank));
    const auto size = static_cast<int>(ranks.size());
    return nccl_bytes({.ranks = size,
                       .nodes = static_cast<int>(nodes.size()),
                       .blocks = blocks,
                       .peers = std::min(peers, size - 1),
                       .multicast = compute_major >= kMulticastMajor});
  };
  const auto with_tree = [&](std::size_t bytes) {
    return bytes == 0 ? 0 : bytes + kTreeScratchBytes;
  };
  constexpr int kNeighbours = 2;
  const std::vector<int> replicas = mesh.replica_ranks();
  std::size_t sum = static_cast<std::size_t>(transport.replica_groups) * of(replicas, 0);
  if (layout.size(Axis::context) > 1) sum += with_tree(of(replicas, 0));
  for (int a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    const std::vector<int> ranks = layout.group(mesh.rank(), {axis});
    const int peers = axis == Axis::pipeline  ? kNeighbours
                      : axis == Axis::context ? layout.size(axis)
                                              : 0;
    sum += with_tree(of(ranks, peers));
    if (axis == Axis::pipeline)
      sum += static_cast<std::size_t>(transport.stage_channels - 1) * of(ranks, peers);
  }
  return sum;
}

// Tensors of the arena have the same offsets on all ranks of these axes.
std::shared_ptr<void> Mesh::block_for_collectives(std::size_t bytes) {
  std::vector<Communicator*> users;
  for (const Axis axis : {Axis::tensor, Axis::context})
    if (nccl_ && layout_.size(axis) > 1) users.push_back(&along(axis));
  if (users.empty()) return nullptr;
  if (!device_transport_.register_memory) {
    registration_note_ =
        "activations are not registered with NCCL, as parallel.register_memory says";
    return nullptr;
  }
  NcclBlock block = make_nccl_block(*device_, users, bytes);
  if (block.memory)
    registration_note_ = fmt::format("activations are registered with NCCL on {}",
                                     counted(block.registrations, "communicator"));
  else
    registration_note_ = fmt::format(
        "activations ({}) are not registered with NCCL: it is too old, or would take more than an "
        "eighth more memory for them",
        format_bytes(static_cast<double>(bytes)));
  return std::move(block.memory);
}

void Mesh::attach(Device& device, const DeviceTransport& transport) {
  if (device.host_visible()) return;
  device_ = &device;
  device_transport_ = transport;
  if (planned_) {
    for (int a = 0; a < kAxes; ++a) {
      const Communicator& host = host_along(static_cast<Axis>(a));
      device_axes_[static_cast<std::size_t>(a)] =
          make_null_communicator(host.name(), host.rank(), host.size(), &device);
    }
    if (replicas_)
      device_replicas_ =
          make_null_communicator(replicas_->name(), replicas_->rank(), replicas_->size(), &device);
    return;
  }
  const bool wanted = transport.way != Way::staged && world_->size() > 1;
  const std::string obstacle = wanted ? nccl_obstacle(device, transport) : "";
  if (transport.way == Way::nccl)
    together(*world_, [&] {
      if (!obstacle.empty())
        throw DeckError("parallel.transport is \"nccl\", but " + obstacle,
                        "set parallel.transport to \"auto\" or \"staged\"");
    });
  std::int32_t able = wanted && obstacle.empty();
  world_->all_reduce(&able, 1, DType::i32, ReduceOp::min);
  if (wanted && able == 0)
    transport_note_ = obstacle.empty() ? "NCCL cannot be used on another rank" : obstacle;
  nccl_ = able != 0;
  if (nccl_) collective_room(device).reserve(transport.free_multiprocessors);
  for (int a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    device_axes_[static_cast<std::size_t>(a)] =
        on_device(host_along(axis), layout_.group(rank_, {axis}));
  }
  if (replicas_) device_replicas_ = on_device(*replicas_, replica_ranks());
}

// Mismatches name world ranks. Calls on device communicators are checked over the host
// communicator.
void Mesh::check_calls() {
  checks_calls_ = true;
  const auto check = [](Communicator* checked, Communicator& host, std::vector<int> ranks) {
    if (checked == nullptr || host.size() == 1) return;
    checked->check_calls(std::make_unique<CallCheck>(host.duplicate(host.name() + " (check)"),
                                                     checked->name(), std::move(ranks)));
  };
  std::vector<int> everyone;
  for (int r = 0; r < layout_.ranks(); ++r) everyone.push_back(r);
  check(world_.get(), *world_, everyone);
  for (int a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    const std::vector<int> ranks = layout_.group(rank_, {axis});
    check(axes_[static_cast<std::size_t>(a)].get(), host_along(axis), ranks);
    check(device_axes_[static_cast<std::size_t>(a)].get(), host_along(axis), ranks);
  }
  if (!replicas_) return;
  check(replicas_.get(), *replicas_, replica_ranks());
  check(device_replicas_.get(), *replicas_, replica_ranks());
}

std::vector<AxisSpeed> measure_axes(Mesh& mesh, Device& device, std::size_t bytes) {
  constexpr int kRounds = 4;  // the first round warms up
  std::vector<AxisSpeed> speeds;
  for (int a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    Communicator& comm = mesh.along(axis);
    if (comm.size() == 1) continue;
    const auto memory = comm.allocate(bytes);
    double best = 0;
    for (int round = 0; round < kRounds; ++round) {
      mesh.world().barrier();
      const double from = now_seconds();
      comm.all_reduce(memory->data(), bytes / sizeof(float), DType::f32, ReduceOp::sum);
      Stream(device).synchronize();
      double seconds = now_seconds() - from;
      mesh.host_along(axis).all_reduce(&seconds, 1, DType::f64, ReduceOp::max);
      if (round > 0) best = round == 1 ? seconds : std::min(best, seconds);
    }
    comm.reset_traffic();
    const double n = comm.size();
    speeds.push_back({axis, comm.size(), comm.transport(), bytes,
                      2 * (n - 1) / n * static_cast<double>(bytes) / best / 1e9});
  }
  return speeds;
}

}  // namespace choir
