#pragma once
// The state behind the CUDA runtime on the CPU. Work is *queued* and runs only when the host or
// another stream waits for it, streams taking turns in an order drawn from the seed, so that a
// missing event or a buffer that is reused too early gives wrong numbers, as on a GPU. The host
// cannot touch device memory between calls (pages without access; red zones instead under
// AddressSanitizer).
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "test/host_cuda/include/cuda_runtime.h"

namespace host_cuda {

/// Advances work that waits for other processes; returns true when it is complete.
using Progress = std::function<bool()>;

struct Operation {
  /// `peers`: work that waits for other processes, and lets other streams continue meanwhile.
  enum class Kind { work, peers, record, wait } kind = Kind::work;
  std::function<void()> work{};
  cudaEvent_t event = nullptr;
  std::uint64_t count = 0;            ///< number of records of the event
  std::function<Progress()> begin{};  ///< for kind `peers`
  bool graph = false;                 ///< ... a whole graph
  Progress progress{};                ///< ... once it has begun
  /// A kernel, in place of `work`; early: a block may begin before the operation ahead of it.
  const char* kernel = nullptr;
  bool early = false;
  std::function<std::shared_ptr<EarlyBlock>()> begin_block{};
  std::function<void(std::shared_ptr<EarlyBlock>)> run_kernel{};
};

/// Number of nodes in each branch of a graph; branches that are not listed have none.
using Clock = std::vector<std::size_t>;

/// A node that runs after the nodes of `after` and after those before it in its branch.
struct Node {
  Operation operation;
  Clock after{};
  std::size_t call = 0;  ///< its index among all nodes
  int priority = 0;      ///< of the stream that recorded it; lower numbers run first
};
/// One branch for each captured stream.
using Branches = std::vector<std::vector<Node>>;

struct Capture {
  std::uint64_t id = 0;
  Branches branches{};
  std::vector<Clock> known{};  ///< by branch: the nodes that its next node comes after
  cudaStream_t origin = nullptr;
  std::thread::id thread{};
  bool of_thread = false;  ///< does not concern other threads
  std::size_t calls = 0;
  bool invalid = false;
};

}  // namespace host_cuda

struct HostCudaEvent {
  std::uint64_t recorded = 0, reached = 0;  ///< number of times
  double time = 0;
  bool timing = true;
  std::uint64_t capture = 0;  ///< the capture that recorded it last, 0: none
  host_cuda::Clock after;     ///< ... the nodes that it comes after
};
struct HostCudaStream {
  std::deque<host_cuda::Operation> queue;
  host_cuda::Capture* capture = nullptr;
  std::size_t branch = 0;  ///< branch of the capture
  bool joined = false;     ///< its next node comes after those of other streams, too
  int priority = 0;
};

namespace host_cuda {

/// Bytes of each device: HOST_CUDA_MEMORY (MiB), or enough for the tests on the ranks of this job.
std::size_t device_memory();

struct Runtime {
  std::recursive_mutex mutex;
  std::map<char*, std::size_t> device_blocks, pinned_blocks;
  std::set<cudaStream_t> streams;
  HostCudaStream default_stream;
  cudaError_t last = cudaSuccess;
  std::size_t used = 0;
  std::uint64_t seed = 0, state = 0;
  bool open = false;  ///< device memory accessible
  Capture* capturing = nullptr;
  int timed_records = 0;  ///< records of events that take the time
  int collectives = 0;    ///< operations of NCCL that have begun and not ended
};
/// The runtime of this process.
Runtime& runtime();
using Lock = std::lock_guard<std::recursive_mutex>;

#if !defined(HOST_CUDA_MALLOC)
/// From now on any access to new device memory outside of the emulated device's turn ends the
/// process by SIGSEGV.
void close_to_the_host(void* memory, std::size_t bytes);
#endif

/// Seconds, for event times.
double now();
/// Advances that clock: the assumed, not measured, time of work on a device.
void pass(double seconds);
/// Stores an error for cudaGetLastError and returns it.
cudaError_t answer(cudaError_t error);
HostCudaStream& stream_of(cudaStream_t stream);
cudaError_t enqueue(cudaStream_t stream, Operation operation);
/// True if an operation of NCCL has begun and not ended, or may begin at once.
bool collective_in_flight();
/// Queues work that waits for other processes.
void queue_for_peers(cudaStream_t stream, std::function<Progress()> begin);
/// Work that runs the nodes of a graph, again in every run. Nodes that are ready run in the order
/// of their priorities if `by_priority` is true, otherwise in the order of their calls.
std::function<Progress()> replay(std::shared_ptr<const Branches> graph, bool by_priority);
/// Adds the stream to the capture, or adds nodes that it comes after.
void join(HostCudaStream& stream, Capture& capture, const Clock& after);
/// Chooses one of `count`: the first, or one drawn from the seed.
std::size_t choose(std::size_t count);
/// Runs queued work until `done` is true; work of `wanted` comes first unless a seed decides
/// otherwise.
void advance(HostCudaStream* wanted, const std::function<bool()>& done);
void drain(HostCudaStream& stream);
void drain_all();
/// True if a waiting call is not allowed: in a thread that captures, and in others unless the mode
/// of the capture excludes them. Such a call invalidates the capture.
bool refused_in_capture();
/// ... for calls that wait for a captured operation, which no thread and no mode may do.
bool refused_in_capture(std::uint64_t of);
/// True if [address, address + bytes) lies in one of the blocks.
bool inside(const std::map<char*, std::size_t>& blocks, const void* address, std::size_t bytes);

}  // namespace host_cuda
