// NCCL for GPUs that do not exist: a library with the functions that choir opens, between processes
// of one machine. The id names a segment of shared memory with a channel between every two ranks;
// collectives are queued on the stream like kernels, and send everything to all ranks. Sums are
// computed from rank 0 upward, so that their bits differ from those of a tree. As in the real
// library, destroying and aborting a communicator end only when no graph has work of it.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "choir/core/dtype.hpp"
#include "src/comm/nccl/nccl_group.hpp"
#include "test/host_cuda/runtime.hpp"

using choir::nccl::Config;
using choir::nccl::Op;
using choir::nccl::Result;
using choir::nccl::Type;
using choir::nccl::UniqueId;

namespace {

constexpr Result kInvalid = static_cast<Result>(4);
constexpr std::size_t kChannelBytes = std::size_t{32} << 10;

struct Channel {
  std::atomic<std::uint64_t> written{0}, read{0};
  char data[kChannelBytes];
};
struct Shared {
  std::atomic<int> arrived{0};
  Channel channels[1];  // [ranks * ranks]
};

struct Transfer {
  int peer = 0;
  bool sends = false;
  const char* source = nullptr;
  char* target = nullptr;
  std::size_t bytes = 0, done = 0;
};

struct Communicator {
  int rank = 0, ranks = 1;
  Shared* shared = nullptr;
  std::size_t size = 0;
  std::string name;
  int most_blocks = 0;  ///< largest number of a kernel
  bool ready = false, aborted = false;
  std::shared_ptr<int> recorded =
      std::make_shared<int>(0);  ///< every recorded operation has it too
};

// Faults that tests cause on purpose.
bool hold_init = false;
Result failure = Result::success;
int calls_in_group = -1;  // -1: no group is open
std::vector<std::function<void()>> after_group;
int blocks = 0;        // of all communicators, in case they work at the same time
int busy_answers = 0;  // number of the next calls that are "in progress"

Channel& channel(Communicator& comm, int from, int to) {
  return comm.shared->channels[from * comm.ranks + to];
}

/// One part of a transfer, advanced without waiting.
void progress(Communicator& comm, Transfer& t) {
  Channel& c = t.sends ? channel(comm, comm.rank, t.peer) : channel(comm, t.peer, comm.rank);
  const std::uint64_t written = c.written.load(std::memory_order_acquire);
  const std::uint64_t read = c.read.load(std::memory_order_acquire);
  const std::size_t at = (t.sends ? written : read) % kChannelBytes;
  std::size_t bytes = t.sends ? kChannelBytes - (written - read) : written - read;
  bytes = std::min({bytes, t.bytes - t.done, kChannelBytes - at});
  if (t.sends) {
    std::memcpy(c.data + at, t.source + t.done, bytes);
    c.written.store(written + bytes, std::memory_order_release);
  } else {
    std::memcpy(t.target + t.done, c.data + at, bytes);
    c.read.store(read + bytes, std::memory_order_release);
  }
  t.done += bytes;
}

/// All transfers at once; two between the same ranks in the same direction keep the order of the
/// calls.
class Exchange {
 public:
  Exchange(Communicator& comm, std::vector<Transfer> transfers)
      : comm_(&comm), transfers_(std::move(transfers)) {}
  /// Advances the operation without waiting; returns true when it is complete.
  bool advance() {
    if (comm_->aborted) return true;
    bool busy = false;
    for (std::size_t i = 0; i < transfers_.size(); ++i) {
      Transfer& t = transfers_[i];
      bool earlier = false;
      for (std::size_t k = 0; k < i; ++k)
        earlier |= transfers_[k].peer == t.peer && transfers_[k].sends == t.sends &&
                   transfers_[k].done < transfers_[k].bytes;
      if (!earlier && t.done < t.bytes) progress(*comm_, t);
      busy |= t.done < t.bytes;
    }
    return !busy;
  }

