#pragma once
// WAV files of 16-bit samples of one channel, written piece by piece.
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace choir {

/// Writes under a temporary name; finish() makes the file appear under `path`. Destroyed without
/// finish(), nothing remains. Local; throws StorageError when the disk refuses.
class WavWriter {
 public:
  WavWriter(const std::string& path, int sample_rate);
  ~WavWriter();
  WavWriter(WavWriter&&) noexcept;

  /// StorageError beyond 2^31 - 19 samples, which is all that a WAV file holds.
  void append(std::span<const std::int16_t> samples);
  std::int64_t samples() const;
  void finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace choir
