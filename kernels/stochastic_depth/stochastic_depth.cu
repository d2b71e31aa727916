// Stochastic depth on the GPU: one block per row, up to the limit of blocks; every thread draws the
// row's factor (50 instructions). Floor: 3 transfers.
#include "kernels/stochastic_depth/stochastic_depth.hpp"

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/launch.cuh"

namespace choir::cuda {
namespace {

constexpr int kDepthThreads = 128;

template <class T>
__global__ void __launch_bounds__(kDepthThreads)
    stochastic_depth_forward_kernel(ops::StochasticDepth args, std::int64_t rows, int width,
                                    const T* x, const T* f, T* out) {
  follow_earlier();
  for (std::int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const auto a = static_cast<float>(depth_factor(args, r));
    for (std::int64_t i = r * width + threadIdx.x; i < (r + 1) * width; i += blockDim.x) {
      const float v = to_float(x[i]);
      out[i] = from_float<T>(a == 0.0f ? v : v + a * (to_float(f[i]) - v));
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kDepthThreads)
    stochastic_depth_backward_kernel(ops::StochasticDepth args, std::int64_t rows, int width,
                                     const T* d_out, T* d_f, T* d_x) {
  follow_earlier();
  for (std::int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const auto a = static_cast<float>(depth_factor(args, r));
    for (std::int64_t i = r * width + threadIdx.x; i < (r + 1) * width; i += blockDim.x) {
      const float d = to_float(d_out[i]);
      d_f[i] = from_float<T>(a * d);
      d_x[i] = from_float<T>((1 - a) * d);
    }
  }
}

LaunchShape blocks(std::int64_t rows) {
  constexpr std::int64_t kMost = 1 << 20;
  return {dim3(static_cast<unsigned>(rows < kMost ? rows : kMost)), kDepthThreads};
}

}  // namespace

void stochastic_depth_forward(const Stream& stream, const ops::StochasticDepth& args,
                              const TensorView& x, const TensorView& f, const TensorView& out) {
  if (x.count() == 0) return;
  with_element(x.dtype, [&](auto t) {
    using T = decltype(t);
    launch(stream, "stochastic_depth_forward", stochastic_depth_forward_kernel<T>,
           blocks(x.shape.rows()), args, x.shape.rows(), static_cast<int>(x.shape.back()),
           x.as<T>(), f.as<T>(), out.as<T>());
  });
}

void stochastic_depth_backward(const Stream& stream, const ops::StochasticDepth& args,
                               const TensorView& d_out, const TensorView& d_f,
                               const TensorView& d_x) {
  if (d_out.count() == 0) return;
  with_element(d_out.dtype, [&](auto t) {
    using T = decltype(t);
    launch(stream, "stochastic_depth_backward", stochastic_depth_backward_kernel<T>,
           blocks(d_out.shape.rows()), args, d_out.shape.rows(),
           static_cast<int>(d_out.shape.back()), d_out.as<T>(), d_f.as<T>(), d_x.as<T>());
  });
}

}  // namespace choir::cuda
