#pragma once
// The best measured rates of a device: the yardstick for MFU and for every benchmark.
#include "choir/core/dtype.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// Extent of a square product that counts as large on a device: 1024 on the cpu, 8192 on cuda,
/// which smaller ones do not fill.
std::int64_t large_product(DeviceKind kind);

/// FLOP/s of one large square product of random numbers (n x n x n), the best of a few; n = 0 means
/// large_product(). Takes about 20 ms for n = 1024 on two cores.
double measure_gemm(const Stream& stream, DType dtype, std::int64_t n = 0);

/// Bytes/s (read + written) of copying `bytes` of random memory, the best of a few; 0 means a size
/// beyond every cache (256 MiB, on cuda 1 GiB).
double measure_copy(const Stream& stream, std::size_t bytes = 0);

}  // namespace choir::ops
