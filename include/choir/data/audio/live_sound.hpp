#pragma once
// Sound as it happens: a microphone and a loudspeaker of ALSA, 16-bit samples of one channel. In a
// build without ALSA both say so when they are opened.
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace choir {

/// A device of ALSA ("default", "plughw:1") that was opened in one direction.
class SoundDevice {
 public:
  enum class Direction { capture, playback };
  /// Local. `buffer` seconds lie between the device and the program at most. StorageError when it
  /// cannot be opened or does not take `sample_rate`.
  SoundDevice(const std::string& name, Direction direction, int sample_rate, double buffer);
  ~SoundDevice();
  SoundDevice(SoundDevice&&) noexcept;

  /// Local: waits until all of `samples` were recorded. StorageError when the device is gone.
  void read(std::span<std::int16_t> samples);
  /// Local: waits while the buffer is full. StorageError as above.
  void write(std::span<const std::int16_t> samples);
  /// Local: waits until everything that was written was heard.
  void drain();

  /// How often sound was lost, or silence heard, because the program came too late.
  std::int64_t gaps() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace choir
