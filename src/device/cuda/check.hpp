#pragma once
// Conversion of failed CUDA calls into Errors.
#include <cuda_runtime.h>

#include <source_location>

namespace choir::cuda {

/// Throws Error with `call`, CUDA's text, the source location and a hint for known causes.
void check(cudaError_t status, const char* call,
           std::source_location at = std::source_location::current());
/// For destructors: prints the error on standard error and continues.
void check_quietly(cudaError_t status, const char* call) noexcept;

}  // namespace choir::cuda

#define CHOIR_CUDA(call) ::choir::cuda::check((call), #call)
#define CHOIR_CUDA_QUIETLY(call) ::choir::cuda::check_quietly((call), #call)
