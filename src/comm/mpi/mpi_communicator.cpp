#include "src/comm/mpi/mpi_communicator.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include "choir/core/error.hpp"
#include "src/comm/communicator_parts.hpp"
#include "src/comm/mpi/mpi_queue.hpp"
#include "src/core/quantities.hpp"

namespace choir {

std::string mpi_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING + 1> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS)
    return fmt::format("MPI error {}", code);
  return {text.data(), static_cast<std::size_t>(length)};
}

void throw_mpi_error(int code, std::string_view call, std::string_view where,
                     std::source_location at) {
  throw CommError(
      fmt::format("{}{}{} failed: {}", call, where.empty() ? "" : " on ", where, mpi_text(code)),
      "look for an earlier error of another rank; `choir doctor` tests the MPI set-up", at);
}

MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return MPI_DOUBLE;
    case DType::f32:
      return MPI_FLOAT;
    case DType::i64:
      return MPI_INT64_T;
    case DType::i32:
      return MPI_INT32_T;
    case DType::u16:
      return MPI_UINT16_T;
    case DType::u8:
      return MPI_UINT8_T;
    default:
      break;
  }
  CHOIR_CHECK(false, "MPI has no type for {}", name_of(dtype));
  return MPI_DATATYPE_NULL;
}

MPI_Op mpi_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return MPI_SUM;
    case ReduceOp::max:
      return MPI_MAX;
    case ReduceOp::min:
      return MPI_MIN;
  }
  return MPI_OP_NULL;
}

MPI_Comm mpi_handle(const Communicator& comm) {
  const auto* own = dynamic_cast<const HasMpiHandle*>(&comm);
  CHOIR_CHECK(own != nullptr, "communicator {} ({}) has no MPI handle", comm.name(),
              comm.transport());
  return own->mpi_handle();
}

namespace {

constexpr int kTagBlocks = 32002;
constexpr int kFirstReservedTag = 30000;
/// Up to 4.1.1, MPICH reads from MPI_IN_PLACE itself if the root is not the first rank of a host
/// (pmodels/mpich, issue 6540), and other MPIs are derived from it. With these, the root passes a
/// copy.
#if defined(MPICH_VERSION)
constexpr bool kCopiesRoot = true;
#else
constexpr bool kCopiesRoot = false;
#endif

MPI_Comm duplicate_of(MPI_Comm group, const std::string& name) {
  MPI_Comm copy = MPI_COMM_NULL;
  mpi_check(MPI_Comm_dup(group, &copy), "MPI_Comm_dup", name);
  MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN);
  MPI_Comm_set_name(copy, name.c_str());
  return copy;
}

// An id that is the same on all ranks of the group and differs from those of other groups; the
// first rank of the group counts them.
std::uint64_t agreed_id(MPI_Comm comm, const std::string& name) {
  static std::atomic<std::uint32_t> made{0};
  int world_rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  std::uint64_t id = static_cast<std::uint64_t>(world_rank) << 32 | ++made;
  mpi_check(MPI_Bcast(&id, 1, MPI_UINT64_T, 0, comm), "MPI_Bcast", name);
  return id;
}

// One duplicated group. It is freed last, after everything that uses it.
struct Group {
  Group(MPI_Comm from, const std::string& name) : comm(duplicate_of(from, name)) {
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    id = agreed_id(comm, name);
  }
  ~Group() {
    // Freeing is collective, and while an exception unwinds other ranks may never arrive. Then the
    // group is not freed.
    if (std::uncaught_exceptions() == unwinding && comm != MPI_COMM_NULL) MPI_Comm_free(&comm);
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  MPI_Comm comm;
  int rank = 0, size = 1;
  std::uint64_t id = 0;
  int unwinding = std::uncaught_exceptions();
};

/// A block that other ranks cannot access.
class PrivateBuffer final : public CommBuffer {
 public:
  explicit PrivateBuffer(std::size_t bytes) : memory_(aligned_memory(bytes)), bytes_(bytes) {}
  void* data() const override { return memory_.get(); }
  std::size_t bytes() const override { return bytes_; }
  bool shared() const override { return false; }

 private:
  AlignedMemory memory_;
  std::size_t bytes_ = 0;
};

class MpiCommunicator final : public Communicator, public HasMpiHandle {
 public:
  MpiCommunicator(std::unique_ptr<Group> group, const std::string& name, const MpiOptions& options)
      : Communicator(name, group->rank, group->size),
        group_(std::move(group)),
        async_group_(group_->comm, name + " (async)"),
        comm_(group_->comm),
        options_(options),
        label_(fmt::format("{} (rank {} of {})", name, rank(), size())),
        queue_(async_group_.comm, label_, rank(), size(), options, traffic_),
        exchanges_(comm_, label_, options.message_bytes, traffic_),
        requests_(static_cast<std::size_t>(size()), MPI_REQUEST_NULL) {
    identify(group_->id);
  }

