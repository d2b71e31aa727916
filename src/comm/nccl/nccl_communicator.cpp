#include "src/comm/nccl/nccl_communicator.hpp"

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>

#include "choir/core/error.hpp"
#include "src/comm/communicator_parts.hpp"
#include "src/comm/nccl/nccl_group.hpp"
#include "src/comm/nccl_needs.hpp"
#include "src/core/text.hpp"
#include "src/device/collective_share.hpp"
#include "src/device/cuda.hpp"

namespace choir {
namespace {

using nccl::Type;

/// A block of NCCL's own memory, which alone can be a window: its kernels then use fewer
/// multiprocessors and copy less. nullptr for a small block, which NCCL would round up too much,
/// and if NCCL has no memory left.
std::shared_ptr<void> block_of_nccl(Device& device, std::shared_ptr<const nccl::Library> api,
                                    std::size_t bytes) {
  void* data = nullptr;
  const std::size_t granularity = nccl_granularity(cuda::card_of(device)->major);
  if (!is_block_of_nccl(bytes, granularity) ||
      api->mem_alloc(&data, bytes) != nccl::Result::success)
    return nullptr;
  return {data, [api = std::move(api)](void* block) { api->mem_free(block); }};
}

/// Memory of the device, a window of its communicator if `block` is one.
class NcclBuffer final : public CommBuffer {
 public:
  NcclBuffer(Device& device, std::shared_ptr<void> block, std::size_t bytes)
      : block_(std::move(block)), bytes_(bytes) {
    if (bytes == 0) return;
    if (!block_) fallback_ = Buffer(device, bytes);
    device.zero(data(), bytes);
  }
  void* data() const override { return block_ ? block_.get() : fallback_.data(); }
  std::size_t bytes() const override { return bytes_; }
  bool shared() const override { return false; }

 private:
  std::shared_ptr<void> block_;
  Buffer fallback_;
  std::size_t bytes_;
};

/// Maximum number of thread blocks; 0 leaves the choice to NCCL.
int most_blocks(const Device& device, const NcclOptions& options) {
  if (options.communicators <= 1) return 0;
  return nccl_blocks(cuda::card_of(device)->multiprocessors, options.communicators);
}

/// Lets NCCL start the kernels of all communicators in the order of the calls, also inside graphs.
/// NCCL reads the variable when it is first used; a user's value is kept. Drivers before 12.9 would
/// run these kernels of a graph one after the other.
void order_launches(const NcclOptions& options) {
  constexpr int kLeastDriver = 12090;
  int driver = 0;
  if (options.communicators > 1 && cudaDriverGetVersion(&driver) == cudaSuccess &&
      driver >= kLeastDriver)
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
}

class NcclCommunicator final : public QueuedCommunicator {
 public:
  NcclCommunicator(std::unique_ptr<Communicator> control, Device& device, const std::string& name,
                   const NcclOptions& options, std::shared_ptr<const nccl::Library> api)
      : QueuedCommunicator(name, control->rank(), control->size()),
        control_(std::move(control)),
        device_(device),
        options_(options),
        label_(label_of(options)),
        compute_(device),
        side_(device, true),
        begun_(device),
        group_(*control_, label_, options, most_blocks(device, options), std::move(api)),
        tree_(group_, device, rank(), size()) {
    for (Operation& operation : ring_) {
      operation.owner = this;
      operation.done = std::make_unique<Event>(device);
    }
    identify(derived_id(*control_, name));
  }
  ~NcclCommunicator() override {
    // Work of a broken group may never end.
    if (std::uncaught_exceptions() == unwinding_ && !group_.broken()) side_.stream().synchronize();
  }

  const char* transport() const override { return "nccl"; }
  std::unique_ptr<CommBuffer> allocate(std::size_t bytes) override {
    Communicator* const self = this;
    NcclBlock block;
    if (options_.register_memory) block = make_nccl_block(device_, {&self, 1}, bytes);
    return std::make_unique<NcclBuffer>(device_, std::move(block.memory), bytes);
  }

