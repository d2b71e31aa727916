#pragma once
// One NCCL communicator from its id to its end, NCCL's return codes as errors, and sums with a
// defined order of additions. The communicator is nonblocking; background work of NCCL is awaited
// here, with a timeout.
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "choir/device/device.hpp"
#include "src/comm/nccl/nccl_api.hpp"
#include "src/comm/nccl/nccl_communicator.hpp"
#include "src/comm/watch/abort_hook.hpp"

namespace choir::nccl {

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
  Result state();
  [[noreturn]] void fail(const char* call, const std::string& words);

  std::shared_ptr<const Library> api_;
  std::string label_;
  double timeout_;
  int most_blocks_;
  Comm comm_ = nullptr;
  std::atomic<bool> broken_ = false, aborted_ = false;  ///< aborted_: comm_ is destroyed
  std::mutex mutex_;  ///< protects comm_ while its state is queried
  int unwinding_;
  AbortHook hook_{[this] { abort(); }};
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