 private:
  Communicator* comm_;
  std::vector<Transfer> transfers_;
};

std::size_t bytes_of(Type type) {
  switch (type) {
    case Type::u8:
      return 1;
    case Type::f16:
    case Type::bf16:
      return 2;
    case Type::i32:
    case Type::f32:
      return 4;
    case Type::i64:
    case Type::f64:
      return 8;
  }
  return 0;
}

template <class T, class A>
void combine(char* sum, const char* more, std::size_t count, Op op) {
  auto* a = reinterpret_cast<T*>(sum);
  const auto* b = reinterpret_cast<const T*>(more);
  for (std::size_t i = 0; i < count; ++i) {
    const A x = static_cast<A>(a[i]), y = static_cast<A>(b[i]);
    a[i] = T(op == Op::sum   ? static_cast<A>(x + y)
             : op == Op::max ? std::max(x, y)
                             : std::min(x, y));
  }
}

void combine(char* sum, const char* more, std::size_t count, Type type, Op op) {
  switch (type) {
    case Type::u8:
      return combine<std::uint8_t, int>(sum, more, count, op);
    case Type::f16:
      return combine<choir::f16, float>(sum, more, count, op);
    case Type::bf16:
      return combine<choir::bf16, float>(sum, more, count, op);
    case Type::i32:
      return combine<std::int32_t, std::int32_t>(sum, more, count, op);
    case Type::i64:
      return combine<std::int64_t, std::int64_t>(sum, more, count, op);
    case Type::f32:
      return combine<float, float>(sum, more, count, op);
    case Type::f64:
      return combine<double, double>(sum, more, count, op);
  }
}

using Parts = std::vector<std::vector<char>>;

/// Sends my `bytes` at `mine` to all ranks; `then` gets the data of all, by rank.
host_cuda::Progress share(Communicator& comm, const char* mine, std::size_t bytes,
                          std::function<void(Parts&)> then) {
  const auto all =
      std::make_shared<Parts>(static_cast<std::size_t>(comm.ranks), std::vector<char>(bytes));
  std::vector<Transfer> transfers;
  for (int p = 0; p < comm.ranks; ++p) {
    char* target = (*all)[static_cast<std::size_t>(p)].data();
    if (p == comm.rank) {
      std::memcpy(target, mine, bytes);
      continue;
    }
    transfers.push_back({.peer = p, .sends = true, .source = mine, .bytes = bytes});
    transfers.push_back({.peer = p, .target = target, .bytes = bytes});
  }
  return [exchange = Exchange(comm, std::move(transfers)), all, then = std::move(then)]() mutable {
    if (!exchange.advance()) return false;
    then(*all);
    return true;
  };
}

host_cuda::Progress reduced(Communicator& comm, const void* data, std::size_t count, Type type,
                            Op op, std::function<void(const std::vector<char>&)> then) {
  return share(comm, static_cast<const char*>(data), count * bytes_of(type),
               [=, then = std::move(then)](Parts& all) {
                 for (std::size_t p = 1; p < all.size(); ++p)
                   combine(all[0].data(), all[p].data(), count, type, op);
                 then(all[0]);
               });
}

std::vector<Transfer> group_transfers;
Communicator* group_comm = nullptr;
cudaStream_t group_stream = nullptr;

Result answer() {
  if (failure != Result::success) return failure;
  return busy_answers > 0 ? Result::in_progress : Result::success;
}

void put_on(cudaStream_t stream, const Communicator& comm,
            std::function<host_cuda::Progress()> begin) {
  const bool records = host_cuda::runtime().capturing != nullptr;
  host_cuda::queue_for_peers(stream, [graph = records ? comm.recorded : nullptr,
                                      begin = std::move(begin)] { return begin(); });
}

bool in_graphs(const Communicator& comm) {
  return comm.recorded.use_count() > 1;
}

/// Queues a call; calls within a group are queued when the group ends, as in the real library.
Result queue(cudaStream_t stream, const Communicator& comm,
             std::function<host_cuda::Progress()> begin) {
  const auto put = [stream, &comm, begin = std::move(begin)] { put_on(stream, comm, begin); };
  if (calls_in_group < 0) {
    put();
    return answer();
  }
  ++calls_in_group;
  after_group.push_back(put);
  return Result::success;
}

void queue_exchange(cudaStream_t stream, Communicator& comm, std::vector<Transfer> transfers) {
  put_on(stream, comm, [&comm, transfers = std::move(transfers)] {
    return [exchange = Exchange(comm, transfers)]() mutable { return exchange.advance(); };
  });
}

Result transfer(void* comm, cudaStream_t stream, const Transfer& t) {
  auto* c = static_cast<Communicator*>(comm);
  if (t.peer < 0 || t.peer >= c->ranks || t.peer == c->rank) return kInvalid;
  if (calls_in_group < 0) {
    queue_exchange(stream, *c, {t});
    return answer();
  }
  ++calls_in_group;
  group_comm = c, group_stream = stream;
  group_transfers.push_back(t);
  return Result::success;
}

}  // namespace

