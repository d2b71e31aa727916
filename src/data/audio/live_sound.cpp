#include "src/data/audio/live_sound.hpp"

#include <fmt/core.h>

#include "choir/core/error.hpp"
#include "choir_features.hpp"

#ifdef CHOIR_HAVE_ALSA
#include <alsa/asoundlib.h>
#endif

namespace choir {

#ifdef CHOIR_HAVE_ALSA
namespace {

struct CloseSoundDevice {
  void operator()(snd_pcm_t* device) const { snd_pcm_close(device); }
};

/// Suppresses ALSA's own output; its messages are part of the error.
void quiet(const char*, int, const char*, int, const char*, ...) {}

}  // namespace

struct SoundDevice::State {
  std::string name;
  std::unique_ptr<snd_pcm_t, CloseSoundDevice> device;
  std::int64_t gaps = 0;

  void require(long code, const char* what) const {
    if (code >= 0) return;
    throw StorageError(
        fmt::format("sound device '{}' {}: {}", name, what, snd_strerror(static_cast<int>(code))),
        "`arecord -L` and `aplay -L` list the devices; name another one");
  }
  /// Transfers all `count` samples with `move`, and continues after a gap.
  template <class Sample, class Move>
  void transfer(Sample* samples, std::size_t count, Move move) {
    while (count > 0) {
      const snd_pcm_sframes_t moved = move(device.get(), samples, count);
      if (moved == -EPIPE) ++gaps;
      if (moved < 0) {
        require(snd_pcm_recover(device.get(), static_cast<int>(moved), 1), "stopped");
        continue;
      }
      samples += moved;
      count -= static_cast<std::size_t>(moved);
    }
  }
};

SoundDevice::SoundDevice(const std::string& name, Direction direction, int sample_rate,
                         double buffer)
    : state_(std::make_unique<State>()) {
  state_->name = name;
  snd_lib_error_set_handler(quiet);
  snd_pcm_t* opened = nullptr;
  const bool capture = direction == Direction::capture;
  state_->require(snd_pcm_open(&opened, name.c_str(),
                               capture ? SND_PCM_STREAM_CAPTURE : SND_PCM_STREAM_PLAYBACK, 0),
                  capture ? "cannot be recorded from" : "cannot be played to");
  state_->device.reset(opened);
  constexpr unsigned kChannels = 1;
  constexpr int kResample = 1;
  state_->require(snd_pcm_set_params(opened, SND_PCM_FORMAT_S16, SND_PCM_ACCESS_RW_INTERLEAVED,
                                     kChannels, static_cast<unsigned>(sample_rate), kResample,
                                     static_cast<unsigned>(1e6 * buffer)),
                  fmt::format("does not take {} Hz, one channel, 16 bits", sample_rate).c_str());
}

void SoundDevice::read(std::span<std::int16_t> samples) {
  state_->transfer(samples.data(), samples.size(), snd_pcm_readi);
}

void SoundDevice::write(std::span<const std::int16_t> samples) {
  state_->transfer(samples.data(), samples.size(), snd_pcm_writei);
}

void SoundDevice::drain() {
  state_->require(snd_pcm_drain(state_->device.get()), "stopped");
}
#else
struct SoundDevice::State {
  std::int64_t gaps = 0;
};

SoundDevice::SoundDevice(const std::string& name, Direction, int, double) {
  throw StorageError(fmt::format("sound device '{}': this build has no ALSA", name),
                     "install libasound2-dev and build again, or use a recording as input");
}
void SoundDevice::read(std::span<std::int16_t>) {}
void SoundDevice::write(std::span<const std::int16_t>) {}
void SoundDevice::drain() {}
#endif

SoundDevice::~SoundDevice() = default;
SoundDevice::SoundDevice(SoundDevice&&) noexcept = default;

std::int64_t SoundDevice::gaps() const {
  return state_->gaps;
}

}  // namespace choir
