#pragma once
// Time of a call on a device: the median over a budget of time, after a warm-up; and the best
// measured rates of a device, the yardstick for MFU and for every benchmark. On cuda the clock is
// that of the device (events around batches of calls, so that neither launches nor the host are
// included), on the cpu the system's clock around each call.

#include <cstdint>
#include <functional>

#include "choir/core/dtype.hpp"
#include "choir/device/device.hpp"

namespace choir::ops {

/// Runs call number `i`. Benches of bandwidth-bound ops choose their operands by i % sets, so that
/// no call finds them in a cache (see bench_operands.hpp).
using TimedCall = std::function<void(std::int64_t i)>;

/// Median seconds of one call, of at least five measurements and about `seconds` of calls. `before`
/// runs before every call, which is then timed alone: for ops that overwrite their input.
double median_seconds(const Stream& stream, double seconds, const TimedCall& call,
                      const TimedCall& before = {});

/// The shortest time of a few calls: the best case, for ceilings.
double best_seconds(const Stream& stream, int rounds, const TimedCall& call);

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
