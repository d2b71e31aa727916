#pragma once
// Kernels that begin while the previous kernel of their stream still runs, and wait for its end
// themselves ("programmatic dependent launch", CUDA C++ Programming Guide; sm_90 and newer). If
// kernels are as small as those of text generation, their starts take half of the time. With an
// early launch the next kernel is already on its multiprocessors when this one ends, with
// everything in registers that no earlier kernel writes. It also works in recorded graphs.
#include <atomic>

#include "kernels/cuda/launch.cuh"
#include "src/device/cuda.hpp"

namespace choir::cuda {

/// Number of blocks that leaves room on a GPU for the blocks of the next kernel.
constexpr unsigned kSmallGrid = 132;

#if defined(CHOIR_HOST_CUDA)

/// Threads of the running kernel that have waited.
inline std::atomic<std::int64_t> threads_that_waited = 0;

__device__ inline void let_next_begin() {}
__device__ inline void wait_for_earlier() {
  threads_that_waited.fetch_add(1, std::memory_order_relaxed);
}

/// In emulation kernels run in order, but every thread of an early kernel must have waited.
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
/// Waits until the writes of all earlier kernels are visible. Every thread must call it once,
/// before it reads data that they write or writes data that they read.
__device__ inline void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Like launch(), for a kernel that calls wait_for_earlier().
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

/// Uses launch_early() if the grid is small; large kernels do not benefit from it.
template <class... P, class... A>
void launch_small_early(const Stream& stream, const char* name, void (*kernel)(P...),
                        const LaunchShape& shape, A... arguments) {
  if (shape.blocks.x * shape.blocks.y * shape.blocks.z <= kSmallGrid)
    launch_early(stream, name, kernel, shape, arguments...);
  else
    launch(stream, name, kernel, shape, arguments...);
}

}  // namespace choir::cuda
