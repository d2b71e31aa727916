#include "choir/comm/node_communicator.hpp"

#include <algorithm>
#include <array>
#include <type_traits>
#include <vector>

#include "choir/comm/chunks.hpp"
#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"
#include "src/comm/node_rendezvous.hpp"
#include "src/comm/traffic_timer.hpp"
#include "src/comm/tree_reduce.hpp"

namespace choir {
namespace {

using Kind = NodeCall::Kind;
using Stage = NodeRendezvous::Stage;

// Windows by number; outlives the communicator as long as a buffer needs it.
struct WindowList {
  std::vector<SharedWindow*> windows;  // nullptr once freed
};

class WindowBuffer final : public CommBuffer {
 public:
  WindowBuffer(MPI_Comm comm, const std::string& name, std::size_t bytes, int rank,
               std::shared_ptr<WindowList> list)
      : window_(comm, name, bytes), rank_(rank), list_(std::move(list)) {
    list_->windows.push_back(&window_);
  }
  ~WindowBuffer() override {
    std::replace(list_->windows.begin(), list_->windows.end(), &window_, kNone);
  }
  WindowBuffer(const WindowBuffer&) = delete;
  WindowBuffer& operator=(const WindowBuffer&) = delete;
  void* data() const override { return window_.block(rank_); }
  std::size_t bytes() const override { return window_.bytes(); }
  bool shared() const override { return true; }
  void* block(int rank) const override { return window_.block(rank); }

 private:
  static constexpr SharedWindow* kNone = nullptr;
  SharedWindow window_;
  int rank_;
  std::shared_ptr<WindowList> list_;
};

class NodeCommunicator final : public Communicator, public HasMpiHandle {
 public:
  NodeCommunicator(std::unique_ptr<Communicator> mpi, const std::string& name,
                   const NodeOptions& options)
      : Communicator(name, mpi->rank(), mpi->size()),
        mpi_(std::move(mpi)),
        comm_(choir::mpi_handle(*mpi_)),
        options_(options),
        label_(fmt::format("{} (rank {} of {})", name, rank(), size())),
        meeting_(comm_, label_, options),
        list_(std::make_shared<WindowList>()),
        inputs_(ranks()),
        outputs_(ranks()) {
    list_->windows.reserve(256);
    for (Operation& operation : ring_) operation.owner = this;
    identify(mpi_->id());
    mpi_->silence();
  }
  ~NodeCommunicator() override {
    if (!broken_) return;
    abandon();
    static_cast<void>(mpi_.release());  // freeing the group would wait for the rank that is missing
  }

  const char* transport() const override { return "node"; }
  MPI_Comm mpi_handle() const override { return comm_; }

  std::unique_ptr<CommBuffer> allocate(std::size_t bytes) override {
    check_usable();
    return std::make_unique<WindowBuffer>(comm_, label_, bytes, rank(), list_);
  }

