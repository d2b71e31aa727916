#pragma once
// Time of a call on a device: the median over a budget of time, after a warm-up. On cuda the clock
// is that of the device (events around batches of calls, so that neither launches nor the host are
// included), on the cpu the system's clock around each call.
#include <cstdint>
#include <functional>

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

}  // namespace choir::ops
