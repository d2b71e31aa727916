#pragma once
// Live sound: an ALSA microphone or loudspeaker with 16-bit samples of one channel. A build without
// ALSA reports an error when a device is opened.
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace choir {

/// An ALSA device ("default", "plughw:1"), opened in one direction.
class SoundDevice {
 public:
  enum class Direction { capture, playback };
  /// Local. At most `buffer` seconds are buffered between device and program. Throws StorageError
  /// if the device cannot be opened or does not support `sample_rate`.
  SoundDevice(const std::string& name, Direction direction, int sample_rate, double buffer);
  ~SoundDevice();
  SoundDevice(SoundDevice&&) noexcept;

  /// Local. Waits until all of `samples` are recorded. Throws StorageError if the device is lost.
  void read(std::span<std::int16_t> samples);
  /// Local. Waits while the buffer is full. Throws StorageError if the device is lost.
  void write(std::span<const std::int16_t> samples);
  /// Local. Waits until everything that was written has been played.
  void drain();

  /// Number of times that sound was lost or silence was played because the program was too late.
  std::int64_t gaps() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace choir
