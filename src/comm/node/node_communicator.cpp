#include "src/comm/node/node_communicator.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <type_traits>
#include <vector>

#include "choir/core/error.hpp"
#include "src/comm/communicator_parts.hpp"
#include "src/comm/node/node_operations.hpp"
#include "src/comm/node/two_level_operations.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"

namespace choir {
namespace {

using Kind = NodeCall::Kind;

/// The ranks of a group on this node, if the group spans nodes.
struct Neighbours {
  Neighbours(MPI_Comm group, int node, int key) {
    mpi_check(MPI_Comm_split(group, node, key, &comm), "MPI_Comm_split", "node");
  }
  ~Neighbours() {
    if (!abandoned && std::uncaught_exceptions() == unwinding) MPI_Comm_free(&comm);
  }
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;
  MPI_Comm comm = MPI_COMM_NULL;
  bool abandoned = false;
  int unwinding = std::uncaught_exceptions();
};

/// A communicator on one node or, with a map, on several nodes.
class NodeCommunicator final : public Communicator, public HasMpiHandle {
 public:
  NodeCommunicator(std::unique_ptr<Communicator> mpi, const std::string& name,
                   const NodeOptions& options, std::optional<NodeMap> map)
      : Communicator(name, mpi->rank(), mpi->size()),
        mpi_(std::move(mpi)),
        comm_(choir::mpi_handle(*mpi_)),
        options_(options),
        map_(std::move(map)),
        label_(fmt::format("{} (rank {} of {})", name, rank(), size())),
        windows_(std::make_shared<NodeWindows>()) {
    for (WindowRequest& request : requests_) request.owner = this;
    if (map_) {
      neighbours_ = std::make_unique<Neighbours>(comm_, map_->node_of(rank()), rank());
      operations_ = std::make_unique<TwoLevelOperations>(comm_, neighbours_->comm, *map_, label_,
                                                         options, windows_);
    } else {
      operations_ =
          std::make_unique<NodeOperations>(comm_, rank(), size(), label_, options, windows_);
    }
    identify(mpi_->id());
    mpi_->silence();
  }
  ~NodeCommunicator() override {
    if (!broken_) return;
    abandon();
    keep_forever(std::move(mpi_));  // freeing the group would wait for the missing rank
  }

  const char* transport() const override { return map_ ? "two-level" : "node"; }
  MPI_Comm mpi_handle() const override { return comm_; }
  const std::shared_ptr<WindowShortage>& shortage() const { return options_.shortage; }

  std::unique_ptr<CommBuffer> allocate(std::size_t bytes) override {
    check_usable();
    if (!options_.shortage) return window(bytes);
    std::unique_ptr<CommBuffer> buffer;
    double room = 0;
    try {
      buffer = window(bytes);
    } catch (const NoRoomError& error) {
      room = error.available();
    }
    // The ranks of a node agree; another node may have more room.
    int fits = buffer ? 1 : 0;
    if (map_)
      mpi_check(MPI_Allreduce(MPI_IN_PLACE, &fits, 1, MPI_INT, MPI_MIN, comm_), "MPI_Allreduce",
                label_);
    if (fits != 0) return buffer;
    if (!buffer) {
      windows_->skip();
      options_.shortage->room = std::max(room, 1.0);  // 0 is another node's shortage
    }
    buffer.reset();
    options_.shortage->bytes += static_cast<std::int64_t>(bytes);
    return mpi_->allocate(bytes);
  }

  void do_all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op,
                     Summation order) override {
    NodeCall call{0, 0, count, Kind::all_reduce, dtype, op};
    if (!operations_->takes(dtype, op, order) || !locate(data, count * size_of(dtype), call))
      return through_mpi([&](Communicator& c) { c.all_reduce(data, count, dtype, op, order); });
    blocking(call, count * size_of(dtype));
  }
  void do_reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp op,
                         Summation order) override {
    NodeCall call{0, 0, count, Kind::reduce_scatter, dtype, op};
    if (!operations_->takes(dtype, op, order) ||
        !locate(data, count * size_of(dtype) * ranks(), call))
      return through_mpi([&](Communicator& c) { c.reduce_scatter(data, count, dtype, op, order); });
    blocking(call, count * size_of(dtype) * ranks());
  }
  void do_all_gather(void* data, std::size_t count, DType dtype) override {
    NodeCall call{0, 0, count, Kind::all_gather, dtype, ReduceOp::sum};
    if (!locate(data, count * size_of(dtype) * ranks(), call))
      return through_mpi([&](Communicator& c) { c.all_gather(data, count, dtype); });
    blocking(call, count * size_of(dtype) * ranks());
  }
  void do_barrier() override { blocking(NodeCall{}, 0); }

