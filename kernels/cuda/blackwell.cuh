#pragma once
// Where ptxas wants something else for Blackwell than for the GPUs before: it keeps the values of a
// kernel in registers only where loops are unrolled as it likes, and spills for the sake of more
// warps on a multiprocessor unless it is told that one block is enough.
// Kernels on the CPU are of either kind (test/host_cuda).
#if (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000) || defined(HOST_CUDA_BLACKWELL)
namespace choir::cuda {
inline constexpr bool kBlackwell = true;
}
/// The bounds of a kernel that would spill.
#define CHOIR_ALONE_ON_BLACKWELL(threads) __launch_bounds__(threads, 1)
#else
namespace choir::cuda {
inline constexpr bool kBlackwell = false;
}
#define CHOIR_ALONE_ON_BLACKWELL(threads) __launch_bounds__(threads)
#endif