extern "C" {

// Functions for tests.
void nccl_fake_hold_init(bool hold) {
  hold_init = hold;
}
void nccl_fake_fail(int code) {
  failure = static_cast<Result>(code);
}
void nccl_fake_be_busy(int answers) {
  busy_answers = answers;
}

int nccl_fake_blocks() {
  return blocks;
}

Result ncclGetVersion(int* version) {
  *version = 22899;
  return Result::success;
}

Result ncclGetUniqueId(UniqueId* id) {
  static int count = 0;
  std::snprintf(id->internal, sizeof id->internal, "/nccl_fake_%d_%d", getpid(), count++);
  return Result::success;
}

Result ncclCommInitRankConfig(void** handle, int ranks, UniqueId id, int rank, Config* config) {
  if (config->magic != 0xcafebeef || config->blocking != 0 || config->size < sizeof(Config))
    return kInvalid;
  auto* comm = new Communicator{.rank = rank, .ranks = ranks, .name = id.internal};
  comm->size = sizeof(Shared) +
               sizeof(Channel) * static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks);
  const int file = shm_open(id.internal, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, static_cast<off_t>(comm->size)) != 0) return kInvalid;
  void* memory = mmap(nullptr, comm->size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return kInvalid;
  comm->shared = static_cast<Shared*>(memory);  // fresh files are zero, which is a fresh Shared
  constexpr int kUsual = 32;
  blocks += comm->most_blocks = config->max_ctas > 0 ? config->max_ctas : kUsual;
  comm->shared->arrived.fetch_add(1);
  *handle = comm;
  return Result::in_progress;
}

Result ncclCommGetAsyncError(void* handle, Result* state) {
  auto* comm = static_cast<Communicator*>(handle);
  if (failure != Result::success) {
    *state = failure;
    return Result::success;
  }
  comm->ready |= !hold_init && comm->shared->arrived.load() >= comm->ranks;
  *state = comm->ready ? answer() : Result::in_progress;
  if (busy_answers > 0) --busy_answers;
  return Result::success;
}

Result ncclCommFinalize(void*) {
  return Result::success;
}

Result ncclCommDestroy(void* handle) {
  auto* comm = static_cast<Communicator*>(handle);
  if (in_graphs(*comm)) {
    std::fprintf(stderr, "ncclCommDestroy while a graph has work of %s: it would wait\n",
                 comm->name.c_str());
    std::abort();
  }
  shm_unlink(comm->name.c_str());  // the first rank unlinks it; the others still have it mapped
  munmap(comm->shared, comm->size);
  blocks -= comm->most_blocks;
  delete comm;
  return Result::success;
}