  const char* transport() const override { return "mpi"; }
  MPI_Comm mpi_handle() const override { return comm_; }

  std::unique_ptr<CommBuffer> allocate(std::size_t bytes) override {
    return std::make_unique<PrivateBuffer>(bytes);
  }

  void do_all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op,
                     Summation order) override {
    const TrafficTimer timer(traffic_, count * size_of(dtype));
    if (size() == 1) return;
    if (is_sliced(dtype, op, order))
      return queue_.run({MpiQueue::Kind::all_reduce, data, count, dtype, op, true});
    for_each_chunk(count, reduce_limit(dtype), [&](std::size_t offset, std::size_t length) {
      mpi_check(MPI_Allreduce(MPI_IN_PLACE, at(data, offset * size_of(dtype)),
                              static_cast<int>(length), mpi_type(dtype), mpi_op(op), comm_),
                "MPI_Allreduce", label_);
    });
  }

  void do_reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp op,
                         Summation /*order*/) override {
    const TrafficTimer timer(traffic_, count * size_of(dtype) * ranks());
    if (size() > 1) queue_.run({MpiQueue::Kind::reduce_scatter, data, count, dtype, op, true});
  }

  void do_all_gather(void* data, std::size_t count, DType dtype) override {
    const std::size_t block = count * size_of(dtype);
    const TrafficTimer timer(traffic_, block * ranks());
    if (size() == 1 || count == 0) return;
    if (block <= options_.message_bytes)
      return mpi_check(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data,
                                     static_cast<int>(block), MPI_BYTE, comm_),
                       "MPI_Allgather", label_);
    queue_.run({MpiQueue::Kind::all_gather, data, count, dtype, ReduceOp::sum, false});
  }

  void do_broadcast(void* data, std::size_t bytes, int root) override {
    const TrafficTimer timer(traffic_, bytes);
    check_rank(root);
    if (size() > 1) broadcast_pieces(data, bytes, root);
  }

  void do_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, int root) override {
    const TrafficTimer timer(traffic_, count * size_of(dtype));
    check_rank(root);
    if (size() == 1) return;
    const bool gathered = is_sliced(dtype, op, Summation::fast);
    constexpr std::size_t kShortest = 4096;  // minimum bytes of a rank when the root gathers
    const std::size_t share = std::max(kShortest, options_.reduce_chunk_bytes / ranks());
    const std::size_t limit = gathered ? share / size_of(dtype) : reduce_limit(dtype);
    for_each_chunk(count, limit, [&](std::size_t offset, std::size_t length) {
      std::byte* piece = at(data, offset * size_of(dtype));
      if (gathered)
        gather_and_reduce(piece, length, dtype, op, root);
      else
        reduce_piece(piece, length, dtype, op, root);
    });
  }

  void do_scatter(const void* send, const std::int64_t* counts, const std::int64_t* offsets,
                  void* receive, std::size_t bytes, int root) override {
    const TrafficTimer timer(traffic_, bytes);
    check_rank(root);
    if (rank() != root)
      return receive_pieces(receive, bytes, root, kTagBlocks, options_.max_chunk_bytes);
    const auto mine = static_cast<std::size_t>(root);
    CHOIR_CHECK(counts[mine] == static_cast<std::int64_t>(bytes),
                "scatter on {}: {} bytes for the root, {} wanted", label_, counts[mine], bytes);
    std::memmove(receive, at(send, static_cast<std::size_t>(offsets[mine])), bytes);
    const auto post = [&](int peer, const Chunk& piece, std::size_t base, MPI_Request* request) {
      mpi_check(MPI_Isend(at(send, base + piece.offset), static_cast<int>(piece.count), MPI_BYTE,
                          peer, kTagBlocks, comm_, request),
                "MPI_Isend", label_);
    };
    with_every_peer(counts, offsets, post);
  }

  void do_gather(const void* send, std::size_t bytes, void* receive, const std::int64_t* counts,
                 const std::int64_t* offsets, int root) override {
    const TrafficTimer timer(traffic_, bytes);
    check_rank(root);
    if (rank() != root) return send_pieces(send, bytes, root, kTagBlocks, options_.max_chunk_bytes);
    const auto mine = static_cast<std::size_t>(root);
    CHOIR_CHECK(counts[mine] == static_cast<std::int64_t>(bytes),
                "gather on {}: {} bytes from the root, {} wanted", label_, bytes, counts[mine]);
    std::memmove(at(receive, static_cast<std::size_t>(offsets[mine])), send, bytes);
    const auto post = [&](int peer, const Chunk& piece, std::size_t base, MPI_Request* request) {
      mpi_check(MPI_Irecv(at(receive, base + piece.offset), static_cast<int>(piece.count), MPI_BYTE,
                          peer, kTagBlocks, comm_, request),
                "MPI_Irecv", label_);
    };
    with_every_peer(counts, offsets, post);
  }

  void do_all_to_all(const void* send, void* receive, std::size_t bytes) override {
    const TrafficTimer timer(traffic_, bytes * ranks());
    if (bytes <= options_.message_bytes)
      return mpi_check(MPI_Alltoall(send, static_cast<int>(bytes), MPI_BYTE, receive,
                                    static_cast<int>(bytes), MPI_BYTE, comm_),
                       "MPI_Alltoall", label_);
    for (int step = 0; step < size(); ++step) {
      const int to = (rank() + step) % size(), from = (rank() - step + size()) % size();
      auto* out = const_cast<std::byte*>(at(send, static_cast<std::size_t>(to) * bytes));
      std::byte* in = at(receive, static_cast<std::size_t>(from) * bytes);
      if (to == rank()) {
        std::memcpy(in, out, bytes);
        continue;
      }
      exchanges_.run(std::array<Message, 2>{
          {{true, out, bytes, to, kTagBlocks}, {false, in, bytes, from, kTagBlocks}}});
    }
  }

  void do_send(const void* data, std::size_t bytes, int to, int tag) override {
    const TrafficTimer timer(traffic_, bytes);
    check_peer(to, tag);
    send_pieces(data, bytes, to, tag, options_.message_bytes);  // the receiver may use an exchange
  }

  void do_receive(void* data, std::size_t bytes, int from, int tag) override {
    const TrafficTimer timer(traffic_, bytes);
    check_peer(from, tag);
    receive_pieces(data, bytes, from, tag, options_.message_bytes);
  }

  void do_barrier() override {
    const TrafficTimer timer(traffic_, 0);
    if (size() > 1) mpi_check(MPI_Barrier(comm_), "MPI_Barrier", label_);
  }

  CommRequest& do_start_all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op,
                                   Summation order) override {
    return start({MpiQueue::Kind::all_reduce, data, count, dtype, op, is_sliced(dtype, op, order)},
                 1);
  }
  CommRequest& do_start_reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp op,
                                       Summation /*order*/) override {
    return start({MpiQueue::Kind::reduce_scatter, data, count, dtype, op, true}, ranks());
  }
  CommRequest& do_start_all_gather(void* data, std::size_t count, DType dtype) override {
    return start({MpiQueue::Kind::all_gather, data, count, dtype, ReduceOp::sum, false}, ranks());
  }

  ExchangeRequest& do_start_exchange(std::span<const Message> messages) override {
    const TrafficTimer timer(traffic_, check_exchange(messages, kFirstReservedTag));
    return exchanges_.start(messages);
  }

  std::unique_ptr<Communicator> duplicate(const std::string& name) override {
    return make_mpi_communicator(comm_, name, options_);
  }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }
  static bool is_sliced(DType dtype, ReduceOp op, Summation order) {
    return dtype == DType::bf16 || dtype == DType::f16 ||
           (order == Summation::tree && op == ReduceOp::sum);
  }
  std::size_t reduce_limit(DType dtype) const {
    return std::max<std::size_t>(1, options_.reduce_chunk_bytes / size_of(dtype));
  }
  void check_rank(int peer) const {
    CHOIR_CHECK(peer >= 0 && peer < size(), "rank {} does not exist in {}", peer, label_);
  }
  void check_peer(int peer, int tag) const {
    check_rank(peer);
    CHOIR_CHECK(tag >= 0 && tag < kFirstReservedTag, "tag {} on {}", tag, label_);
  }
  CommRequest& start(const MpiQueue::Work& work, std::size_t blocks) {
    ++traffic_.calls;
    traffic_.bytes += static_cast<double>(work.count * size_of(work.dtype) * blocks);
    return queue_.start(work);
  }
  void reduce_piece(std::byte* data, std::size_t count, DType dtype, ReduceOp op, int root) {
    const bool mine = root == rank();
    const void* from = mine ? MPI_IN_PLACE : data;
    if (mine && kCopiesRoot) {
      of_root_.assign(data, data + count * size_of(dtype));
      from = of_root_.data();
    }
    mpi_check(MPI_Reduce(from, mine ? data : nullptr, static_cast<int>(count), mpi_type(dtype),
                         mpi_op(op), root, comm_),
              "MPI_Reduce", label_);
  }
  /// For types without an MPI type: the root gathers all data and adds them.
  void gather_and_reduce(std::byte* data, std::size_t count, DType dtype, ReduceOp op, int root) {
    const std::size_t bytes = count * size_of(dtype);
    if (rank() == root) of_root_.resize(bytes * ranks());
    mpi_check(MPI_Gather(data, static_cast<int>(bytes), MPI_BYTE, of_root_.data(),
                         static_cast<int>(bytes), MPI_BYTE, root, comm_),
              "MPI_Gather", label_);
    if (rank() != root) return;
    std::vector<const void*> inputs;
    for (std::size_t p = 0; p < ranks(); ++p) inputs.push_back(of_root_.data() + p * bytes);
    void* out = data;
    tree_reduce(inputs.data(), size(), &out, 1, count, dtype, op);
  }
  void broadcast_pieces(void* data, std::size_t bytes, int root) {
    for_each_chunk(bytes, options_.max_chunk_bytes, [&](std::size_t offset, std::size_t length) {
      mpi_check(MPI_Bcast(at(data, offset), static_cast<int>(length), MPI_BYTE, root, comm_),
                "MPI_Bcast", label_);
    });
  }
  void send_pieces(const void* data, std::size_t bytes, int to, int tag, std::size_t limit) {
    for_each_chunk(bytes, limit, [&](std::size_t offset, std::size_t length) {
      mpi_check(MPI_Send(at(data, offset), static_cast<int>(length), MPI_BYTE, to, tag, comm_),
                "MPI_Send", label_);
    });
  }
  void receive_pieces(void* data, std::size_t bytes, int from, int tag, std::size_t limit) {
    for_each_chunk(bytes, limit, [&](std::size_t offset, std::size_t length) {
      MPI_Status status;
      mpi_check(
          MPI_Recv(at(data, offset), static_cast<int>(length), MPI_BYTE, from, tag, comm_, &status),
          "MPI_Recv", label_);
      int got = 0;
      MPI_Get_count(&status, MPI_BYTE, &got);
      if (got != static_cast<int>(length))
        throw CommError(fmt::format("MPI_Recv on {}: {} bytes from rank {}, {} expected", label_,
                                    got, from, length));
    });
  }
  /// Called at the root: sends or receives one chunk to or from every other rank at a time.
  template <class Post>
  void with_every_peer(const std::int64_t* counts, const std::int64_t* offsets, const Post& post) {
    bool more = true;
    for (std::size_t round = 0; more; ++round) {
      more = false;
      int posted = 0;
      for (int peer = 0; peer < size(); ++peer) {
        const auto p = static_cast<std::size_t>(peer);
        const auto bytes = static_cast<std::size_t>(counts[p]);
        if (peer == rank() || round >= chunk_count(bytes, options_.max_chunk_bytes)) continue;
        more = true;
        post(peer, chunk_at(round, bytes, options_.max_chunk_bytes),
             static_cast<std::size_t>(offsets[p]), &requests_[static_cast<std::size_t>(posted++)]);
      }
      mpi_check(MPI_Waitall(posted, requests_.data(), MPI_STATUSES_IGNORE), "MPI_Waitall", label_);
    }
  }

  std::unique_ptr<Group> group_;
  Group async_group_;
  MPI_Comm comm_;
  MpiOptions options_;
  std::string label_;
  std::vector<std::byte> of_root_;  // one chunk, or one chunk of each rank
  MpiQueue queue_;
  MpiExchanges exchanges_;
  std::vector<MPI_Request> requests_;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm group, const std::string& name,
                                                    const MpiOptions& options) {
  return std::make_unique<MpiCommunicator>(std::make_unique<Group>(group, name), name, options);
}

std::unique_ptr<Communicator> make_leading_group(const Communicator& all, int ranks) {
  CHOIR_CHECK(ranks >= 1 && ranks <= all.size(), "the first {} of {} ranks", ranks, all.size());
  MPI_Comm group = MPI_COMM_NULL;
  mpi_check(
      MPI_Comm_split(mpi_handle(all), all.rank() < ranks ? 0 : MPI_UNDEFINED, all.rank(), &group),
      "MPI_Comm_split", all.name());
  if (group == MPI_COMM_NULL) return nullptr;
  auto leading = make_mpi_communicator(group, fmt::format("first {}", ranks));
  MPI_Comm_free(&group);
  return leading;
}

void quiet_barrier(const Communicator& all, const std::function<void()>& look) {
  using namespace std::chrono_literals;
  MPI_Request request = MPI_REQUEST_NULL;
  mpi_check(MPI_Ibarrier(mpi_handle(all), &request), "MPI_Ibarrier", all.name());
  auto pause = 50us;
  for (int done = 0;;) {
    mpi_check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test", all.name());
    if (done != 0) return;
    if (look) look();
    std::this_thread::sleep_for(pause);
    pause = std::min<std::chrono::microseconds>(2 * pause, 2ms);
  }
}

}  // namespace choir
