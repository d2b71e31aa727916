#include "src/device/cuda/check.hpp"

#include <cstdio>

#include "choir/core/error.hpp"

namespace choir::cuda {
namespace {

const char* hint_for(cudaError_t status) {
  switch (status) {
    case cudaErrorMemoryAllocation:
      return "out of device memory: lower train.micro_batch_size, or use more GPUs";
    case cudaErrorInsufficientDriver:
      return "the NVIDIA driver is older than this program's CUDA: update it, or use device=cpu";
    case cudaErrorNoDevice:
      return "no GPU is visible: check CUDA_VISIBLE_DEVICES, or use device=cpu";
    default:
      return "an earlier kernel may be the cause: CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer "
             "finds it";
  }
}

}  // namespace

void check(cudaError_t status, const char* call, std::source_location at) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // resets the error, so that the next call does not report it again
  throw Error(
      ExitCode::other,
      fmt::format("CUDA: {}: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status)),
      hint_for(status), at);
}

void check_quietly(cudaError_t status, const char* call) noexcept {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s: %s\n", call, cudaGetErrorString(status));
}

}  // namespace choir::cuda