  void do_broadcast(void* data, std::size_t bytes, int root) override {
    through_mpi([&](Communicator& c) { c.broadcast(data, bytes, root); });
  }
  void do_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, int root) override {
    through_mpi([&](Communicator& c) { c.reduce(data, count, dtype, op, root); });
  }
  void do_scatter(const void* source, const std::int64_t* counts, const std::int64_t* offsets,
                  void* target, std::size_t bytes, int root) override {
    through_mpi([&](Communicator& c) { c.scatter(source, counts, offsets, target, bytes, root); });
  }
  void do_gather(const void* source, std::size_t bytes, void* target, const std::int64_t* counts,
                 const std::int64_t* offsets, int root) override {
    through_mpi([&](Communicator& c) { c.gather(source, bytes, target, counts, offsets, root); });
  }
  void do_all_to_all(const void* source, void* target, std::size_t bytes) override {
    through_mpi([&](Communicator& c) { c.all_to_all(source, target, bytes); });
  }
  void do_send(const void* data, std::size_t bytes, int to, int tag) override {
    through_mpi([&](Communicator& c) { c.send(data, bytes, to, tag); });
  }
  void do_receive(void* data, std::size_t bytes, int from, int tag) override {
    through_mpi([&](Communicator& c) { c.receive(data, bytes, from, tag); });
  }

  CommRequest& do_start_all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op,
                                   Summation order) override {
    NodeCall call{0, 0, count, Kind::all_reduce, dtype, op};
    if (operations_->takes(dtype, op, order) && locate(data, count * size_of(dtype), call))
      return start(call, count * size_of(dtype));
    return start_mpi([&](Communicator& c) -> CommRequest& {
      return c.start_all_reduce(data, count, dtype, op, order);
    });
  }
  CommRequest& do_start_reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp op,
                                       Summation order) override {
    NodeCall call{0, 0, count, Kind::reduce_scatter, dtype, op};
    const std::size_t bytes = count * size_of(dtype) * ranks();
    if (operations_->takes(dtype, op, order) && locate(data, bytes, call))
      return start(call, bytes);
    return start_mpi([&](Communicator& c) -> CommRequest& {
      return c.start_reduce_scatter(data, count, dtype, op, order);
    });
  }
  CommRequest& do_start_all_gather(void* data, std::size_t count, DType dtype) override {
    NodeCall call{0, 0, count, Kind::all_gather, dtype, ReduceOp::sum};
    const std::size_t bytes = count * size_of(dtype) * ranks();
    if (locate(data, bytes, call)) return start(call, bytes);
    return start_mpi(
        [&](Communicator& c) -> CommRequest& { return c.start_all_gather(data, count, dtype); });
  }

  ExchangeRequest& do_start_exchange(std::span<const Message> messages) override {
    check_usable();
    mpi_->reset_traffic();
    ForwardedExchange& exchange = free_one(exchanges_);
    exchange.owner = this;
    exchange.inner = &mpi_->start_exchange(messages);
    add_traffic();
    return exchange;
  }

  std::unique_ptr<Communicator> duplicate(const std::string& name) override {
    check_usable();
    if (!map_) return make_node_communicator(comm_, name, options_);
    return make_two_level_communicator(comm_, name, map_->node_of(rank()), options_);
  }

 private:
  // An operation in a window.
  struct WindowRequest final : CommRequest {
    void do_wait() override { owner->wait(*this); }
    bool do_test() override {
      return owner->guarded([this] { return owner->operations_->advance(sequence); });
    }
    NodeCommunicator* owner = nullptr;
    std::uint64_t sequence = 0;
    bool free = true;
  };
  // An operation of the inner MPI communicator, wrapped so that its exposed time is counted here.
  struct Forwarded final : CommRequest {
    void do_wait() override {
      CHOIR_CHECK(inner != nullptr, "wait() called twice on {}", owner->label_);
      const double from = now_seconds();
      inner->wait();
      inner = nullptr;
      owner->traffic_.seconds += now_seconds() - from;
    }
    bool do_test() override { return inner == nullptr || inner->test(); }
    NodeCommunicator* owner = nullptr;
    CommRequest* inner = nullptr;
  };
  struct ForwardedExchange final : ExchangeRequest {
    void do_wait() override {
      complete([](ExchangeRequest& request) { request.wait(); });
      inner = nullptr;
    }
    void do_wait_received() override {
      complete([](ExchangeRequest& request) { request.wait_received(); });
    }
    bool do_test() override { return inner == nullptr || inner->test(); }
    template <class F>
    void complete(F&& f) {
      CHOIR_CHECK(inner != nullptr, "waited for an exchange twice on {}", owner->label_);
      const double from = now_seconds();
      f(*inner);
      owner->traffic_.seconds += now_seconds() - from;
    }
    NodeCommunicator* owner = nullptr;
    ExchangeRequest* inner = nullptr;
  };

  /// Collective. A new window on each node.
  std::unique_ptr<CommBuffer> window(std::size_t bytes) {
    int sharers = size();
    if (neighbours_) MPI_Comm_size(neighbours_->comm, &sharers);
    const double all = static_cast<double>(bytes) * sharers;
    if (options_.shortage && all > options_.shortage->largest)
      throw NoRoomError(label_ + ": no room", "", options_.shortage->largest);
    if (!map_)
      return allocate_window(comm_, label_, bytes, rank(), options_.timeout_seconds, windows_);
    std::vector<int> places;
    for (int other = 0; other < size(); ++other)
      places.push_back(map_->node_of(other) == map_->node_of(rank()) ? map_->place_of(other) : -1);
    return allocate_window(neighbours_->comm, label_, bytes, place(), options_.timeout_seconds,
                           windows_, std::move(places));
  }

  std::size_t ranks() const { return static_cast<std::size_t>(size()); }
  /// This rank's index in windows.
  int place() const { return map_ ? map_->place_of(rank()) : rank(); }

  void check_usable() const {
    if (broken_)
      throw CommError(label_ + " is broken by an earlier error", "the first error has the cause");
  }
  void abandon() {
    operations_->abandon();
    windows_->abandon();
    if (neighbours_) neighbours_->abandoned = true;
  }
  template <class F>
  std::invoke_result_t<F> guarded(F&& f) {
    check_usable();
    try {
      return f();
    } catch (...) {
      broken_ = true;
      abandon();
      throw;
    }
  }

  bool locate(const void* data, std::size_t bytes, NodeCall& call) const {
    return windows_->locate(data, bytes, place(), call);
  }

  template <class F>
  void through_mpi(F&& f) {
    check_usable();
    mpi_->reset_traffic();
    f(*mpi_);
    add_traffic();
  }
  void add_traffic() {
    traffic_.calls += mpi_->traffic().calls;
    traffic_.bytes += mpi_->traffic().bytes;
    traffic_.seconds += mpi_->traffic().seconds;
  }
  template <class Slots>
  typename Slots::value_type& free_one(Slots& slots) const {
    const auto slot =
        std::find_if(slots.begin(), slots.end(), [](const auto& w) { return w.inner == nullptr; });
    CHOIR_CHECK(slot != slots.end(), "more than {} operations in flight on {}", kMaxInFlight,
                label_);
    return *slot;
  }
  template <class F>
  CommRequest& start_mpi(F&& f) {
    check_usable();
    mpi_->reset_traffic();
    Forwarded& slot = free_one(forwarded_);
    slot.owner = this;
    slot.inner = &f(*mpi_);
    add_traffic();
    return slot;
  }

  CommRequest& start(const NodeCall& call, std::size_t bytes) {
    ++traffic_.calls;
    traffic_.bytes += static_cast<double>(bytes);
    return begin(call);
  }
  WindowRequest& begin(const NodeCall& call) {
    check_usable();
    WindowRequest& request = requests_[operations_->next() % kMaxInFlight];
    CHOIR_CHECK(request.free, "more than {} operations in flight on {}", kMaxInFlight, label_);
    request.sequence = operations_->begin(call);
    request.free = false;
    return request;
  }
  void blocking(const NodeCall& call, std::size_t bytes) {
    const TrafficTimer timer(traffic_, bytes);
    complete(begin(call));
  }
  void wait(WindowRequest& request) {
    CHOIR_CHECK(!request.free, "wait() called twice on {}", label_);
    const double from = now_seconds();
    complete(request);
    traffic_.seconds += now_seconds() - from;
  }
  void complete(WindowRequest& request) {
    guarded([&] { operations_->complete(request.sequence); });
    request.free = true;
  }

  std::unique_ptr<Communicator> mpi_;
  MPI_Comm comm_;
  NodeOptions options_;
  std::optional<NodeMap> map_;  ///< of a group that spans nodes
  std::unique_ptr<Neighbours> neighbours_;
  std::string label_;
  std::shared_ptr<NodeWindows> windows_;
  std::unique_ptr<WindowOperations> operations_;
  std::array<WindowRequest, kMaxInFlight> requests_;
  std::array<Forwarded, kMaxInFlight> forwarded_;
  std::array<ForwardedExchange, kMaxInFlight> exchanges_;
  bool broken_ = false;
};

