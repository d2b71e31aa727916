// NCCL for GPUs that do not exist: a library with the functions that choir opens, between processes
// of one machine. The id names a segment of shared memory with a channel between every two ranks;
// collectives are queued on the stream like kernels, and send everything to all ranks. Sums are
// computed from rank 0 upward, so that their bits differ from those of a tree. As in the real
// library, destroying and aborting a communicator end only when no graph has work of it; calls are
// in progress for a while; buffers are allocated by the first call that needs them; kernels of
// send and receive have a power of two of thread blocks; and a collective in a window is at the
// same offset on all ranks. With NCCL_FAKE_VERSION=N it is an older one, such as 22605, without
// windows.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "choir/core/dtype.hpp"
#include "src/comm/nccl/nccl_group.hpp"
#include "test/host_cuda/block.hpp"
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
constexpr std::size_t kMostRanks = 64;
struct Shared {
  std::atomic<int> arrived{0};
  char cards[kMostRanks][16];  ///< PCI address of each rank's card, if the node has several
  Channel channels[1];         // [ranks * ranks]
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
  int most_blocks = 0;                     ///< largest number of a kernel
  bool rings = false;                      ///< the neighbours of the rings are connected
  std::vector<bool> peers{};               ///< by rank: connected for send and receive
  std::size_t memory = 0;                  ///< bytes of device memory
  std::map<char*, std::size_t> windows{};  ///< bytes of registered memory, by address
  bool ready = false, aborted = false;
  std::shared_ptr<int> recorded =
      std::make_shared<int>(0);  ///< every recorded operation has it too
};

// Faults that tests cause on purpose.
bool hold_init = false;
std::atomic<Result> failure = Result::success;
int calls_in_group = -1;  // -1: no group is open
std::vector<std::function<void()>> after_group;
std::map<char*, std::size_t> blocks_of_nccl;  // from ncclMemAlloc
int windows = 0;                              // of all communicators
int calls_in_windows = 0;                     // collectives on registered memory
int blocks = 0;  // of all communicators, in case they work at the same time
std::atomic<int> busy_answers =
    0;  // number of the next queries that are answered with "in progress"
// The real library prepares a call in a thread, so that the first answers are "in progress".
constexpr int kUsualBusyAnswers = 3;
std::atomic<double> last_query = 0, shortest_wait = 1e9;  // seconds between two of these answers

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

/// The offset of the data in a window of the communicator; -1 outside of windows.
std::int64_t offset_in_window(const Communicator& comm, const void* data, std::size_t bytes) {
  if (!host_cuda::inside(comm.windows, data, bytes)) return -1;
  const auto* const at = static_cast<const char*>(data);
  return at - std::prev(comm.windows.upper_bound(const_cast<char*>(at)))->first;
}

/// A collective on `bytes` at `data`. The kernels of windows take the offset of one rank for that
/// of all, and no other kernel joins them.
host_cuda::Progress aligned(Communicator& comm, const void* data, std::size_t bytes,
                            std::function<host_cuda::Progress()> begin) {
  const auto mine = std::make_shared<std::int64_t>(offset_in_window(comm, data, bytes));
  calls_in_windows += *mine >= 0;
  auto compare = share(comm, reinterpret_cast<const char*>(mine.get()), sizeof *mine,
                       [mine, &comm](Parts& all) {
                         if (comm.aborted) return;
                         for (const std::vector<char>& one : all)
                           if (std::memcmp(one.data(), mine.get(), sizeof *mine) != 0)
                             host_cuda::defect("NCCL: a collective at other offsets of its window");
                       });
  return [compare = std::move(compare), mine, begin = std::move(begin),
          work = host_cuda::Progress()]() mutable {
    if (!work) {
      if (!compare()) return false;
      work = begin();
    }
    return work();
  };
}

std::vector<Transfer> group_transfers;
Communicator* group_comm = nullptr;
cudaStream_t group_stream = nullptr;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The answer to a query while a call may be under way.
Result answer() {
  if (failure != Result::success) return failure;
  return busy_answers > 0 ? Result::in_progress : Result::success;
}

