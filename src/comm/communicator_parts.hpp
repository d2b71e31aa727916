#pragma once
// Parts that several kinds of communicators share: blocks of host and of device memory, the count
// of calls and bytes, and the base of communicators for device memory.

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "choir/comm/communicator.hpp"
#include "choir/core/error.hpp"
#include "choir/device/device.hpp"
#include "src/comm/chunks.hpp"
#include "src/core/quantities.hpp"

namespace choir {

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using AlignedMemory = std::unique_ptr<std::byte, FreeMemory>;

/// A block aligned to 64 bytes, in huge pages if it is large. Throws CommError if there is no
/// memory. Local.
inline AlignedMemory aligned_memory(std::size_t bytes) {
  constexpr std::size_t kHugePage = std::size_t{2} << 20;
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  const std::size_t padded = std::max<std::size_t>(1, chunk_count(bytes, 64)) * 64;
  void* memory = nullptr;
  if (posix_memalign(&memory, alignment, padded) != 0)
    throw CommError(
        "no memory for a communication buffer of " + format_bytes(static_cast<double>(bytes)),
        "use fewer ranks per node or a smaller model");
  if (alignment == kHugePage) madvise(memory, padded, MADV_HUGEPAGE);
  std::memset(memory, 0, padded);
  return AlignedMemory(static_cast<std::byte*>(memory));
}

/// Counts one blocking call: its bytes at once, its time at the end of the scope.
class TrafficTimer {
 public:
  TrafficTimer(CommTraffic& traffic, std::size_t bytes) : traffic_(traffic), from_(now_seconds()) {
    ++traffic_.calls;
    traffic_.bytes += static_cast<double>(bytes);
  }
  ~TrafficTimer() { traffic_.seconds += now_seconds() - from_; }
  TrafficTimer(const TrafficTimer&) = delete;
  TrafficTimer& operator=(const TrafficTimer&) = delete;

 private:
  CommTraffic& traffic_;
  double from_;
};

/// An operation that is done as soon as it is started.
class DoneRequest final : public ExchangeRequest {
 public:
  void do_wait() override {}
  void do_wait_received() override {}
  bool do_test() override { return true; }
};

/// A zeroed block in the memory of a device.
class DeviceBlock final : public CommBuffer {
 public:
  DeviceBlock(Device& device, std::size_t bytes) : memory_(device, bytes) {
    if (bytes > 0) device.zero(memory_.data(), bytes);
  }
  void* data() const override { return memory_.data(); }
  std::size_t bytes() const override { return memory_.bytes(); }
  bool shared() const override { return false; }

 private:
  Buffer memory_;
};

/// The base of communicators for device memory. Work is queued behind a stream, and the blocking
/// form of a collective is the asynchronous one followed by a wait of the stream.
class QueuedCommunicator : public Communicator {
 public:
  using Communicator::Communicator;

  void do_all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op,
                     Summation order) final {
    do_start_all_reduce(data, count, dtype, op, order).wait();
  }
  void do_reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp op,
                         Summation order) final {
    do_start_reduce_scatter(data, count, dtype, op, order).wait();
  }
  void do_all_gather(void* data, std::size_t count, DType dtype) final {
    do_start_all_gather(data, count, dtype).wait();
  }
  bool queues() const final { return true; }

 protected:
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }
  void check_rank(int peer) const {
    CHOIR_CHECK(peer >= 0 && peer < size(), "rank {} does not exist in {}", peer, name());
  }
};

}  // namespace choir
