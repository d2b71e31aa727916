#pragma once
// Monotonic seconds and printable times.
#include <chrono>
#include <string>

namespace choir {

/// Seconds of the monotonic clock; only differences mean anything.
inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Local wall-clock time, "2026-11-20 17:03:59".
std::string timestamp();

/// "850 ms", "12.3 s", "4m 05s", "2h 13m".
std::string format_duration(double seconds);

/// "64.0 MiB"
std::string format_bytes(double bytes);

/// "85,003,776"
std::string format_count(std::int64_t value);

}  // namespace choir
