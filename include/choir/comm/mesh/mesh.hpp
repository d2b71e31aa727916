#pragma once
// The communicators of one rank of a Layout: the world, the node, one for each axis, and one for
// the ranks with the same parameters.
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/comm/layout.hpp"
#include "choir/device/device.hpp"

namespace choir {

class Rehearsal;

/// How collectives along an axis travel. `automatic`: node-shared windows where the whole group
/// lives on one node, windows on each of its nodes and messages between them otherwise. `mpi`: no
/// windows anywhere. `node`: refused where a group spans nodes.
enum class Transport { automatic, mpi, node };

struct MeshOptions {
  Transport transport = Transport::automatic;
  /// Above 0: cuts each node into several that are taken for different ones (to rehearse several
  /// nodes on one).
  int ranks_per_node = 0;
  /// Who waits longer in a window, or for messages of another node, throws CommError. Seconds.
  double timeout_seconds = 300;
};

/// How collectives on device memory travel. `automatic`: by NCCL where every rank has it and a GPU
/// of its own, else staged through the host's transport.
struct DeviceTransport {
  enum class Way { automatic, nccl, staged } way = Way::automatic;
  bool shared_cards = false;  ///< some ranks share a GPU; equal on all ranks
  /// How many of Mesh::replica_group() will be in use at once: NCCL leaves them room on the GPU.
  int replica_groups = 0;
  double timeout_seconds = 300;  ///< of NCCL's set-up
  std::string nccl_library;      ///< a path; empty: where the system's loader looks
};

class Mesh {
 public:
  /// Collective over the world (MPI must be initialised, see MpiSession). Throws DeckError on every
  /// rank when the layout does not have as many ranks as the world.
  static std::unique_ptr<Mesh> over_world(const Layout& layout, const MeshOptions& options);
  static std::unique_ptr<Mesh> over_world(const Layout& layout, Transport transport,
                                          int ranks_per_node = 0);
  /// The same over the ranks of `ranks` (mpi or node; not kept), whose ranks become those of the
  /// mesh: collective over them, others need not know of it.
  static std::unique_ptr<Mesh> over(const Communicator& ranks, const Layout& layout,
                                    const MeshOptions& options);
  static std::unique_ptr<Mesh> over(const Communicator& ranks, const Layout& layout,
                                    Transport transport, int ranks_per_node = 0);
  /// Local: the mesh of `rank` of any layout with null communicators (nothing is sent).
  static std::unique_ptr<Mesh> planned(const Layout& layout, int rank, int ranks_per_node);
  /// Local: the same for host memory, in a rehearsal (rehearsal.hpp) with this book.
  static std::unique_ptr<Mesh> rehearsed(const Layout& layout, int rank, int ranks_per_node,
                                         Rehearsal& book);

  /// Collective over the world: from now on along() is for memory of `device`, which must outlive
  /// the mesh. Where the host sees that memory, nothing changes. DeckError on every rank when NCCL
  /// is asked for and cannot be used, CommError when it does not start.
  void attach(Device& device, const DeviceTransport& transport = {});
  /// Collective over the world, after attach(), for debugging: from now on ranks agree on each
  /// collective along an axis before it begins; see CallCheck.
  void check_calls();
  /// Why collectives are staged though that was not asked for; empty otherwise.
  const std::string& transport_note() const { return transport_note_; }

