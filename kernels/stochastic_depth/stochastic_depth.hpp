#pragma once
// Stochastic depth (Huang et al. 2016) per utterance: a layer is skipped for some utterances and
// scaled up for the others. Floor per element: 3 transfers in each direction.

#include <cmath>
#include <cstdint>

#include "choir/core/host_device.hpp"
#include "choir/core/philox.hpp"
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::ops {

/// Row r belongs to sample s = (first_row + r) / tokens. The layer is skipped (a = 0) if word 0 of
/// philox(key, {0, 0, id low, id high}) is below p * 2^32; otherwise a = 1/(1 - p). id =
/// sample_ids[s], or first_sample + *first_sample_on_device + s without ids.
struct StochasticDepth {
  double probability = 0;
  PhiloxKey key;
  std::int64_t first_row = 0, tokens = 1;
  std::int64_t first_sample = 0;
  const std::int64_t* first_sample_on_device = nullptr;  ///< device scalar; nullptr: 0
  const std::int64_t* sample_ids = nullptr;              ///< device memory; nullptr: consecutive
};

/// out = x + a (f - x), all [N, C]; out may be x or f. With a = 0 the bits of x are copied.
void stochastic_depth_forward(const Stream& stream, const StochasticDepth& args,
                              const TensorView& x, const TensorView& f, const TensorView& out);
/// d_f = a d_out, d_x = (1 - a) d_out; one of them may be d_out.
void stochastic_depth_backward(const Stream& stream, const StochasticDepth& args,
                               const TensorView& d_out, const TensorView& d_f,
                               const TensorView& d_x);

}  // namespace choir::ops

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
