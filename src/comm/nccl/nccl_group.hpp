#pragma once
// NCCL behind one class. First the used part of NCCL's C interface and the table of its functions,
// filled while the program runs: names, numbers and layouts are NVIDIA's (nccl.h; nccl_group.cpp
// compares them with the header if it exists), only their spelling differs, so that a build needs
// no NCCL. Then one NCCL communicator from its id to its end, NCCL's return codes as errors, and
// sums with a defined order of additions. The communicator is nonblocking; background work of NCCL
// is awaited here, with a timeout.

#include <cuda_runtime.h>

#include <atomic>
#include <climits>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "choir/device/device.hpp"
#include "src/comm/nccl/nccl_communicator.hpp"
#include "src/comm/watch/watchdog.hpp"
#include "src/core/process.hpp"

namespace choir::nccl {

using Comm = void*;
struct UniqueId {
  char internal[128];
};

enum class Result : int { success = 0, remote_error = 6, in_progress = 7 };
enum class Type : int { u8 = 1, i32 = 2, i64 = 4, f16 = 6, f32 = 7, f64 = 8, bf16 = 9 };
enum class Op : int { sum = 0, max = 2, min = 3 };

/// ncclConfig_t of version 2.18; newer libraries fill in their later fields.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 2 * 10000 + 18 * 100;
  int blocking = INT_MIN;  // INT_MIN here and below: undefined
  int cga_cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
};

/// Loads the library once per object. Local.
class Library {
 public:
  /// An empty `path` means the system's library.
  explicit Library(const std::string& path);
  bool loaded() const { return library_.loaded(); }
  const std::string& reason() const { return library_.reason(); }
  const std::string& soname() const { return library_.soname(); }
  /// "2.28.9"
  std::string version() const;

  Result (*get_version)(int*) = nullptr;
  Result (*get_unique_id)(UniqueId*) = nullptr;
  Result (*comm_init)(Comm*, int ranks, UniqueId, int rank, Config*) = nullptr;
  Result (*comm_finalize)(Comm) = nullptr;
  Result (*comm_destroy)(Comm) = nullptr;
  Result (*comm_abort)(Comm) = nullptr;
  Result (*async_error)(Comm, Result*) = nullptr;
  const char* (*error_string)(Result) = nullptr;
  const char* (*last_error)(Comm) = nullptr;
  Result (*group_start)() = nullptr;
  Result (*group_end)() = nullptr;
  Result (*all_reduce)(const void*, void*, std::size_t, Type, Op, Comm, cudaStream_t) = nullptr;
  Result (*reduce_scatter)(const void*, void*, std::size_t, Type, Op, Comm, cudaStream_t) = nullptr;
  Result (*all_gather)(const void*, void*, std::size_t, Type, Comm, cudaStream_t) = nullptr;
  Result (*broadcast)(const void*, void*, std::size_t, Type, int root, Comm,
                      cudaStream_t) = nullptr;
  Result (*reduce)(const void*, void*, std::size_t, Type, Op, int root, Comm,
                   cudaStream_t) = nullptr;
  Result (*send)(const void*, std::size_t, Type, int peer, Comm, cudaStream_t) = nullptr;
  Result (*receive)(void*, std::size_t, Type, int peer, Comm, cudaStream_t) = nullptr;
  Result (*mem_alloc)(void**, std::size_t) = nullptr;
  Result (*mem_free)(void*) = nullptr;
  // Windows exist since 2.27, the older registration since 2.19; nullptr in older libraries.
  Result (*window_register)(Comm, void*, std::size_t, void** window, int flags) = nullptr;
  Result (*window_deregister)(Comm, void* window) = nullptr;
  Result (*comm_register)(Comm, void*, std::size_t, void** handle) = nullptr;
  Result (*comm_deregister)(Comm, void* handle) = nullptr;

 private:
  SharedLibrary library_;
};