  const Layout& layout() const { return layout_; }
  const Coordinates& coordinates() const { return coordinates_; }
  int rank() const { return rank_; }
  /// Control plane: always MPI (or null), never windows.
  Communicator& world() { return *world_; }
  /// Ranks of this node, ordered by world rank; node-shared windows unless alone or Transport::mpi.
  Communicator& node() { return *node_; }
  int node_index() const { return node_index_; }
  int nodes() const { return nodes_; }
  /// Ranks that differ from this one along `axis` only, ordered by coordinate; for memory of the
  /// device that was attached, for host memory before.
  Communicator& along(Axis axis) {
    const auto& device = device_axes_[static_cast<std::size_t>(axis)];
    return device ? *device : host_along(axis);
  }
  /// The same ranks, for host memory.
  Communicator& host_along(Axis axis) { return *axes_[static_cast<std::size_t>(axis)]; }
  /// Node of any world rank, as node_index() of that rank.
  int node_of(int rank) const { return node_of_rank_[static_cast<std::size_t>(rank)]; }
  /// Layout::replicas() in this order, as along(): what gradients are summed over, what shares
  /// optimizer state, what must agree on parameters. Without a context axis it is along(data);
  /// otherwise another one than any axis has, so that gradients may travel while activations do.
  Communicator& replicas() {
    if (device_replicas_) return *device_replicas_;
    return replicas_ ? *replicas_ : along(Axis::data);
  }
  /// Collective over replicas(): a communicator of those of them with the given ranks there
  /// (ascending; this rank among them), for the memory that replicas() is for. It must end before
  /// the mesh.
  std::unique_ptr<Communicator> replica_group(const std::vector<int>& members,
                                              const std::string& name);
  /// The same ranks as replicas(), for host memory.
  Communicator& host_replicas() { return replicas_ ? *replicas_ : host_along(Axis::data); }
  /// Ranks that share one part of the batch: those that differ from this one along any axis but
  /// data, in the order of the world; for host memory.
  Communicator& host_peers() { return peers_ ? *peers_ : host_along(peer_axis()); }
  /// The world ranks of replicas().
  std::vector<int> replica_ranks() const { return layout_.replicas(rank_); }

 private:
  Mesh() = default;
  /// Makes a communicator of this name, of which this rank is one of so many.
  using Maker = std::function<std::unique_ptr<Communicator>(const std::string&, int, int)>;
  /// The mesh of a rank without others.
  static std::unique_ptr<Mesh> alone(const Layout& layout, int rank, int ranks_per_node,
                                     const Maker& make);
  /// The only axis beside data that has several ranks, or any if none has.
  Axis peer_axis() const;
  int replica_index() const {
    return coordinates_[Axis::data] * layout_.size(Axis::context) + coordinates_[Axis::context];
  }
  /// For memory of the device, over `host`, whose ranks in the world are `ranks`.
  std::unique_ptr<Communicator> on_device(Communicator& host, std::vector<int> ranks);
  Layout layout_;
  Coordinates coordinates_;
  int rank_ = 0, node_index_ = 0, nodes_ = 1;
  std::vector<int> node_of_rank_;
  Transport transport_ = Transport::automatic;
  bool planned_ = false;  // null communicators
  std::unique_ptr<Communicator> world_, node_;
  std::array<std::unique_ptr<Communicator>, kAxes> axes_, device_axes_;
  std::unique_ptr<Communicator> replicas_, device_replicas_;  // with a context axis
  std::unique_ptr<Communicator> peers_;                       // where no axis has just these ranks
  std::string transport_note_;
  double timeout_seconds_ = 300;  // of windows
  Device* device_ = nullptr;      // attached, where the host does not see its memory
  DeviceTransport device_transport_;
  bool nccl_ = false;  // every rank can use it
  int nccl_groups_ = 1;
  std::vector<std::unique_ptr<Communicator>> under_groups_;  // for host memory, of replica_group()
};

/// How fast the ranks of an axis reduce, as it was just measured.
struct AxisSpeed {
  Axis axis = Axis::data;
  int ranks = 1;
  std::string transport;
  std::size_t bytes = 0;
  double bus_gb_per_s = 0;  ///< as nccl-tests: 2(n-1)/n * bytes / s; 1e9
};

/// Collective over the world: the axes with more than one rank, each timed by the slowest rank of
/// this rank's group, the best of a few all-reduces of `bytes` in memory of `device`.
std::vector<AxisSpeed> measure_axes(Mesh& mesh, Device& device, std::size_t bytes);

}  // namespace choir