  void do_broadcast(void* data, std::size_t bytes, int root) override {
    check_rank(root);
    queue(bytes, bytes > 0, [&] {
      settle(api().broadcast(data, data, bytes, Type::u8, root, handle(), native()),
             "ncclBroadcast");
    }).wait();
  }
  void do_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, int root) override {
    check_rank(root);
    const Type type = type_of(dtype);
    queue(count * size_of(dtype), count > 0, [&] {
      settle(api().reduce(data, data, count, type, op_of(op), root, handle(), native()),
             "ncclReduce");
    }).wait();
  }
  void do_scatter(const void* source, const std::int64_t* counts, const std::int64_t* offsets,
                  void* target, std::size_t bytes, int root) override {
    check_rank(root);
    queue(bytes, true, [&] {
      group_.grouped([&] {
        if (rank() != root) return receive_from(target, bytes, root);
        for (int p = 0; p < size(); ++p)
          if (p != root)
            send_to(at(source, static_cast<std::size_t>(offsets[p])),
                    static_cast<std::size_t>(counts[p]), p);
      });
      if (rank() == root)
        side_.stream().copy(target, at(source, static_cast<std::size_t>(offsets[root])), bytes);
    }).wait();
  }
  void do_gather(const void* source, std::size_t bytes, void* target, const std::int64_t* counts,
                 const std::int64_t* offsets, int root) override {
    check_rank(root);
    queue(bytes, true, [&] {
      group_.grouped([&] {
        if (rank() != root) return send_to(source, bytes, root);
        for (int p = 0; p < size(); ++p)
          if (p != root)
            receive_from(at(target, static_cast<std::size_t>(offsets[p])),
                         static_cast<std::size_t>(counts[p]), p);
      });
      if (rank() == root)
        side_.stream().copy(at(target, static_cast<std::size_t>(offsets[root])), source, bytes);
    }).wait();
  }
  void do_all_to_all(const void* source, void* target, std::size_t bytes) override {
    queue(bytes * ranks(), true, [&] {
      group_.grouped([&] {
        for (int p = 0; p < size(); ++p) {
          if (p == rank()) continue;
          send_to(at(source, static_cast<std::size_t>(p) * bytes), bytes, p);
          receive_from(at(target, static_cast<std::size_t>(p) * bytes), bytes, p);
        }
      });
      const std::size_t own = static_cast<std::size_t>(rank()) * bytes;
      side_.stream().copy(at(target, own), at(source, own), bytes);
    }).wait();
  }
  void do_send(const void* data, std::size_t bytes, int to, int) override {
    check_rank(to);
    queue(bytes, true, [&] { send_to(data, bytes, to); }).wait();
  }
  void do_receive(void* data, std::size_t bytes, int from, int) override {
    check_rank(from);
    queue(bytes, true, [&] { receive_from(data, bytes, from); }).wait();
  }
  void do_barrier() override {
    group_.require_healthy();
    compute_.synchronize();
    side_.stream().synchronize();
    control_->barrier();
  }

