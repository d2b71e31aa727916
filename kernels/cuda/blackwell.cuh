#pragma once
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
