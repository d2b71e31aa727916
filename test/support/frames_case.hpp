#pragma once
// Batches whose samples have different lengths.
#include <initializer_list>

#include "kernels/cpu/frames.hpp"
#include "test/support/mirror.hpp"

namespace choir::test {

/// lengths[b] cycles through 0, 1, all, about half.
inline HostTensor mixed_lengths(std::int64_t batch, std::int64_t tokens) {
  HostTensor lengths(DType::i32, {batch});
  const std::int64_t kinds[] = {tokens, 1, 0, tokens / 2 + 1};
  for (std::int64_t b = 0; b < batch; ++b)
    lengths.set(b, static_cast<double>(std::min(tokens, kinds[b % 4])));
  return lengths;
}

/// Lengths on the device, or none.
inline const std::int32_t* mirrored_lengths(Mirror& mirror, const HostTensor& lengths) {
  return lengths.count() == 0 ? nullptr : mirror.in(lengths).as<std::int32_t>();
}
inline const std::int32_t* host_lengths(const HostTensor& lengths) {
  return lengths.count() == 0 ? nullptr : lengths.as<std::int32_t>();
}

/// Sets every frame of x [B, tokens, ...] that is not counted to NaN: none may be read.
inline void poison_padding(HostTensor& x, const HostTensor& lengths, std::int64_t tokens) {
  if (lengths.count() == 0) return;
  const std::int64_t samples = lengths.count(), size = x.count() / (samples * tokens);
  for (std::int64_t b = 0; b < samples; ++b)
    for (std::int64_t i = frames_of(host_lengths(lengths), b, tokens) * size; i < tokens * size;
         ++i)
      x.set(b * tokens * size + i, NAN);
}

/// max |x| over counted frames; at least 1.
inline double largest(const HostTensor& x) {
  double most = 1;
  for (std::int64_t i = 0; i < x.count(); ++i)
    if (!std::isnan(x[i])) most = std::max(most, std::fabs(x[i]));
  return most;
}

/// Error of a sum of `terms` products of factors up to a and b, added in any order and then stored.
struct SumError {
  double relative, absolute;
  SumError(DType stored, DType summed, double terms, double a, double b)
      : relative(stored == summed ? unit_roundoff(summed) : operation_roundoff(stored)),
        absolute((terms + 2) * terms * unit_roundoff(summed) * a * b + underflow_roundoff(stored)) {
  }
};

}  // namespace choir::test
