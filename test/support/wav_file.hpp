#pragma once
// Sound files for tests: 16-bit WAV, computed by a function of the sample.
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

namespace choir::test {

inline void write_wav(const std::string& path, int rate, int channels,
                      const std::vector<std::int16_t>& samples) {
  std::ofstream file(path, std::ios::binary);
  const auto put = [&](std::uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) file.put(static_cast<char>(value >> (8 * i)));
  };
  const auto bytes = static_cast<std::uint32_t>(2 * samples.size());
  file << "RIFF", put(36 + bytes, 4), file << "WAVEfmt ", put(16, 4), put(1, 2);
  put(static_cast<std::uint32_t>(channels), 2), put(static_cast<std::uint32_t>(rate), 4);
  put(static_cast<std::uint32_t>(2 * rate * channels), 4);
  put(static_cast<std::uint32_t>(2 * channels), 2), put(16, 2), file << "data", put(bytes, 4);
  for (const std::int16_t x : samples) put(static_cast<std::uint16_t>(x), 2);
}

/// Tones below 3 kHz that start and stop.
inline std::vector<std::int16_t> tones(int rate, double seconds, int seed) {
  std::vector<std::int16_t> samples(static_cast<std::size_t>(seconds * rate));
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const double t = static_cast<double>(i) / rate;
    const int note = static_cast<int>(t / 0.13) * (seed + 3) % 17;
    const double loud = 0.2 + 0.8 * std::abs(std::sin(9 * t + seed));
    samples[i] = static_cast<std::int16_t>(12000 * loud *
                                           std::sin(6.283185307179586 * (200 + 160 * note) * t));
  }
  return samples;
}

}  // namespace choir::test
