#pragma once
// Parts that several kinds of communicators share: division of counts into chunks, the fixed tree
// of a reduction, the comparison of calls between ranks, blocks of host and of device memory, the
// count of calls and bytes, and the base of communicators for device memory.

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "choir/comm/communicator.hpp"
#include "choir/core/dtype.hpp"
#include "choir/core/error.hpp"
#include "choir/device/device.hpp"
#include "src/core/quantities.hpp"

namespace choir {

struct Chunk {
  std::size_t offset = 0;
  std::size_t count = 0;
};

/// Number of chunks of at most `limit` elements (at least 1) that cover `count`; 0 if `count` is 0.
inline std::size_t chunk_count(std::size_t count, std::size_t limit) {
  limit = std::max<std::size_t>(limit, 1);
  return count / limit + (count % limit != 0 ? 1 : 0);
}
/// Chunk `index`; all but the last have `limit` elements.
inline Chunk chunk_at(std::size_t index, std::size_t count, std::size_t limit) {
  limit = std::max<std::size_t>(limit, 1);
  const std::size_t offset = index * limit;
  return {offset, std::min(limit, count - offset)};
}

/// Share `part` of `parts` of `count` elements. Shares are contiguous and in order, each but the
/// last is a multiple of `granule` (so that no two share a cache line), and later shares may be
/// empty.
inline Chunk share_of(std::size_t count, int parts, int part, std::size_t granule) {
  const auto n = static_cast<std::size_t>(parts);
  const std::size_t each = chunk_count(chunk_count(count, n), granule) * granule;
  const std::size_t from = std::min(count, each * static_cast<std::size_t>(part));
  return {from, std::min(each, count - from)};
}

/// Calls f(offset, count) for each chunk, in order.
template <class F>
void for_each_chunk(std::size_t count, std::size_t limit, F&& f) {
  const std::size_t pieces = chunk_count(count, limit);
  for (std::size_t i = 0; i < pieces; ++i) {
    const Chunk piece = chunk_at(i, count, limit);
    f(piece.offset, piece.count);
  }
}

/// The address `offset` bytes after `data`.
inline std::byte* at(void* data, std::size_t offset) {
  return static_cast<std::byte*>(data) + offset;
}
inline const std::byte* at(const void* data, std::size_t offset) {
  return static_cast<const std::byte*>(data) + offset;
}

/// out[d][i] = tree over p of in[p][i], for i < count and each of `outs` outputs. The tree is
/// ((0+1)+(2+3))+...; an odd last term is carried up: over n ranks the left child has the largest
/// power of two below n. bf16 and f16 are summed in float and rounded once. Outputs may be the
/// inputs (same index), but must not overlap them otherwise. Large counts use the OpenMP threads of
/// the caller. Never allocates. Floor: (ranks + outs) * bytes of memory traffic if the outputs are
/// the inputs; streaming stores are slower then, because the lines were just read.
void tree_reduce(const void* const* in, int ranks, void* const* out, int outs, std::size_t count,
                 DType dtype, ReduceOp op);

/// Sums 16-bit inputs as f32, for a tree that continues elsewhere before it is rounded; or ends
/// such a tree, f32 -> 16 bits.
void tree_sum(const void* const* in, int ranks, void* out, std::size_t count, DType from, DType to);

/// memcpy with stores that bypass the cache if `streaming` (visible to others after this returns
/// and the caller publishes with a release); threaded like tree_reduce.
void bulk_copy(void* to, const void* from, std::size_t bytes, bool streaming);

/// A call that a rank is about to make. `detail` is the element type and the operation, or the
/// root.
struct PlannedCall {
  CommCall call = CommCall::barrier;
  std::uint32_t detail = 0;
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;  ///< elements, or bytes of calls without an element type
};
/// "all_reduce of 4096 f32 (sum)"
std::string describe(const PlannedCall& call);
std::uint32_t detail_of(DType dtype, ReduceOp op = ReduceOp::sum);

class CallCheck {
 public:
  /// `privately` is a communicator over the ranks to be checked that serves nothing else; `name`
  /// and `world_ranks` are those of the checked communicator.
  CallCheck(std::unique_ptr<Communicator> privately, std::string name,
            std::vector<int> world_ranks);
  /// Collective. Throws CommError on every rank with the first rank whose call differs from that of
  /// the lowest one. A rank that makes no call at all is found by the watchdog.
  void agree(const PlannedCall& mine);

 private:
  std::unique_ptr<Communicator> private_;
  std::string name_;
  std::vector<int> world_ranks_;
  std::vector<PlannedCall> calls_;
};

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
