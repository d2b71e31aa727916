#pragma once
// A writer of WAV files with 16-bit samples of one channel, which may be appended in parts.
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace choir {

/// Writes under a temporary name; finish() renames the file to `path`. If it is destroyed before
/// finish(), nothing remains. Local. Throws StorageError if writing fails.
class WavWriter {
 public:
  WavWriter(const std::string& path, int sample_rate);
  ~WavWriter();
  WavWriter(WavWriter&&) noexcept;

  /// Throws StorageError beyond 2^31 - 19 samples, the capacity of a WAV file.
  void append(std::span<const std::int16_t> samples);
  std::int64_t samples() const;
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace choir