  CommRequest& do_start_all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op,
                                   Summation order) override {
    const bool tree = by_tree(dtype, op, order);
    const Type type = type_of(dtype);
    return queue(count * size_of(dtype), count > 0, [&] {
      if (tree) return tree_.all_reduce(side_.stream(), static_cast<float*>(data), count);
      settle(api().all_reduce(data, data, count, type, op_of(op), handle(), native()),
             "ncclAllReduce");
    });
  }
  CommRequest& do_start_reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp op,
                                       Summation order) override {
    const bool tree = by_tree(dtype, op, order);
    const Type type = type_of(dtype);
    return queue(count * size_of(dtype) * ranks(), count > 0, [&] {
      if (tree) return tree_.reduce_scatter(side_.stream(), static_cast<float*>(data), count);
      void* mine = at(data, static_cast<std::size_t>(rank()) * count * size_of(dtype));
      settle(api().reduce_scatter(data, mine, count, type, op_of(op), handle(), native()),
             "ncclReduceScatter");
    });
  }
  CommRequest& do_start_all_gather(void* data, std::size_t count, DType dtype) override {
    const std::size_t bytes = count * size_of(dtype);
    return queue(bytes * ranks(), count > 0, [&] {
      const void* mine = at(data, static_cast<std::size_t>(rank()) * bytes);
      settle(api().all_gather(mine, data, bytes, Type::u8, handle(), native()), "ncclAllGather");
    });
  }

  ExchangeRequest& do_start_exchange(std::span<const Message> messages) override {
    return queue(check_exchange(messages, INT_MAX), true, [&] {
      group_.grouped([&] {
        for (const Message& m : messages)
          m.send ? send_to(m.data, m.bytes, m.peer) : receive_from(m.data, m.bytes, m.peer);
      });
    });
  }

  const std::shared_ptr<const nccl::Library>& library() const { return group_.library(); }
  /// Registers a block until the result is destroyed: the same number of bytes on all ranks, or
  /// nothing. Collective, also for a rank without a block.
  std::shared_ptr<void> registered(void* data, std::size_t bytes) {
    const bool can = data != nullptr && group_.can_register() && size() > 1;
    std::int64_t least = can ? static_cast<std::int64_t>(bytes) : 0, most = least;
    control_->all_reduce(&least, 1, DType::i64, ReduceOp::min);
    control_->all_reduce(&most, 1, DType::i64, ReduceOp::max);
    if (least != most || least == 0) return nullptr;
    void* const registration = group_.register_memory(data, bytes);
    if (registration == nullptr) return nullptr;
    return {registration, [this](void* old) { group_.deregister(old); }};
  }

  std::unique_ptr<Communicator> duplicate(const std::string& name) override {
    return std::make_unique<NcclCommunicator>(control_->duplicate(name), device_, name, options_,
                                              group_.library());
  }

 private:
  struct Operation final : ExchangeRequest {
    void do_wait() override { owner->wait(*this); }
    void do_wait_received() override { owner->wait_received(*this); }
    // wait() never blocks the host. The event must not be queried, because it may belong to a
    // graph.
    bool do_test() override {
      owner->group_.require_healthy();
      return true;
    }
    NcclCommunicator* owner = nullptr;
    std::unique_ptr<Event> done;
    bool free = true;
  };

  std::string label_of(const NcclOptions& options) const {
    std::vector<std::string> ranks;
    for (const int r : options.ranks) ranks.push_back(std::to_string(r));
    const std::string members =
        ranks.empty() ? fmt::format("{} ranks", size()) : "ranks " + join(ranks, ", ");
    return fmt::format("NCCL on {} ({}), rank {} of the group", name(), members, rank());
  }
  const nccl::Library& api() const { return group_.api(); }
  nccl::Comm handle() const { return group_.handle(); }
  cudaStream_t native() const { return static_cast<cudaStream_t>(side_.stream().native()); }
  void settle(nccl::Result code, const char* call) { group_.settle(code, call); }

  static nccl::Op op_of(ReduceOp op) {
    switch (op) {
      case ReduceOp::sum:
        return nccl::Op::sum;
      case ReduceOp::max:
        return nccl::Op::max;
      case ReduceOp::min:
        return nccl::Op::min;
    }
    return nccl::Op::sum;
  }
  Type type_of(DType dtype) const {
    switch (dtype) {
      case DType::f64:
        return Type::f64;
      case DType::f32:
        return Type::f32;
      case DType::bf16:
        return Type::bf16;
      case DType::f16:
        return Type::f16;
      case DType::i64:
        return Type::i64;
      case DType::i32:
        return Type::i32;
      case DType::u8:
        return Type::u8;
      case DType::u16:
        break;
    }
    throw CommError(fmt::format("{}: NCCL has no type for {}", label_, name_of(dtype)),
                    "use parallel.transport=staged");
  }
  bool by_tree(DType dtype, ReduceOp op, Summation order) const {
    const bool whole = dtype == DType::i64 || dtype == DType::i32 || dtype == DType::u8;
    if (order != Summation::tree || op != ReduceOp::sum || whole || size() == 1) return false;
    if (dtype == DType::f32) return true;
    throw DeckError(fmt::format("{}: reproducible sums of {} are not supported over NCCL, only "
                                "those of f32",
                                label_, name_of(dtype)),
                    "set parallel.transport to \"staged\"");
  }

  void send_to(const void* data, std::size_t bytes, int peer) {
    if (bytes > 0) settle(api().send(data, bytes, Type::u8, peer, handle(), native()), "ncclSend");
  }
  void receive_from(void* data, std::size_t bytes, int peer) {
    if (bytes > 0)
      settle(api().receive(data, bytes, Type::u8, peer, handle(), native()), "ncclRecv");
  }

  /// Runs f(), which queues work on the side stream, between events of the two streams.
  template <class F>
  Operation& queue(std::size_t bytes, bool any, const F& f) {
    const auto calls = group_.enter();
    group_.require_healthy();
    Operation& operation = ring_[next_ % ring_.size()];
    CHOIR_CHECK(operation.free, "more than {} operations in flight on {}", ring_.size(), label_);
    ++traffic_.calls;
    traffic_.bytes += static_cast<double>(bytes);
    begun_.record(compute_);
    side_.stream().wait(begun_);
    if (any) f();
    operation.done->record(side_.stream());
    operation.free = false;
    ++next_;
    collective_room(device_).begin();
    return operation;
  }
  void wait(Operation& operation) {
    CHOIR_CHECK(!operation.free, "wait() called twice on {}", label_);
    operation.free = true;
    collective_room(device_).end();
    group_.require_healthy();
    compute_.wait(*operation.done);
  }
  void wait_received(const Operation& operation) {
    CHOIR_CHECK(!operation.free, "wait_received() after wait() on {}", label_);
    group_.require_healthy();
    compute_.wait(*operation.done);
  }

  std::unique_ptr<Communicator> control_;
  Device& device_;
  NcclOptions options_;
  std::string label_;
  Stream compute_;
  SideStream side_;
  Event begun_;
  nccl::Group group_;
  nccl::TreeSum tree_;
  std::array<Operation, kMaxInFlight> ring_;
  std::uint64_t next_ = 0;
  int unwinding_ = std::uncaught_exceptions();
};

}  // namespace