void refuse_other_nodes(MPI_Comm group, const std::string& name) {
  MPI_Comm same_node = MPI_COMM_NULL;
  mpi_check(MPI_Comm_split_type(group, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &same_node),
            "MPI_Comm_split_type", name);
  int together = 0, all = 0;
  MPI_Comm_size(same_node, &together);
  MPI_Comm_size(group, &all);
  MPI_Comm_free(&same_node);
  mpi_check(MPI_Allreduce(MPI_IN_PLACE, &together, 1, MPI_INT, MPI_MIN, group), "MPI_Allreduce",
            name);
  if (together < all)
    throw CommError(
        fmt::format("{}: its {} ranks do not share a node", name, all),
        "the node transport needs all ranks of a group on one node; choose automatic or mpi");
}

}  // namespace

std::unique_ptr<Communicator> make_node_communicator(MPI_Comm group, const std::string& name,
                                                     const NodeOptions& options) {
  refuse_other_nodes(group, name);
  return std::make_unique<NodeCommunicator>(make_mpi_communicator(group, name, options.mpi), name,
                                            options, std::nullopt);
}

std::unique_ptr<Communicator> make_two_level_communicator(MPI_Comm group, const std::string& name,
                                                          int node, const NodeOptions& options) {
  int rank = 0, ranks = 1;
  MPI_Comm_rank(group, &rank);
  MPI_Comm_size(group, &ranks);
  std::vector<int> node_of_rank(static_cast<std::size_t>(ranks));
  node_of_rank[static_cast<std::size_t>(rank)] = node;
  mpi_check(
      MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, node_of_rank.data(), 1, MPI_INT, group),
      "MPI_Allgather", name);
  return std::make_unique<NodeCommunicator>(make_mpi_communicator(group, name, options.mpi), name,
                                            options, NodeMap(node_of_rank));
}

