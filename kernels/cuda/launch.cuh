#pragma once
// Launches of kernels, dispatch on the type of elements, and the CUDA keywords that have no plain
// C++ form. The same device code is compiled by nvcc for the GPU and by the host compiler for
// test/host_cuda, which replaces <cuda_runtime.h>. Only this header and ptx.cuh may distinguish the
// two.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "choir/core/error.hpp"
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
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

/// Queues kernel(arguments...) on `stream`. `name` is for messages and profiles.
template <class... P, class... A>
void launch(const Stream& stream, const char* name, void (*kernel)(P...), const LaunchShape& shape,
            A... arguments) {
  const host_cuda::Grid grid{name,
                             {shape.blocks.x, shape.blocks.y, shape.blocks.z},
                             {shape.threads.x, shape.threads.y, shape.threads.z},
                             shape.shared_bytes};
  host_cuda::queue(static_cast<cudaStream_t>(stream.native()),
                   [=] { host_cuda::run(grid, [&] { kernel(P(arguments)...); }); });
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

/// Queues kernel(arguments...) on `stream`. `name` is for messages and profiles.
template <class... P, class... A>
void launch(const Stream& stream, const char* name, void (*kernel)(P...), const LaunchShape& shape,
            A... arguments) {
  // Shared memory beyond the default limit must be requested.
  constexpr std::size_t kDefaultShared = 48 * 1024;
  if (shape.shared_bytes > kDefaultShared)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shape.shared_bytes)),
          name);
  cudaLaunchConfig_t config{};
  config.gridDim = shape.blocks;
  config.blockDim = shape.threads;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream.native());
  check(cudaLaunchKernelEx(&config, kernel, P(arguments)...), name);
}

#endif

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
