#pragma once
// Executes a grid: blocks one after the other, the threads of a block as fibers that stop at
// barriers and warp operations. Behavior that real hardware leaves open is drawn from a seed
// (HOST_CUDA_SEED): the order of blocks and of threads; shared memory starts as 0xFF bytes (NaN).
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <source_location>

namespace host_cuda {

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};

struct Grid {
  const char* kernel = "?";  ///< name for messages
  Index3 blocks{1, 1, 1}, threads{1, 1, 1};
  std::size_t shared_bytes = 0;  ///< dynamic
  bool follows = false;          ///< every thread must wait for earlier kernels
  bool hopper = false;           ///< with the instructions of sm_90a
};

/// Limits of a block that hold on every GPU since sm_80. Shared memory counts the arrays of the
/// kernel and the bytes of its launch together; sm_86, sm_89 and sm_120 have the least (sm_80 163
/// KB, sm_90 227).
constexpr unsigned kMaxThreads = 1024;
constexpr std::size_t kMaxSharedBytes = 99 * 1024;

/// A defect of a kernel or of its launch: a deadlock, a warp operation by a lane outside its mask.
/// Ends the test program with a message that names kernel, block and threads.
[[noreturn]] void defect(const char* format, ...) __attribute__((format(printf, 1, 2)));

/// A block of a kernel that begins while the kernel ahead of it has not: what its threads read
/// before they wait is old.
struct EarlyBlock;
/// Begins one block, and runs its threads until they wait for earlier kernels.
std::shared_ptr<EarlyBlock> begin_early(const Grid& grid, const std::function<void()>& body);
/// True if the kernel has been seen to let the next one begin before its end.
bool lets_next_begin(const char* kernel);

/// Runs body() once per thread of the grid. A block that has begun early continues.
void run(const Grid& grid, const std::function<void()>& body,
         const std::shared_ptr<EarlyBlock>& early = nullptr);
/// 0: rising order; otherwise blocks and threads are shuffled.
void set_seed(std::uint64_t seed);

// --- called by the running thread ---------------------------------------------------------------
using Where = std::source_location;

const Index3& thread_index();
const Index3& block_index();
const Index3& block_extent();
const Index3& grid_extent();
unsigned lane();

/// Dynamic shared memory of the block, 128-byte aligned.
void* dynamic_shared();
/// One static shared array per `key` and block.
void* static_shared(const void* key, std::size_t bytes);

void let_next_begin();
void wait_for_earlier();

void synchronize_block(Where where);
void synchronize_warp(std::uint32_t mask, Where where);

/// Every live lane of `mask` passes `bytes` bytes (at most kExchangeBytes); returns the values of
/// all 32 lanes, kExchangeBytes apart, valid until the lane's next operation.
constexpr std::size_t kExchangeBytes = 64;
const std::byte* exchange(std::uint32_t mask, const void* value, std::size_t bytes, Where where);

/// Like exchange(), but the last lane to arrive calls combine(inputs, outputs) once, and every lane
/// gets its own slot of the outputs.
using Combine = void (*)(const std::byte* inputs, std::byte* outputs);
const std::byte* combine(std::uint32_t mask, const void* value, std::size_t bytes, Combine combine,
                         Where where);

/// Records the rows that one lane's ldmatrix reads, for banks.hpp.
void load_matrices(const void* const rows[32]);

/// Copies queued by cp.async, executed when their group is waited for.
struct QueuedCopy {
  void* to;
  const void* from;
  unsigned bytes, valid;  ///< the rest of `bytes` becomes zero
};
void queue_copy(const QueuedCopy& copy);
void commit_copies();
/// Returns, oldest first, the copies of all but the newest `pending` groups; false if none remains.
/// The caller (instrumented code) copies the bytes.
bool next_copy(unsigned pending, QueuedCopy& copy);

}  // namespace host_cuda