class Group {
 public:
  /// Collective over `control`. `label` is for messages. `most_blocks` limits the thread blocks of
  /// a kernel; 0 leaves the choice to NCCL.
  Group(Communicator& control, std::string label, const NcclOptions& options, int most_blocks,
        std::shared_ptr<const Library> api);
  /// Collective, except while an exception unwinds or after a failure: then it aborts.
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  Comm handle() const { return comm_; }
  bool broken() const { return broken_; }
  const Library& api() const { return *api_; }
  const std::shared_ptr<const Library>& library() const { return api_; }

  /// Waits while NCCL is busy with `call`. Throws CommError if the call failed or timed out.
  void settle(Result code, const char* call);
  /// Ends NCCL's kernels; this and every later call throws. May be called from any thread at any
  /// time.
  void abort();
  /// Throws CommError if the group is broken, or if a peer or the network has failed meanwhile.
  void require_healthy();
  /// The calls of the main thread, from the first call into NCCL to the last settle(), hold this
  /// lock: while they do, the watchdog does not ask NCCL for errors, because the answer may finish
  /// what a call has begun.
  std::unique_lock<std::mutex> enter() { return std::unique_lock(calls_); }
  bool can_register() const { return has_windows() || api_->comm_register != nullptr; }
  /// Registers memory as a symmetric window, or in the older form that has no windows. Returns
  /// nullptr if NCCL refuses, which breaks nothing. Collective.
  void* register_memory(void* data, std::size_t bytes);
  void deregister(void* registration) noexcept;
  /// Combines all calls made by f() into one NCCL operation.
  template <class F>
  void grouped(const F& f) {
    settle(api_->group_start(), "ncclGroupStart");
    try {
      f();
    } catch (...) {
      api_->group_end();
      throw;
    }
    settle(api_->group_end(), "ncclGroupEnd");
  }

 private:
  void start(Communicator& control);
  bool has_windows() const { return api_->window_register != nullptr; }
  Result state();
  /// Waits while NCCL is busy with `call`, and returns its result. Throws CommError at the
  /// time-out.
  Result result_of(Result code, const char* call);
  std::string message(const char* call, const std::string& words) const;
  [[noreturn]] void fail(const char* call, const std::string& words);
  /// The message of an error that nobody has reported, for the watchdog; "" if there is none.
  std::string unseen_failure();

  std::shared_ptr<const Library> api_;
  std::string label_;
  double timeout_;
  int most_blocks_;
  Comm comm_ = nullptr;
  std::atomic<bool> broken_ = false, aborted_ = false;  ///< aborted_: comm_ is destroyed
  std::mutex mutex_;  ///< protects comm_ while its state is queried
  std::mutex calls_;  ///< see enter()
  int unwinding_;
  AbortHook hook_{[this] { abort(); }};
  HealthCheck health_{[this] { return unseen_failure(); }};
};

/// Sums in a fixed order: slices are sent to their owner, which adds them in the tree of
/// Summation::tree, ((0+1)+(2+3))+..., with an odd last term carried up.
class TreeSum {
 public:
  /// Borrows the group and the device. Scratch memory is allocated by the first sum.
  TreeSum(Group& group, Device& device, int rank, int ranks)
      : group_(group), device_(device), rank_(rank), ranks_(ranks) {}

  // Queued on `stream`. The contracts are those of Communicator, for f32.
  void all_reduce(const Stream& stream, float* data, std::size_t count);
  void reduce_scatter(const Stream& stream, float* data, std::size_t count);

 private:
  struct Slice {
    float* data = nullptr;
    std::size_t count = 0;
  };
  /// Elements of one rank's part of the scratch memory.
  std::size_t slice_limit();
  template <class SliceOf>
  void exchange_and_add(const Stream& stream, const SliceOf& slice_of);

  Group& group_;
  Device& device_;
  int rank_, ranks_;
  Buffer scratch_;
  std::vector<float*> terms_;
};

}  // namespace choir::nccl
