#pragma once
// The communicators of one rank of a Layout: the world, the node, one per axis, and one over the
// ranks that hold the same parameters.
#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/comm/layout.hpp"
#include "choir/device/device.hpp"

namespace choir {

class Rehearsal;

/// Transport of collectives along an axis. `automatic`: node-shared windows if the whole group is
/// on one node, otherwise windows within each node and messages between nodes. `mpi`: no windows.
/// `node`: windows only; refused if a group spans nodes.
enum class Transport { automatic, mpi, node };

struct MeshOptions {
  Transport transport = Transport::automatic;
  /// If above 0, each node is divided into several simulated nodes (to rehearse several nodes on
  /// one).
  int ranks_per_node = 0;
  /// A rank that waits longer in a window or for messages of another node throws CommError.
  /// Seconds.
  double timeout_seconds = 300;
};

/// Transport of collectives on device memory. `automatic`: NCCL if every rank has it and a GPU of
/// its own, otherwise staged through the transport of the host.
struct DeviceTransport {
  enum class Way { automatic, nccl, staged } way = Way::automatic;
  bool shared_cards = false;  ///< some ranks share a GPU; equal on all ranks
  /// Number of Mesh::replica_group() communicators in use at once, for which NCCL leaves room on
  /// the GPU.
  int replica_groups = 0;
  /// Number of Mesh::stage_channels() of a pipeline, for the same reason.
  int stage_channels = 1;
  /// Multiprocessors that products leave free beside collectives; 0: none.
  int free_multiprocessors = 0;
  bool register_memory = true;   ///< register large blocks of GPU memory with NCCL
  double timeout_seconds = 300;  ///< for NCCL's set-up
  std::string nccl_library;      ///< a path; if empty, the system's loader searches
};

class Mesh {
 public:
  /// Collective over the world (MPI must be initialised, see MpiSession). Throws DeckError on every
  /// rank if the number of ranks of the layout differs from that of the world.
  static std::unique_ptr<Mesh> over_world(const Layout& layout, const MeshOptions& options);
  static std::unique_ptr<Mesh> over_world(const Layout& layout, Transport transport,
                                          int ranks_per_node = 0);
  /// The same over the ranks of `ranks` (mpi or node; not kept), which become the ranks of the
  /// mesh. Collective over `ranks` only.
  static std::unique_ptr<Mesh> over(const Communicator& ranks, const Layout& layout,
                                    const MeshOptions& options);
  static std::unique_ptr<Mesh> over(const Communicator& ranks, const Layout& layout,
                                    Transport transport, int ranks_per_node = 0);
  /// The mesh of `rank` of any layout with null communicators (nothing is sent). Local.
  static std::unique_ptr<Mesh> planned(const Layout& layout, int rank, int ranks_per_node);
  /// The same for host memory in a rehearsal (src/comm/null_communicator.hpp), recorded in `book`.
  /// Local.
  static std::unique_ptr<Mesh> rehearsed(const Layout& layout, int rank, int ranks_per_node,
                                         Rehearsal& book);

  /// Collective over the world: from now on along() serves memory of `device`, which must outlive
  /// the mesh. Nothing changes if the host can access that memory. Throws DeckError on every rank
  /// if NCCL is requested but not available, CommError if it does not start.
  void attach(Device& device, const DeviceTransport& transport = {});
  /// Collective over the world, after attach(), for debugging: from now on ranks agree on each
  /// collective along an axis before it begins (see CallCheck).
  void check_calls();
  bool checks_calls() const { return checks_calls_; }
  /// Why collectives are staged although this was not requested; otherwise empty.
  const std::string& transport_note() const { return transport_note_; }
  /// True if collectives on device memory are NCCL's.
  bool uses_nccl() const { return nccl_; }
  /// The options of attach().
  const DeviceTransport& device_transport() const { return device_transport_; }
  /// A block of device memory for the activations of a model, registered with NCCL's communicators
  /// of the tensor and context axes; nullptr if there is none, see registration_note(). It must be
  /// destroyed before the mesh. Collective over the world.
  std::shared_ptr<void> block_for_collectives(std::size_t bytes);
  /// Tells if block_for_collectives() has registered its last block, or why not; empty if no axis
  /// needs that.
  const std::string& registration_note() const { return registration_note_; }

