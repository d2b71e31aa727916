#pragma once
// Checks that bits do not depend on the number of threads.
#include <omp.h>

#include <vector>

#include "test/support/op_test.hpp"

namespace choir::test {

/// run() returns its result, which must be the same with 1 to 4 threads.
template <class Run>
void expect_same_bits_for_any_threads(const Run& run) {
  const int threads = omp_get_max_threads();
  std::vector<HostTensor> first;
  for (int n = 1; n <= 4; ++n) {
    omp_set_num_threads(n);
    std::vector<HostTensor> results = run();
    if (n == 1) first = results;
    for (std::size_t i = 0; i < results.size(); ++i)
      EXPECT_TRUE(results[i].same_bits(first[i])) << "result " << i << " of " << n << " threads";
  }
  omp_set_num_threads(threads);
}

/// Rows [0, frames) of every sample of x [B, tokens, ...], one sample after another.
inline HostTensor first_frames(const HostTensor& x, std::int64_t frames) {
  const Shape& of = x.shape();
  Shape shape = of;
  shape[1] = frames;
  HostTensor y(x.dtype(), shape);
  const std::int64_t size = x.count() / (of[0] * of[1]);
  for (std::int64_t b = 0; b < of[0]; ++b)
    for (std::int64_t i = 0; i < frames * size; ++i)
      y.set(b * frames * size + i, x[b * of[1] * size + i]);
  return y;
}

/// A copy of x with zeros in place of NaN.
inline HostTensor cleared(HostTensor x) {
  for (std::int64_t i = 0; i < x.count(); ++i)
    if (std::isnan(x[i])) x.set(i, 0);
  return x;
}

/// ((factor i) mod m - m / 2) / divisor: exact in every type.
inline HostTensor lattice(const Shape& shape, std::int64_t factor, std::int64_t m, double divisor) {
  HostTensor x(DType::f64, shape);
  for (std::int64_t i = 0; i < x.count(); ++i)
    x.set(i, static_cast<double>(factor * i % m - m / 2) / divisor);
  return x;
}

inline HostTensor tensor_of(const Shape& shape, std::initializer_list<double> values) {
  HostTensor x(DType::f64, shape);
  std::int64_t i = 0;
  for (const double value : values) x.set(i++, value);
  EXPECT_EQ(i, x.count());
  return x;
}

}  // namespace choir::test
