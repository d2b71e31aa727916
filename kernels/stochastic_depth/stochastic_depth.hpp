#pragma once
// Stochastic depth per utterance. Floor per element: 3 transfers in each direction.
#include <cmath>

#include "choir/core/host_device.hpp"
#include "choir/ops/stochastic_depth.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir {

/// The factor a for the sample of a row.
CHOIR_HOST_DEVICE inline double depth_factor(const ops::StochasticDepth& args, std::int64_t row) {
  const std::int64_t s = (args.first_row + row) / args.tokens;
  const auto id = static_cast<std::uint64_t>(
      args.sample_ids != nullptr
          ? args.sample_ids[s]
          : args.first_sample + s +
                (args.first_sample_on_device != nullptr ? *args.first_sample_on_device : 0));
  const std::uint32_t word = philox(
      args.key, {0, 0, static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(id >> 32)})[0];
  return word < args.probability * 0x1p32 ? 0.0 : 1 / (1 - args.probability);
}

namespace cpu {
template <class T>
void stochastic_depth_forward(const ops::StochasticDepth& args, const TensorView& x,
                              const TensorView& f, const TensorView& out);
template <class T>
void stochastic_depth_backward(const ops::StochasticDepth& args, const TensorView& d_out,
                               const TensorView& d_f, const TensorView& d_x);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void stochastic_depth_forward(const Stream& stream,
                                                const ops::StochasticDepth& args,
                                                const TensorView& x, const TensorView& f,
                                                const TensorView& out);
CHOIR_CUDA_KERNEL void stochastic_depth_backward(const Stream& stream,
                                                 const ops::StochasticDepth& args,
                                                 const TensorView& d_out, const TensorView& d_f,
                                                 const TensorView& d_x);
}  // namespace cuda

namespace ref {
/// f64.
void stochastic_depth_forward(const ops::StochasticDepth& args, const TensorView& x,
                              const TensorView& f, const TensorView& out);
void stochastic_depth_backward(const ops::StochasticDepth& args, const TensorView& d_out,
                               const TensorView& d_f, const TensorView& d_x);
}  // namespace ref

}  // namespace choir