/// The answer of a call that queued work.
Result begun() {
  busy_answers = std::max<int>(busy_answers, kUsualBusyAnswers);
  last_query = 0;
  return answer();
}

constexpr Result kInvalidUsage = static_cast<Result>(5);

/// The real library refuses two ranks with the same PCI address ("Duplicate GPU detected").
bool one_card_twice(const Communicator& comm) {
  for (int a = 0; a < comm.ranks; ++a)
    for (int b = 0; b < a; ++b)
      if (comm.shared->cards[a][0] != 0 &&
          std::strcmp(comm.shared->cards[a], comm.shared->cards[b]) == 0)
        return true;
  return false;
}

constexpr Result kUnhandledCudaError = static_cast<Result>(1);

/// Takes a block of device memory as cuMemCreate() does.
bool take_memory(Communicator& comm, std::size_t bytes) {
  constexpr std::size_t kGranularity = std::size_t{2} << 20;
  bytes = (bytes + kGranularity - 1) / kGranularity * kGranularity;
  host_cuda::Runtime& r = host_cuda::runtime();
  const host_cuda::Lock lock(r.mutex);
  if (r.used + bytes > host_cuda::device_memory()) return false;
  r.used += bytes;
  comm.memory += bytes;
  return true;
}

/// Both ends of the channels to one peer: a receiver has buffers of three protocols (4 MiB for
/// Simple, 0.5 for LL, 4.69 for LL128), a sender its counters.
bool connect(Communicator& comm, int channels) {
  constexpr std::size_t kReceives = (std::size_t{4} << 20) + (512u << 10) + 4915200u;
  constexpr std::size_t kSends = 4096;
  for (int c = 0; c < channels; ++c)
    if (!take_memory(comm, kReceives) || !take_memory(comm, kSends)) return false;
  return true;
}

/// Rings and trees within a node: the ranks before and after this one.
bool connect_rings(Communicator& comm) {
  if (comm.rings || comm.ranks == 1) return true;
  comm.rings = true;
  for (int peer = 0; peer < std::min(2, comm.ranks - 1); ++peer)
    if (!connect(comm, comm.most_blocks)) return false;
  return true;
}

/// Send and receive have channels of their own, of which there is a power of two.
bool connect_peer(Communicator& comm, int peer) {
  comm.peers.resize(static_cast<std::size_t>(comm.ranks));
  if (comm.peers[static_cast<std::size_t>(peer)]) return true;
  comm.peers[static_cast<std::size_t>(peer)] = true;
  const auto rounded = static_cast<int>(std::bit_ceil(static_cast<unsigned>(comm.most_blocks)));
  blocks += rounded - comm.most_blocks;
  comm.most_blocks = rounded;
  return connect(comm, rounded);
}

/// True from the operation on that NCCL_FAKE_FAIL_AFTER counts: as after a failure of the network,
/// it does not end before the communicator is aborted, and only queries show the error.
bool network_fails() {
  static const char* const text = std::getenv("NCCL_FAKE_FAIL_AFTER");
  static std::int64_t left = text != nullptr ? std::atoll(text) : 0;
  if (text == nullptr || --left >= 0) return false;
  failure = Result::remote_error;
  return true;
}

void put_on(cudaStream_t stream, const Communicator& comm,
            std::function<host_cuda::Progress()> begin) {
  const bool records = host_cuda::runtime().capturing != nullptr;
  host_cuda::queue_for_peers(
      stream, [graph = records ? comm.recorded : nullptr, &comm, begin = std::move(begin)] {
        if (network_fails()) return host_cuda::Progress([&comm] { return comm.aborted; });
        ++host_cuda::runtime().collectives;
        return host_cuda::Progress([work = begin()]() mutable {
          if (!work()) return false;
          --host_cuda::runtime().collectives;
          return true;
        });
      });
}

