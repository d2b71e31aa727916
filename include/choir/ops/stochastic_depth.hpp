#pragma once
// Stochastic depth (Huang et al. 2016), utterance by utterance: a layer is left out of some of
// them, and in the others counts for more.
#include <cstdint>

#include "choir/core/philox.hpp"
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// Row r is of sample s = (first_row + r) / tokens. The layer is left out, a = 0, where word 0 of
/// philox(key, {0, 0, id low, id high}) is below p * 2^32; else a = 1/(1 - p). id = sample_ids[s],
/// or first_sample + *first_sample_on_device + s without ids.
struct StochasticDepth {
  double probability = 0;
  PhiloxKey key;
  std::int64_t first_row = 0, tokens = 1;
  std::int64_t first_sample = 0;
  const std::int64_t* first_sample_on_device = nullptr;  ///< device scalar; nullptr: 0
  const std::int64_t* sample_ids = nullptr;              ///< device memory; nullptr: consecutive
};

/// out = x + a (f - x), all [N, C]; out may be x or f. With a = 0 the bits of x.
void stochastic_depth_forward(const Stream& stream, const StochasticDepth& args,
                              const TensorView& x, const TensorView& f, const TensorView& out);
/// d_f = a d_out, d_x = (1 - a) d_out; one of them may be d_out.
void stochastic_depth_backward(const Stream& stream, const StochasticDepth& args,
                               const TensorView& d_out, const TensorView& d_f,
                               const TensorView& d_x);

}  // namespace choir::ops