NcclAvailability nccl_availability(const std::string& library) {
  const nccl::Library api(library);
  if (!api.loaded()) return {.version = {}, .soname = {}, .reason = api.reason()};
  return {.version = api.version(), .soname = api.soname(), .reason = {}};
}

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& host, Device& device,
                                                     const std::string& name,
                                                     const NcclOptions& options) {
  CHOIR_CHECK(device.kind() == DeviceKind::cuda, "NCCL on the {} device", name_of(device.kind()));
  order_launches(options);
  return std::make_unique<NcclCommunicator>(host.duplicate(name + " (control)"), device, name,
                                            options,
                                            std::make_shared<nccl::Library>(options.library));
}

NcclBlock make_nccl_block(Device& device, std::span<Communicator* const> communicators,
                          std::size_t bytes) {
  std::vector<NcclCommunicator*> users;
  for (Communicator* const communicator : communicators) {
    users.push_back(dynamic_cast<NcclCommunicator*>(communicator));
    CHOIR_CHECK(users.back() != nullptr, "{} is not a communicator of NCCL", communicator->name());
  }
  if (users.empty()) return {};
  std::shared_ptr<void> memory = block_of_nccl(device, users.front()->library(), bytes);
  std::vector<std::shared_ptr<void>> registrations;
  for (NcclCommunicator* const user : users)
    if (auto one = user->registered(memory.get(), bytes)) registrations.push_back(std::move(one));
  if (registrations.empty()) return {};
  const auto count = static_cast<int>(registrations.size());
  void* const data = memory.get();
  // The registrations end before the memory does.
  const auto end = [memory = std::move(memory),
                    registrations = std::move(registrations)](void*) mutable {
    registrations.clear();
    memory.reset();
  };
  return {.memory = {data, end}, .registrations = count};
}

}  // namespace choir