  void do_all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op,
                     Summation order) override {
    NodeCall call{0, 0, count, Kind::all_reduce, dtype, op};
    if (!locate(data, count * size_of(dtype), call))
      return through_mpi([&](Communicator& c) { c.all_reduce(data, count, dtype, op, order); });
    blocking(call, count * size_of(dtype));
  }
  void do_reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp op,
                         Summation order) override {
    NodeCall call{0, 0, count, Kind::reduce_scatter, dtype, op};
    if (!locate(data, count * size_of(dtype) * ranks(), call))
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
    if (locate(data, count * size_of(dtype), call)) return start(call, count * size_of(dtype));
    return start_mpi([&](Communicator& c) -> CommRequest& {
      return c.start_all_reduce(data, count, dtype, op, order);
    });
  }
  CommRequest& do_start_reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp op,
                                       Summation order) override {
    NodeCall call{0, 0, count, Kind::reduce_scatter, dtype, op};
    const std::size_t bytes = count * size_of(dtype) * ranks();
    if (locate(data, bytes, call)) return start(call, bytes);
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
    return make_node_communicator(comm_, name, options_);
  }

 private:
  static constexpr std::size_t kPieceBytes = std::size_t{256} << 10;  // one test() adds this much

  // A window operation. `cursor` counts the bytes of this rank's share that are done.
  struct Operation final : CommRequest {
    void do_wait() override { owner->wait(*this); }
    bool do_test() override {
      return owner->guarded([this] { return owner->test(*this); });
    }
    NodeCommunicator* owner = nullptr;
    NodeCall call;
    std::uint64_t sequence = 0;
    std::size_t cursor = 0;
    bool checked = false, shared = false, free = true;
  };
  // An operation that MPI does, with its exposed time booked here. Wraps it to keep one account.
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

  std::size_t ranks() const { return static_cast<std::size_t>(size()); }

  void check_usable() const {
    if (broken_)
      throw CommError(label_ + " is broken by an earlier error", "the first error has the cause");
  }
  void abandon() {
    meeting_.abandon();
    for (SharedWindow* window : list_->windows)
      if (window != nullptr) window->abandon();
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

  /// Finds the window that holds [data, data + bytes) and notes its number and the offset.
  bool locate(const void* data, std::size_t bytes, NodeCall& call) const {
    const auto* from = static_cast<const std::byte*>(data);
    for (std::size_t w = list_->windows.size(); w-- > 0;) {
      const SharedWindow* window = list_->windows[w];
      if (window == nullptr) continue;
      const std::byte* base = window->block(rank());
      if (from < base || from + bytes > base + window->bytes()) continue;
      call.window = w;
      call.offset = static_cast<std::uint64_t>(from - base);
      return true;
    }
    return false;
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
  Operation& begin(const NodeCall& call) {
    check_usable();
    Operation& operation = ring_[next_ % kMaxInFlight];
    CHOIR_CHECK(operation.free, "more than {} operations in flight on {}", kMaxInFlight, label_);
    operation.call = call;
    operation.sequence = next_++;
    operation.cursor = 0;
    operation.checked = operation.shared = operation.free = false;
    meeting_.arrive(operation.sequence, call);
    return operation;
  }
  void blocking(const NodeCall& call, std::size_t bytes) {
    const TrafficTimer timer(traffic_, bytes);
    Operation& operation = begin(call);
    guarded([&] { complete(operation.sequence); });
    operation.free = true;
  }
  void wait(Operation& operation) {
    CHOIR_CHECK(!operation.free, "wait() called twice on {}", label_);
    const double from = now_seconds();
    guarded([&] { complete(operation.sequence); });
    operation.free = true;
    traffic_.seconds += now_seconds() - from;
  }

  /// Completes all operations up to `sequence`, in the order of their starts: that is what makes
  /// waits free of deadlock, for every rank works through the same list.
  void complete(std::uint64_t sequence) {
    for (; oldest_ <= sequence; ++oldest_) {
      Operation& operation = ring_[oldest_ % kMaxInFlight];
      if (!operation.shared) {
        meeting_.await(Stage::arrived, oldest_, operation.call);
        check_same(operation);
        while (!work(operation, ~std::size_t{0})) continue;
        publish(operation);
      }
      if (operation.call.kind != Kind::barrier)
        meeting_.await(Stage::done, oldest_, operation.call);
    }
  }

  bool test(Operation& operation) {
    while (oldest_ <= operation.sequence) {
      Operation& first = ring_[oldest_ % kMaxInFlight];
      if (!first.shared) {
        if (!meeting_.reached(Stage::arrived, oldest_)) return false;
        check_same(first);
        if (!work(first, kPieceBytes)) return false;
        publish(first);
      }
      if (first.call.kind != Kind::barrier && !meeting_.reached(Stage::done, oldest_)) return false;
      ++oldest_;
    }
    return true;
  }

  void check_same(Operation& operation) {
    if (operation.checked) return;
    meeting_.require_same(operation.sequence, operation.call);
    operation.checked = true;
  }
  void publish(Operation& operation) {
    meeting_.finish(operation.sequence);
    operation.shared = true;
  }

  /// Does at most `budget` bytes of this rank's share (per block); true when all is done.
  bool work(Operation& operation, std::size_t budget) {
    const NodeCall& call = operation.call;
    if (call.kind == Kind::barrier || size() == 1) return true;
    if (call.kind == Kind::all_gather) return collect(operation, budget);
    const std::size_t element = size_of(call.dtype);
    const Chunk share = call.kind == Kind::all_reduce
                            ? share_of(call.count, size(), rank(), 64 / element)
                            : Chunk{static_cast<std::size_t>(rank()) * call.count, call.count};
    const std::size_t done = operation.cursor / element;
    const std::size_t now =
        std::min(share.count - done, std::max<std::size_t>(1, budget / element));
    const std::size_t offset = call.offset + (share.offset + done) * element;
    const SharedWindow& window = *list_->windows[call.window];
    for (int p = 0; p < size(); ++p)
      inputs_[static_cast<std::size_t>(p)] = outputs_[static_cast<std::size_t>(p)] =
          window.block(p) + offset;
    const bool to_all = call.kind == Kind::all_reduce;
    if (!to_all) outputs_[0] = outputs_[static_cast<std::size_t>(rank())];
    tree_reduce(inputs_.data(), size(), outputs_.data(), to_all ? size() : 1, now, call.dtype,
                call.op);
    operation.cursor += now * element;
    return done + now == share.count;
  }

  /// all_gather: copies the blocks of the others, starting with the next rank so that not all ranks
  /// read the same memory at once.
  bool collect(Operation& operation, std::size_t budget) {
    const NodeCall& call = operation.call;
    const std::size_t block = call.count * size_of(call.dtype);
    const SharedWindow& window = *list_->windows[call.window];
    const std::size_t total = block * (ranks() - 1);
    while (operation.cursor < total && budget > 0) {
      const int peer = (rank() + 1 + static_cast<int>(operation.cursor / block)) % size();
      const std::size_t inside = operation.cursor % block;
      const std::size_t now = std::min(budget, block - inside);
      const std::size_t offset = call.offset + static_cast<std::size_t>(peer) * block + inside;
      bulk_copy(window.block(rank()) + offset, window.block(peer) + offset, now,
                block * ranks() >= options_.streaming_bytes);
      operation.cursor += now;
      budget -= now;
    }
    return operation.cursor == total;
  }

  std::unique_ptr<Communicator> mpi_;
  MPI_Comm comm_;
  NodeOptions options_;
  std::string label_;
  NodeRendezvous meeting_;
  std::shared_ptr<WindowList> list_;
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
  std::array<Operation, kMaxInFlight> ring_;
  std::array<Forwarded, kMaxInFlight> forwarded_;
  std::array<ForwardedExchange, kMaxInFlight> exchanges_;
  std::uint64_t next_ = 1;    ///< number of the next window operation
  std::uint64_t oldest_ = 1;  ///< first that is not complete
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
                                            options);
}

}  // namespace choir
