#pragma once
// What this device reaches at best, measured: the yardstick for MFU and for every benchmark.
#include "choir/core/dtype.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// FLOP/s of one large square product of random numbers (n x n x n), the best of a few. Takes about
/// 20 ms for n = 1024 on two cores.
double measure_gemm(const Stream& stream, DType dtype, std::int64_t n = 1024);

/// Bytes/s (read + written) of copying `bytes` of memory beyond every cache, the best of a few.
double measure_copy(const Stream& stream, std::size_t bytes = std::size_t{256} << 20);

}  // namespace choir::ops