std::shared_ptr<WindowShortage> shortage_of(const Communicator& communicator) {
  const auto* const own = dynamic_cast<const NodeCommunicator*>(&communicator);
  return own == nullptr ? nullptr : own->shortage();
}

std::string shortage_note(Communicator& world, const Communicator& node) {
  const std::shared_ptr<WindowShortage> shortage = shortage_of(node);
  // Without a record, a node of several ranks has no windows at all.
  const bool none = !shortage && node.size() > 1;
  const bool some = shortage && shortage->bytes > 0;
  // The ranks that need no note report infinite room.
  double room = std::numeric_limits<double>::infinity();
  if (none) room = free_shared_memory();
  if (some && shortage->room > 0) room = shortage->room;
  double bytes = some ? static_cast<double>(shortage->bytes) * node.size() : 0;
  std::int32_t affected = none || some ? 1 : 0;
  world.all_reduce(&affected, 1, DType::i32, ReduceOp::max);
  world.all_reduce(&room, 1, DType::f64, ReduceOp::min);
  world.all_reduce(&bytes, 1, DType::f64, ReduceOp::max);
  if (affected == 0) return {};
  const std::string wanted =
      bytes > 0 ? fmt::format("{} of buffers do not fit", format_bytes(bytes)) : "no buffer fits";
  return fmt::format(
      "/dev/shm of a node has {} free, and {}: their collectives go through MPI, which takes about "
      "5 times as long for large buffers; enlarge /dev/shm (containers: --shm-size=8g), or say "
      "that this is meant: parallel.transport=mpi",
      format_bytes(room), wanted);
}

}  // namespace choir
