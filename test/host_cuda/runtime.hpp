#pragma once
// The state behind the CUDA runtime on the CPU. Work is *queued* and runs only when the host or
// another stream waits for it, streams taking turns in an order drawn from the seed, so that a
// missing event or a buffer reused too early gives wrong numbers here as it would there. Device
// memory cannot be touched by the host between calls (pages without access; red zones instead under
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

/// Takes work that waits for other processes a little further; true when it is done.
using Progress = std::function<bool()>;

struct Operation {
  /// `peers`: work that waits for other processes, and lets other streams go on meanwhile.
  enum class Kind { work, peers, record, wait } kind = Kind::work;
  std::function<void()> work{};
  cudaEvent_t event = nullptr;
  std::uint64_t count = 0;            ///< of records of the event
  std::function<Progress()> begin{};  ///< of kind `peers`
  Progress progress{};                ///< ... when it has begun
};

/// How many nodes of each branch of a graph; those that are not listed have none.
using Clock = std::vector<std::size_t>;

/// A node runs after those of `after` and after those before it in its branch.
struct Node {
  Operation operation;
  Clock after{};
  std::size_t call = 0;  ///< its place among all nodes
};
/// One for each stream that was captured.
using Branches = std::vector<std::vector<Node>>;

struct Capture {
  std::uint64_t id = 0;
  Branches branches{};
  std::vector<Clock> known{};  ///< by branch: what its next node comes after
  cudaStream_t origin = nullptr;
  std::thread::id thread{};
  bool of_thread = false;  ///< does not concern other threads
  std::size_t calls = 0;
  bool invalid = false;
};

}  // namespace host_cuda

struct HostCudaEvent {
  std::uint64_t recorded = 0, reached = 0;  ///< how often
  double time = 0;
  bool timing = true;
  std::uint64_t capture = 0;  ///< in which it was recorded last, 0: in none
  host_cuda::Clock after;     ///< ... after which of its nodes
};
struct HostCudaStream {
  std::deque<host_cuda::Operation> queue;
  host_cuda::Capture* capture = nullptr;
  std::size_t branch = 0;  ///< of the capture
};

namespace host_cuda {

/// Bytes of each device: 2 GiB, or what HOST_CUDA_MEMORY says (MiB).
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
};
/// The one of this process.
Runtime& runtime();
using Lock = std::lock_guard<std::recursive_mutex>;

#if !defined(HOST_CUDA_MALLOC)
/// From now on whoever touches new device memory but in the emulated device's turn ends by SIGSEGV.
void close_to_the_host(void* memory, std::size_t bytes);
#endif

/// Seconds, for event times.
double now();
/// So many more have passed by that clock: what work takes on a device, as told, not measured.
void pass(double seconds);
/// Remembers a failure for cudaGetLastError and passes it on.
cudaError_t answer(cudaError_t error);
HostCudaStream& stream_of(cudaStream_t stream);
cudaError_t enqueue(cudaStream_t stream, Operation operation);
/// Queues work that waits for other processes.
void queue_for_peers(cudaStream_t stream, std::function<Progress()> begin);
/// Work that runs the nodes of a graph, every time anew.
std::function<Progress()> replay(std::shared_ptr<const Branches> graph);
/// The stream joins the capture, or knows of more of it.
void join(HostCudaStream& stream, Capture& capture, const Clock& after);
/// One of `count`: the first, or drawn from the seed.
std::size_t choose(std::size_t count);
/// Runs queued work until `done` holds, work of `wanted` first where no seed says otherwise.
void advance(HostCudaStream* wanted, const std::function<bool()>& done);
void drain(HostCudaStream& stream);
void drain_all();
/// Calls that wait are not allowed in a thread that captures, nor in others unless the mode of the
/// capture leaves them out; they spoil it.
bool refused_in_capture();
/// ... in no thread and no mode: waiting for what is being captured.
bool refused_in_capture(std::uint64_t of);
/// True if [address, address + bytes) lies in one of the blocks.
bool inside(const std::map<char*, std::size_t>& blocks, const void* address, std::size_t bytes);

}  // namespace host_cuda
