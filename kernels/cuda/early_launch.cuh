#pragma once
// Kernels that begin while the one before them in their stream still runs, and wait for its end by
// themselves ("programmatic dependent launch", CUDA C++ Programming Guide; sm_90 and newer). Where
// kernels are as small as those of a model that generates, their starts are half of the time: so
// the next one is on its multiprocessors, with all in its registers that nobody before it writes,
// when this one ends. In recorded graphs, too.
#include <atomic>

#include "choir/device/cuda.hpp"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {

/// Blocks that leave room on a GPU for those of the next kernel.
constexpr unsigned kSmallGrid = 132;

#if defined(CHOIR_HOST_CUDA)

/// Threads of the kernel that runs which have waited.
inline std::atomic<std::int64_t> threads_that_waited = 0;

__device__ inline void let_next_begin() {}
__device__ inline void wait_for_earlier() {
  threads_that_waited.fetch_add(1, std::memory_order_relaxed);
}

/// Here kernels begin when it is their turn; but each of their threads must have waited.
template <class... P, class... A>
void launch_early(const Stream& stream, const char* name, void (*kernel)(P...),
                  const LaunchShape& shape, A... arguments) {
  const auto native = static_cast<cudaStream_t>(stream.native());
  host_cuda::queue(native, [] { threads_that_waited = 0; });
  launch(stream, name, kernel, shape, arguments...);
  const std::int64_t threads = std::int64_t{shape.blocks.x} * shape.blocks.y * shape.blocks.z *
                               shape.threads.x * shape.threads.y * shape.threads.z;
  host_cuda::queue(native, [=] {
    CHOIR_CHECK(threads_that_waited == threads, "{}: {} of {} threads waited for earlier kernels",
                name, threads_that_waited.load(), threads);
  });
}

#else

/// From here on the next kernel of the stream may begin, if it was started by launch_early().
__device__ inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// What the kernels before this one have written is there. To be called by every thread, once,
/// before it reads what they write or writes what they read.
__device__ inline void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// As launch(), of a kernel that waits for those before it.
template <class... P, class... A>
void launch_early(const Stream& stream, const char* name, void (*kernel)(P...),
                  const LaunchShape& shape, A... arguments) {
  const Card* card = card_of(stream.device());
  if (card == nullptr || card->major < 9) return launch(stream, name, kernel, shape, arguments...);
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.blocks;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream.native());
  config.attrs = &early;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, P(arguments)...), name);
}

#endif

/// launch_early() where the grid is small: whoever computes much has no need of it.
template <class... P, class... A>
void launch_small_early(const Stream& stream, const char* name, void (*kernel)(P...),
                        const LaunchShape& shape, A... arguments) {
  if (shape.blocks.x * shape.blocks.y * shape.blocks.z <= kSmallGrid)
    launch_early(stream, name, kernel, shape, arguments...);
  else
    launch(stream, name, kernel, shape, arguments...);
}

}  // namespace choir::cuda
