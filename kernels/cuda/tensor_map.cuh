#pragma once
// Host: tensor maps for the copy engine of sm_90, and launches of kernels that use it.
#include "kernels/cuda/hopper.cuh"

namespace choir::cuda {

/// Limit of a block's shared memory on sm_90.
constexpr std::size_t kHopperSharedBytes = 227 * 1024;

/// A tensor [samples, rows, heads, width] of 16-bit elements whose rows are cut into boxes of
/// `box_rows` rows (at most 256) by 64 columns; strides in elements. Throws where the driver
/// refuses them (its rules: CUDA driver API, cuTensorMapEncodeTiled).
struct TensorBoxes {
  const void* data;
  DType dtype;
  std::int64_t samples, rows, heads, width, sample_stride, row_stride;
  int box_rows;
};

/// `map` must be a variable, because the driver requires an address that is a multiple of 64: GCC
/// 12 has placed the result of a function elsewhere.
inline void set_tensor_map(CUtensorMap& map, const TensorBoxes& t) {
  // The function is looked up in the driver, because programs that must start without a driver
  // cannot be linked with it.
  static const auto encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                           cudaEnableDefault, &found),
          "cuTensorMapEncodeTiled");
    CHOIR_CHECK(found == cudaDriverEntryPointSuccess && function,
                "the driver has no cuTensorMapEncodeTiled (it comes with CUDA 12)");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  const auto u = [](std::int64_t n) { return static_cast<cuuint64_t>(n); };
  // The stride of a single sample is never used, but the driver checks it.
  const std::int64_t sample = t.samples > 1 ? t.sample_stride : t.rows * t.row_stride;
  const cuuint64_t dims[] = {u(t.width), u(t.heads), u(t.rows), u(t.samples)};
  const cuuint64_t strides[] = {u(2 * t.width), u(2 * t.row_stride), u(2 * sample)};
  const cuuint32_t box[] = {64, 1, static_cast<cuuint32_t>(t.box_rows), 1}, steps[] = {1, 1, 1, 1};
  const CUresult result = encode(
      &map,
      t.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
      4, const_cast<void*>(t.data), dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHOIR_CHECK(result == CUDA_SUCCESS,
              "a tensor map of {} x {} x {} x {} elements, strides {} and {}: driver error {}",
              t.samples, t.rows, t.heads, t.width, t.sample_stride, t.row_stride,
              static_cast<int>(result));
}

/// True if this build has sm_90a code for the kernel. PTX of an older architecture that the driver
/// has translated also runs on sm_90, but there the kernel's body is empty.
template <class... P>
bool has_hopper_code(void (*kernel)(P...)) {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)),
        "cudaFuncGetAttributes");
  return attributes.ptxVersion >= 90;
}

/// Like launch(), for a kernel of sm_90a.
template <class... P, class... A>
void launch_hopper(const Stream& stream, const char* name, void (*kernel)(P...),
                   const LaunchShape& shape, A... arguments) {
#if defined(CHOIR_HOST_CUDA)
  const host_cuda::Grid grid{name,
                             {shape.blocks.x, shape.blocks.y, shape.blocks.z},
                             {shape.threads.x, shape.threads.y, shape.threads.z},
                             shape.shared_bytes};
  host_cuda::queue(static_cast<cudaStream_t>(stream.native()), [=] {
    const host_cuda::hopper::Allowed allowed;
    host_cuda::run(grid, [&] { kernel(P(arguments)...); });
  });
#else
  launch(stream, name, kernel, shape, arguments...);
#endif
}

}  // namespace choir::cuda