  const Layout& layout() const { return layout_; }
  const Coordinates& coordinates() const { return coordinates_; }
  int rank() const { return rank_; }
  /// Control communicator: always MPI (or null), never windows.
  Communicator& world() { return *world_; }
  /// Ranks of this node, ordered by world rank; node-shared windows unless alone or Transport::mpi.
  Communicator& node() { return *node_; }
  int node_index() const { return node_index_; }
  int nodes() const { return nodes_; }
  /// Ranks that differ from this one only along `axis`, ordered by coordinate. Serves memory of the
  /// attached device; before attach(), host memory.
  Communicator& along(Axis axis) {
    const auto& device = device_axes_[static_cast<std::size_t>(axis)];
    return device ? *device : host_along(axis);
  }
  /// The same ranks, for host memory.
  Communicator& host_along(Axis axis) { return *axes_[static_cast<std::size_t>(axis)]; }
  /// Node of any world rank, as node_index() of that rank.
  int node_of(int rank) const { return node_of_rank_[static_cast<std::size_t>(rank)]; }
  /// Layout::replicas() in this order, for the same memory as along(): the ranks that sum
  /// gradients, share optimizer state and must agree on parameters. Without a context axis this is
  /// along(data); otherwise it is a communicator of its own, so that gradients and activations can
  /// be sent at the same time.
  Communicator& replicas() {
    if (device_replicas_) return *device_replicas_;
    return replicas_ ? *replicas_ : along(Axis::data);
  }
  /// Collective over replicas(): a communicator of the members of replicas() with the given ranks
  /// (ascending, this rank included), for the same memory. It must be destroyed before the mesh.
  std::unique_ptr<Communicator> replica_group(const std::vector<int>& members,
                                              const std::string& name);
  /// The same ranks as replicas(), for host memory.
  Communicator& host_replicas() { return replicas_ ? *replicas_ : host_along(Axis::data); }
  /// Communicators for `count` kinds of messages of a pipeline: along(Axis::pipeline) and
  /// duplicates of it, which the first call that needs them creates. Collective over the stages.
  std::vector<Communicator*> stage_channels(int count);
  /// The duplicates that exist. Local.
  std::span<const std::unique_ptr<Communicator>> more_stage_channels() const {
    return stage_channels_;
  }
  /// Ranks that share one part of the batch: those that differ from this one along any axis but
  /// data, in the order of the world. For host memory.
  Communicator& host_peers() { return peers_ ? *peers_ : host_along(peer_axis()); }
  /// The world ranks of replicas().
  std::vector<int> replica_ranks() const { return layout_.replicas(rank_); }

 private:
  Mesh() = default;
  /// Creates a communicator from its name, this rank and the number of ranks.
  using Maker = std::function<std::unique_ptr<Communicator>(const std::string&, int, int)>;
  /// The mesh of a rank without others.
  static std::unique_ptr<Mesh> alone(const Layout& layout, int rank, int ranks_per_node,
                                     const Maker& make);
  /// The only axis besides data that has several ranks, or any axis if none has.
  Axis peer_axis() const;
  int replica_index() const {
    return coordinates_[Axis::data] * layout_.size(Axis::context) + coordinates_[Axis::context];
  }
  /// A communicator for device memory over `host`, whose world ranks are `ranks`.
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
  std::unique_ptr<Communicator> peers_;                       // where no axis has exactly these
                                                              // ranks
  std::string transport_note_, registration_note_;
  double timeout_seconds_ = 300;  // of windows
  Device* device_ = nullptr;      // attached device whose memory the host cannot access
  DeviceTransport device_transport_;
  bool nccl_ = false;                                        // true if every rank can use NCCL
  std::vector<std::unique_ptr<Communicator>> under_groups_;  // for host memory, of replica_group()
  bool checks_calls_ = false;
  std::vector<std::unique_ptr<Communicator>> stage_channels_;
};

/// An estimate of the device memory that NCCL takes on this rank for all communicators of a run,
/// when they are first used (nccl_bytes() in nccl_needs.hpp), with the options of attach(). The
/// mesh may be a planned one. Local.
std::size_t nccl_memory(const Mesh& mesh, const DeviceTransport& transport, int multiprocessors,
                        int compute_major);

/// Measured speed of all-reduces along an axis.
struct AxisSpeed {
  Axis axis = Axis::data;
  int ranks = 1;
  std::string transport;
  std::size_t bytes = 0;
  double bus_gb_per_s = 0;  ///< bus bandwidth as in nccl-tests: 2(n-1)/n * bytes / s; 1e9
};

/// Collective over the world. Measures every axis with more than one rank: the best of several
/// all-reduces of `bytes` in memory of `device`, timed by the slowest rank of this rank's group.
std::vector<AxisSpeed> measure_axes(Mesh& mesh, Device& device, std::size_t bytes);

}  // namespace choir
