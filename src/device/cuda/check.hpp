#pragma once
// CUDA calls that fail become Errors.
#include <cuda_runtime.h>

#include <source_location>

namespace choir::cuda {

/// Throws Error naming `call`, CUDA's text and the place; a hint where one is known.
void check(cudaError_t status, const char* call,
           std::source_location at = std::source_location::current());
/// For destructors: says it on standard error and goes on.
void check_quietly(cudaError_t status, const char* call) noexcept;

}  // namespace choir::cuda

#define CHOIR_CUDA(call) ::choir::cuda::check((call), #call)
#define CHOIR_CUDA_QUIETLY(call) ::choir::cuda::check_quietly((call), #call)
