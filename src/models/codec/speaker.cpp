#include "src/models/codec/speaker.hpp"

#include <fmt/core.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <utility>

#include "src/core/quantities.hpp"
#include "src/data/audio/audio_decoder.hpp"
#include "src/data/audio/waveform.hpp"
#include "src/data/metrics/intelligibility.hpp"
#include "src/store/npy.hpp"

namespace choir {
namespace {

void refuse_overwriting(const std::string& file, const std::string& target) {
  std::error_code none;
  if (std::filesystem::equivalent(file, target, none))
    throw DeckError(fmt::format("output '{}' would overwrite its input", target),
                    "name another file or folder with --out");
}

void append(std::vector<std::int16_t>& to, const std::vector<std::int16_t>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

}  // namespace

Spoken Speaker::recording(const std::string& file, const std::string& target,
                          const std::string& codes_target) {
  refuse_overwriting(file, target);
  refuse_overwriting(file, codes_target);
  const RecordingSource source{file, 0, -1, channel_choice_of(options_.channel)};
  Recording recording = Recording::open(source, coder_.sample_rate());
  Spoken spoken{
      .from = file, .to = target, .codes_to = codes_target, .seconds = recording.seconds()};
  const double began = now_seconds();
  std::vector<std::int16_t> audio = recording.read(0, recording.samples());
  std::vector<std::int32_t> codes;
  std::vector<std::int16_t> sound;
  if (options_.stream) {
    stream(audio, codes, sound, spoken);
  } else {
    codes = coder_.encode(audio);
    sound = speak_codes(coder_, codes, std::ssize(codes) / coder_.codebooks());
  }
  spoken.worked = now_seconds() - began;
  spoken.frames = std::ssize(codes) / coder_.codebooks();
  spoken.sounding = sound_distance(coder_, audio, sound);
  spoken.mel = coder_.makes_sound() ? spoken.sounding : mel_distance(coder_, audio, codes);
  sound.resize(audio.size());
  spoken.stoi = stoi(audio, sound, coder_.sample_rate());
  write(sound, target);
  if (!codes_target.empty()) write_codes(codes, codes_target);
  return spoken;
}

Spoken Speaker::codes(const std::string& file, const std::string& target) {
  const std::vector<std::int32_t> codes = read_codes(file);
  Spoken spoken{.from = file, .to = target, .frames = std::ssize(codes) / coder_.codebooks()};
  const double began = now_seconds();
  std::vector<std::int16_t> sound;
  if (options_.stream) {
    CodeSpeaker speaker(coder_);
    for (std::int64_t t = 0; t < spoken.frames; ++t) say(speaker, codes, t, sound, spoken);
    append(sound, speaker.finish());
  } else {
    sound = speak_codes(coder_, codes, spoken.frames);
  }
  spoken.worked = now_seconds() - began;
  spoken.seconds = static_cast<double>(sound.size()) / coder_.sample_rate();
  write(sound, target);
  return spoken;
}

void Speaker::stream(std::span<const std::int16_t> audio, std::vector<std::int32_t>& codes,
                     std::vector<std::int16_t>& sound, Spoken& spoken) {
  CodecCoder::Stream coding(coder_);
  CodeSpeaker speaker(coder_);
  const auto frame = static_cast<std::size_t>(coder_.frame_samples());
  std::int64_t said = 0;
  const auto say_all = [&](const std::vector<std::int32_t>& more, double began) {
    codes.insert(codes.end(), more.begin(), more.end());
    const std::int64_t frames = std::ssize(codes) / coder_.codebooks();
    if (frames > said)
      append(sound, speaker.push(std::span(codes).subspan(
                                     static_cast<std::size_t>(said * coder_.codebooks())),
                                 frames - said));
    said = frames;
    spoken.frame_ms.push_back(1000 * (now_seconds() - began));
  };
  for (std::size_t at = 0; at < audio.size(); at += frame) {
    const double began = now_seconds();
    say_all(coding.add(audio.subspan(at, std::min(frame, audio.size() - at))), began);
  }
  say_all(coding.finish(), now_seconds());
  append(sound, speaker.finish());
  spoken.delay_ms =
      1000 * static_cast<double>(speaker.delay() + coder_.samples_ahead()) / coder_.sample_rate();
}

void Speaker::say(CodeSpeaker& speaker, std::span<const std::int32_t> codes, std::int64_t t,
                  std::vector<std::int16_t>& sound, Spoken& spoken) {
  const auto books = static_cast<std::size_t>(coder_.codebooks());
  const double began = now_seconds();
  append(sound, speaker.push(codes.subspan(static_cast<std::size_t>(t) * books, books), 1));
  spoken.frame_ms.push_back(1000 * (now_seconds() - began));
  spoken.delay_ms = 1000 * static_cast<double>(speaker.delay()) / coder_.sample_rate();
}

std::vector<std::int32_t> Speaker::read_codes(const std::string& file) const {
  const NpyArray array = read_npy(file);
  const std::int64_t books = coder_.codebooks(), most = coder_.codes_per_book();
  if (array.shape.rank() != 2 || array.shape[1] != books)
    throw DataError(
        fmt::format("'{}' is {}, not [frames, {}]", file, to_string(array.shape), books),
        "expected one code per codebook and frame, as uint16, int32, int64 or floats");
  std::vector<std::int32_t> codes;
  for (const double value : array.values) {
    if (!(value >= 0 && value < static_cast<double>(most)) || value != std::floor(value))
      throw DataError(
          fmt::format("'{}' has {} in frame {}", file, value, std::ssize(codes) / books),
          fmt::format("codes are whole numbers from 0 to {}", most - 1));
    codes.push_back(static_cast<std::int32_t>(value));
  }
  if (codes.empty()) throw DataError(fmt::format("'{}' has no frames", file));
  return codes;
}

void Speaker::write_codes(std::vector<std::int32_t>& codes, const std::string& target) const {
  const Shape shape{std::ssize(codes) / coder_.codebooks(), coder_.codebooks()};
  if (coder_.codes_per_book() > std::numeric_limits<std::uint16_t>::max() + 1)
    return write_npy(target, {codes.data(), DType::i32, shape});
  std::vector<std::uint16_t> narrow(codes.begin(), codes.end());
  write_npy(target, {narrow.data(), DType::u16, shape});
}

void Speaker::write(const std::vector<std::int16_t>& sound, const std::string& target) const {
  WavWriter writer(target, coder_.sample_rate());
  writer.append(sound);
  writer.finish();
}

}  // namespace choir
