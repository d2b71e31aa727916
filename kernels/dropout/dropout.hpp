#pragma once
// Dropout with a mask that is a function of *global* coordinates (sample, position, feature), so
// that no layout, batch split or recomputation can change it, and nothing is stored for backward.
// The mask is drawn by Philox 4x32-10; one call of the generator gives four features. Floor per
// element: 2 transfers; about 25 integer operations, which wide vectors hide behind memory
// accesses.

#include <cmath>

#include "choir/core/philox.hpp"
#include "choir/core/tensor.hpp"
#include "choir/device/device.hpp"
#include "kernels/cuda_kernel.hpp"

namespace choir::ops {

/// out = in * keep * factor / (1 - p). Element (r, c) is kept if the 32-bit Philox word number c %
/// 4 of counter {c / 4, position, sample low, sample high} is at least p * 2^32, with sample =
/// first_sample + r / tokens, or sample_ids[r / tokens] if ids are given, and position =
/// first_position + r % tokens; c counts from first_column. Backward is the same call on the
/// gradient.
struct Dropout {
  TensorView in, out;  ///< [N, C], may be the same memory
  double probability = 0;
  double factor = 1;  ///< with probability 0 the op is a product with it and draws nothing
  PhiloxKey key;      ///< key of (seed, name of the layer)
  std::int64_t first_sample = 0;
  /// Device scalar added to first_sample (nullptr: 0), for launches that are recorded once and
  /// replayed for other samples.
  const std::int64_t* first_sample_on_device = nullptr;
  /// [rows / tokens] in device memory; replaces first_sample and the device scalar. nullptr: not
  /// used.
  const std::int64_t* sample_ids = nullptr;
  std::int64_t tokens = 1;
  std::int64_t first_position = 0;
  /// Number of features before those of `in`, on ranks that have a part of them; a multiple of 4.
  std::int64_t first_column = 0;
};

void dropout(const Stream& stream, const Dropout& args);

}  // namespace choir::ops

namespace choir {

/// Elements whose word of the generator is below this are dropped.
inline std::uint32_t dropout_threshold(double probability) {
  return static_cast<std::uint32_t>(std::ceil(probability * 0x1p32));
}

namespace cpu {
template <class T>
void dropout(const ops::Dropout& args);
}  // namespace cpu

namespace cuda {
CHOIR_CUDA_KERNEL void dropout(const Stream& stream, const ops::Dropout& args);
}  // namespace cuda

namespace ref {
/// f64.
void dropout(const ops::Dropout& args);
}  // namespace ref

}  // namespace choir
