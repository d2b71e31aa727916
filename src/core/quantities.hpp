#pragma once
// Time, and times and quantities as text: clock, time stamps, durations, bytes, counts and counted
// nouns ("2 recordings").

#include <chrono>
#include <concepts>
#include <cstdint>
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

constexpr const char* plural(std::int64_t n) {
  return n == 1 ? "" : "s";
}

/// A number with its noun: "1 utterance", "1,308 utterances". Digits are grouped as by
/// format_count().
std::string counted(std::int64_t n, const char* thing);

/// The same for unsigned counts.
template <std::unsigned_integral N>
std::string counted(N n, const char* thing) {
  return counted(static_cast<std::int64_t>(n), thing);
}

}  // namespace choir
