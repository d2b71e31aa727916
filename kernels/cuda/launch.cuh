#pragma once
// Launches of kernels, dispatch on the type of elements, and the CUDA keywords that have no plain
// C++ form. The same device code is compiled by nvcc for the GPU and by the host compiler for
// test/host_cuda, which replaces <cuda_runtime.h>. Only this header and ptx.cuh may distinguish the
// two.
//
// A kernel may begin while the kernel ahead of it in the stream still runs, and then waits for its
// end itself ("programmatic dependent launch", CUDA C++ Programming Guide; sm_90 and newer). The
// start of the kernel, about a microsecond, overlaps with the last blocks of the one ahead.
// launch() allows it while a graph is recorded, if train.programmatic_dependent_launch is on: a
// step of FastConformer L has 1,578 kernels of 16 us on an H100 (predicted: 1.5 to 2 ms of 24.7; no
// card has run it yet). Therefore every kernel waits, usually by follow_earlier() as its first
// statement; launched in the ordinary way, it does not wait for anything there.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "choir/core/error.hpp"
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "src/device/cuda.hpp"
#include "src/device/cuda/check.hpp"

// Adjustments for ptxas on Blackwell. It keeps the values of a kernel in registers only with
// particular loop unrolling, and spills in order to fit more warps on a multiprocessor unless the
// launch bounds state that one block is enough. Kernels on the CPU can be compiled either way
// (test/host_cuda).
#if (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000) || defined(HOST_CUDA_BLACKWELL)
namespace choir::cuda {
inline constexpr bool kBlackwell = true;
}
/// Launch bounds of a kernel that would spill otherwise.
#define CHOIR_ALONE_ON_BLACKWELL(threads) __launch_bounds__(threads, 1)
#else
namespace choir::cuda {
inline constexpr bool kBlackwell = false;
}
#define CHOIR_ALONE_ON_BLACKWELL(threads) __launch_bounds__(threads)
#endif

namespace choir::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

struct LaunchShape {
  dim3 blocks, threads;
  std::size_t shared_bytes = 0;  ///< dynamic shared memory, see dynamic_shared()
};

/// ceil(a / b).
__host__ __device__ constexpr std::int64_t blocks_for(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

#if defined(CHOIR_HOST_CUDA)

template <class T>
T* dynamic_shared() {
  return static_cast<T*>(host_cuda::dynamic_shared());
}
#define CHOIR_SHARED_ARRAY(type, name, count) \
  static const char name##_key = 0;           \
  type* const name = static_cast<type*>(      \
      host_cuda::static_shared(&name##_key, sizeof(type) * static_cast<std::size_t>(count)))

__device__ inline void let_next_begin() {
  host_cuda::let_next_begin();
}
__device__ inline void wait_for_earlier() {
  host_cuda::wait_for_earlier();
}

/// Emulation requires that every thread of every kernel waits.
inline host_cuda::Grid host_grid(const char* name, const LaunchShape& shape) {
  return {.kernel = name,
          .blocks = {shape.blocks.x, shape.blocks.y, shape.blocks.z},
          .threads = {shape.threads.x, shape.threads.y, shape.threads.z},
          .shared_bytes = shape.shared_bytes,
          .follows = true};
}
/// A block of an early kernel begins before the kernel ahead of it.
template <class... P, class... A>
void launch_at(const Stream& stream, const char* name, bool early, void (*kernel)(P...),
               const LaunchShape& shape, A... arguments) {
  host_cuda::queue_kernel(
      static_cast<cudaStream_t>(stream.native()), host_grid(name, shape),
      [=] { kernel(P(arguments)...); }, early);
}

#else

/// Dynamic shared memory of the block, 128-byte aligned.
template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char choir_dynamic_shared[];
  return reinterpret_cast<T*>(choir_dynamic_shared);
}
/// Declares `type name[count]` in static shared memory with a constant count; `name` is a pointer.
#define CHOIR_SHARED_ARRAY(type, name, count)   \
  __shared__ __align__(16) type name##_[count]; \
  type* const name = name##_

/// From here on the next kernel of the stream may begin, if it was launched to begin early.
__device__ inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// Waits until all earlier kernels have ended and their writes are visible. Every thread must call
/// it once, before it reads data that they write or writes data that they read.
__device__ inline void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Queues kernel(arguments...). `early`: it may begin before the end of the kernel ahead of it.
template <class... P, class... A>
void launch_at(const Stream& stream, const char* name, bool early, void (*kernel)(P...),
               const LaunchShape& shape, A... arguments) {
  // Shared memory beyond the default limit must be requested.
  constexpr std::size_t kDefaultShared = 48 * 1024;
  if (shape.shared_bytes > kDefaultShared)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shape.shared_bytes)),
          name);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.blocks;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream.native());
  if (early) config.attrs = &attribute, config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, P(arguments)...), name);
}

#endif

/// The beginning of a kernel that has nothing to do before it reads the results of others. The next
/// kernel begins only after this one has waited, so that it may read at once all that this one does
/// not write. Kernels that write weights call wait_for_earlier() alone, because norms and products
/// of a few rows read weights before they wait.
__device__ inline void follow_earlier() {
  wait_for_earlier();
  let_next_begin();
}

/// Queues kernel(arguments...) on `stream`. `name` is for messages and profiles.
template <class... P, class... A>
void launch(const Stream& stream, const char* name, void (*kernel)(P...), const LaunchShape& shape,
            A... arguments) {
  launch_at(stream, name, may_begin_early(stream), kernel, shape, arguments...);
}

// Dispatch from the element type of a tensor to the template argument of a kernel.

[[noreturn]] inline void refuse_element(DType dtype) {
  throw Error(ExitCode::deck, fmt::format("no cuda kernel for elements of type {}", name_of(dtype)),
              dtype == DType::f64 ? "fp64 runs on the CPU: device=cpu" : "");
}

/// f(T{}) with T the element type of activations on this device.
template <class F>
void with_element(DType dtype, const F& f) {
  switch (dtype) {
    case DType::f32:
      return f(float{});
    case DType::bf16:
      return f(bf16{});
    case DType::f16:
      return f(f16{});
    default:
      refuse_element(dtype);
  }
}

}  // namespace choir::cuda
