#include "src/models/duplex/dialogue_sides.hpp"

#include <algorithm>

#include "choir/core/error.hpp"
#include "src/core/output.hpp"

namespace choir {
namespace {

// Seconds of sound in the buffers of the devices, before it is heard or after it was recorded. The
// answer is late by this much.
constexpr double kMicrophoneBuffer = 0.5, kLoudspeakerBuffer = 0.25;

void tell_gaps(const SoundDevice& device, const char* what) {
  if (device.gaps() > 0)
    print_safely(stderr, "{} {} times: the model was too slow, or the machine busy\n", what,
                 device.gaps());
}

}  // namespace

RecordedUser::RecordedUser(const RecordingSource& source, int sample_rate)
    : recording_(Recording::open(source, sample_rate)) {
  if (recording_.samples() == 0)
    throw DataError(source.path + " has no sound", "record at least one frame");
}

std::vector<std::int16_t> RecordedUser::read(std::int64_t first, std::int64_t count) {
  return recording_.read(first, std::min(count, recording_.samples() - first));
}

LiveUser::LiveUser(const std::string& microphone, const std::string& path, int sample_rate,
                   std::int64_t samples)
    : microphone_(microphone, SoundDevice::Direction::capture, sample_rate, kMicrophoneBuffer),
      file_(path, sample_rate),
      stop_(0, 0, ""),
      samples_(samples) {}

std::vector<std::int16_t> LiveUser::read(std::int64_t, std::int64_t count) {
  if (stop_.poll(0) != Stop::none) return {};
  std::vector<std::int16_t> sound(static_cast<std::size_t>(count));
  microphone_.read(sound);
  file_.append(sound);
  return sound;
}

void LiveUser::finish() {
  file_.finish();
  tell_gaps(microphone_, "the microphone lost sound");
}

AgentSound::AgentSound(CodecCoder& coder, const CodecDescription& codec, const std::string& path,
                       const std::string& loudspeaker)
    : codec_(codec), speaker_(coder), file_(path, coder.sample_rate()) {
  if (!loudspeaker.empty())
    loudspeaker_.emplace(loudspeaker, SoundDevice::Direction::playback, coder.sample_rate(),
                         kLoudspeakerBuffer);
}

void AgentSound::add(std::vector<std::int32_t> codes) {
  for (std::size_t k = 0; k < codes.size(); ++k)
    if (codes[k] >= codec_.codes_per_book) codes[k] = codec_.silence[k];
  say(speaker_.push(codes, 1));
}

void AgentSound::finish() {
  say(speaker_.finish());
  file_.finish();
  if (!loudspeaker_) return;
  loudspeaker_->drain();
  tell_gaps(*loudspeaker_, "the loudspeaker fell silent");
}

void AgentSound::say(std::span<const std::int16_t> sound) {
  file_.append(sound);
  if (loudspeaker_) loudspeaker_->write(sound);
}

}  // namespace choir