bool in_graphs(const Communicator& comm) {
  return comm.recorded.use_count() > 1;
}

/// Queues a call; calls within a group are queued when the group ends, as in the real library.
Result queue(cudaStream_t stream, Communicator& comm, std::function<host_cuda::Progress()> begin) {
  if (!connect_rings(comm)) return kUnhandledCudaError;
  const auto put = [stream, &comm, begin = std::move(begin)] { put_on(stream, comm, begin); };
  if (calls_in_group < 0) {
    put();
    return begun();
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
  if (!connect_peer(*c, t.peer)) return kUnhandledCudaError;
  if (calls_in_group < 0) {
    queue_exchange(stream, *c, {t});
    return begun();
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
int nccl_fake_windows() {
  return windows;
}
int nccl_fake_calls_in_windows() {
  return calls_in_windows;
}
/// The shortest time between two queries of which the first was answered with "in progress".
double nccl_fake_shortest_wait() {
  return shortest_wait.exchange(1e9);
}

Result ncclGetVersion(int* version) {
  const char* const text = std::getenv("NCCL_FAKE_VERSION");
  *version = text != nullptr ? std::atoi(text) : 22899;
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
  // Without the variable all processes of a test have the same card.
  int device = 0;
  if (std::getenv("HOST_CUDA_CARDS") != nullptr && cudaGetDevice(&device) == cudaSuccess)
    cudaDeviceGetPCIBusId(comm->shared->cards[rank], sizeof comm->shared->cards[rank], device);
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
  if (comm->ready && one_card_twice(*comm)) {
    *state = kInvalidUsage;
    return Result::success;
  }
  *state = comm->ready ? answer() : Result::in_progress;
  if (busy_answers > 0) {
    --busy_answers;
    const double now = seconds_now();
    if (last_query > 0) shortest_wait = std::min<double>(shortest_wait, now - last_query);
    last_query = now;
  }
  return Result::success;
}

Result ncclCommFinalize(void*) {
  return begun();
}

Result ncclCommDestroy(void* handle) {
  auto* comm = static_cast<Communicator*>(handle);
  if (!comm->windows.empty()) {
    std::fprintf(stderr, "ncclCommDestroy of %s, which has windows\n", comm->name.c_str());
    std::abort();
  }
  if (in_graphs(*comm)) {
    std::fprintf(stderr, "ncclCommDestroy while a graph has work of %s: it would wait\n",
                 comm->name.c_str());
    std::abort();
  }
  shm_unlink(comm->name.c_str());  // the first rank unlinks it; the others still have it mapped
  munmap(comm->shared, comm->size);
  blocks -= comm->most_blocks;
  host_cuda::runtime().used -= comm->memory;
  delete comm;
  return Result::success;
}

// Work that is still queued is dropped, as its kernels would end.
Result ncclCommAbort(void* handle) {
  auto* comm = static_cast<Communicator*>(handle);
  shm_unlink(comm->name.c_str());
  comm->aborted = true;
  blocks -= comm->most_blocks;
  host_cuda::runtime().used -= comm->memory;
  while (in_graphs(*comm)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return Result::success;
}

const char* ncclGetErrorString(Result code) {
  if (code == Result::success) return "no error";
  if (code == Result::in_progress) return "NCCL operation in progress";
  if (code == Result::remote_error) return "remote process exited or there was a network error";
  if (code == kUnhandledCudaError)
    return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
  if (code == kInvalidUsage) return "invalid usage (run with NCCL_DEBUG=WARN for details)";
  return "invalid argument (run with NCCL_DEBUG=WARN for details)";
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
  return begun();
}

Result ncclAllReduce(const void* send, void* receive, std::size_t count, Type type, Op op,
                     void* comm, cudaStream_t stream) {
  auto* c = static_cast<Communicator*>(comm);
  return queue(stream, *c, [=] {
    return aligned(*c, receive, count * bytes_of(type), [=] {
      return reduced(*c, send, count, type, op, [=](const std::vector<char>& sum) {
        std::memcpy(receive, sum.data(), sum.size());
      });
    });
  });
}
Result ncclReduceScatter(const void* send, void* receive, std::size_t count, Type type, Op op,
                         void* comm, cudaStream_t stream) {
  auto* c = static_cast<Communicator*>(comm);
  const auto ranks = static_cast<std::size_t>(c->ranks);
  const std::size_t bytes = count * bytes_of(type);
  return queue(stream, *c, [=] {
    return aligned(*c, send, bytes * ranks, [=] {
      return reduced(*c, send, count * ranks, type, op, [=](const std::vector<char>& sum) {
        std::memcpy(receive, sum.data() + static_cast<std::size_t>(c->rank) * bytes, bytes);
      });
    });
  });
}
Result ncclAllGather(const void* send, void* receive, std::size_t count, Type type, void* comm,
                     cudaStream_t stream) {
  auto* c = static_cast<Communicator*>(comm);
  const std::size_t bytes = count * bytes_of(type);
  return queue(stream, *c, [=] {
    return aligned(*c, receive, bytes * static_cast<std::size_t>(c->ranks), [=] {
      return share(*c, static_cast<const char*>(send), bytes, [=](const Parts& all) {
        for (std::size_t p = 0; p < all.size(); ++p)
          std::memcpy(static_cast<char*>(receive) + p * bytes, all[p].data(), bytes);
      });
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
// Sizes are rounded up to the granularity of multicast, 512 MiB on an H100, as the real library
// does. The pages are not touched, because most of them would only be padding.
Result ncclMemAlloc(void** address, std::size_t bytes) {
  cudaDeviceProp card;
  cudaGetDeviceProperties(&card, 0);
  const std::size_t granularity = std::size_t{card.major >= 9 ? 512u : 2u} << 20;
  bytes = (bytes + granularity - 1) / granularity * granularity;
  host_cuda::Runtime& r = host_cuda::runtime();
  const host_cuda::Lock lock(r.mutex);
  if (r.used + bytes > host_cuda::device_memory()) return kUnhandledCudaError;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return kUnhandledCudaError;
  host_cuda::close_to_the_host(memory, bytes);
  r.device_blocks[static_cast<char*>(memory)] = bytes;
  r.used += bytes;
  blocks_of_nccl[static_cast<char*>(memory)] = bytes;
  *address = memory;
  return Result::success;
}
Result ncclMemFree(void* address) {
  blocks_of_nccl.erase(static_cast<char*>(address));
  return cudaFree(address) == cudaSuccess ? Result::success : kInvalid;
}
Result ncclCommWindowRegister(void* handle, void* data, std::size_t bytes, void** window,
                              int flags) {
  constexpr int kSymmetric = 1;
  constexpr std::uintptr_t kAlignment = 4096;
  auto* comm = static_cast<Communicator*>(handle);
  const bool own = host_cuda::inside(blocks_of_nccl, data, bytes);
  if (!own || reinterpret_cast<std::uintptr_t>(data) % kAlignment != 0 || flags != kSymmetric)
    return kInvalid;
  comm->windows[static_cast<char*>(data)] = bytes;
  ++windows;
  *window = data;
  return begun();
}
Result ncclCommWindowDeregister(void* handle, void* window) {
  auto* comm = static_cast<Communicator*>(handle);
  if (comm->windows.erase(static_cast<char*>(window)) == 0) return kInvalid;
  --windows;
  return begun();
}
// The registration of versions before windows, which takes any device memory.
Result ncclCommRegister(void* handle, void* data, std::size_t bytes, void** registration) {
  auto* comm = static_cast<Communicator*>(handle);
  if (!host_cuda::inside(host_cuda::runtime().device_blocks, data, bytes)) return kInvalid;
  comm->windows[static_cast<char*>(data)] = bytes;
  ++windows;
  *registration = data;
  return begun();
}
Result ncclCommDeregister(void* handle, void* registration) {
  return ncclCommWindowDeregister(handle, registration);
}

}  // extern "C"