// Work that is still queued is dropped, as its kernels would end.
Result ncclCommAbort(void* handle) {
  auto* comm = static_cast<Communicator*>(handle);
  shm_unlink(comm->name.c_str());
  comm->aborted = true;
  blocks -= comm->most_blocks;
  while (in_graphs(*comm)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return Result::success;
}

const char* ncclGetErrorString(Result code) {
  switch (code) {
    case Result::success:
      return "no error";
    case Result::in_progress:
      return "NCCL operation in progress";
    case Result::remote_error:
      return "remote process exited or there was a network error";
    default:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
  }
}
const char* ncclGetLastError(void*) {
  return "fake";
}

Result ncclGroupStart() {
  calls_in_group = 0;
  return Result::success;
}
Result ncclGroupEnd() {
  calls_in_group = -1;
  for (const auto& put : after_group) put();
  after_group.clear();
  if (!group_transfers.empty())
    queue_exchange(group_stream, *group_comm, std::move(group_transfers));
  group_transfers = {};
  return answer();
}

Result ncclAllReduce(const void* send, void* receive, std::size_t count, Type type, Op op,
                     void* comm, cudaStream_t stream) {
  auto* c = static_cast<Communicator*>(comm);
  return queue(stream, *c, [=] {
    return reduced(*c, send, count, type, op, [=](const std::vector<char>& sum) {
      std::memcpy(receive, sum.data(), sum.size());
    });
  });
}
Result ncclReduceScatter(const void* send, void* receive, std::size_t count, Type type, Op op,
                         void* comm, cudaStream_t stream) {
  auto* c = static_cast<Communicator*>(comm);
  const auto ranks = static_cast<std::size_t>(c->ranks);
  const std::size_t bytes = count * bytes_of(type);
  return queue(stream, *c, [=] {
    return reduced(*c, send, count * ranks, type, op, [=](const std::vector<char>& sum) {
      std::memcpy(receive, sum.data() + static_cast<std::size_t>(c->rank) * bytes, bytes);
    });
  });
}
Result ncclAllGather(const void* send, void* receive, std::size_t count, Type type, void* comm,
                     cudaStream_t stream) {
  auto* c = static_cast<Communicator*>(comm);
  const std::size_t bytes = count * bytes_of(type);
  return queue(stream, *c, [=] {
    return share(*c, static_cast<const char*>(send), bytes, [=](const Parts& all) {
      for (std::size_t p = 0; p < all.size(); ++p)
        std::memcpy(static_cast<char*>(receive) + p * bytes, all[p].data(), bytes);
    });
  });
}
Result ncclBroadcast(const void* send, void* receive, std::size_t count, Type type, int root,
                     void* comm, cudaStream_t stream) {
  auto* c = static_cast<Communicator*>(comm);
  return queue(stream, *c, [=] {
    return share(*c, static_cast<const char*>(send), count * bytes_of(type), [=](const Parts& all) {
      const auto& from = all[static_cast<std::size_t>(root)];
      std::memcpy(receive, from.data(), from.size());
    });
  });
}
Result ncclReduce(const void* send, void* receive, std::size_t count, Type type, Op op, int root,
                  void* comm, cudaStream_t stream) {
  auto* c = static_cast<Communicator*>(comm);
  return queue(stream, *c, [=] {
    return reduced(*c, send, count, type, op, [=](const std::vector<char>& sum) {
      if (c->rank == root) std::memcpy(receive, sum.data(), sum.size());
    });
  });
}
Result ncclSend(const void* data, std::size_t count, Type type, int peer, void* comm,
                cudaStream_t stream) {
  return transfer(comm, stream,
                  {.peer = peer,
                   .sends = true,
                   .source = static_cast<const char*>(data),
                   .bytes = count * bytes_of(type)});
}
Result ncclRecv(void* data, std::size_t count, Type type, int peer, void* comm,
                cudaStream_t stream) {
  return transfer(
      comm, stream,
      {.peer = peer, .target = static_cast<char*>(data), .bytes = count * bytes_of(type)});
}
Result ncclMemAlloc(void** address, std::size_t bytes) {
  return cudaMalloc(address, bytes) == cudaSuccess ? Result::success : kInvalid;
}
Result ncclMemFree(void* address) {
  return cudaFree(address) == cudaSuccess ? Result::success : kInvalid;
}

}  // extern "C"
