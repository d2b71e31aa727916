#include "choir/models/codec/codec_voice.hpp"

#include <algorithm>
#include <cmath>

#include "choir/core/error.hpp"
#include "choir/device/cpu_device.hpp"
#include "choir/ops/log_mel.hpp"

namespace choir {

std::vector<std::uint16_t> stored_codes(std::span<const std::int32_t> codes) {
  std::vector<std::uint16_t> stored(codes.size());
  std::transform(codes.begin(), codes.end(), stored.begin(), [](std::int32_t code) {
    CHOIR_CHECK(code >= 0 && code <= 0xffff, "code {} of a file of codes", code);
    return static_cast<std::uint16_t>(code);
  });
  return stored;
}

CodecDescription describe(CodecCoder& coder) {
  constexpr std::int64_t kFrames = 3;  // one with zeros on both sides
  const std::vector<std::int16_t> zeros(static_cast<std::size_t>(kFrames * coder.frame_samples()));
  const std::vector<std::uint16_t> codes = stored_codes(coder.encode(zeros));
  const auto second = codes.begin() + coder.codebooks();
  return {.hash = coder.hash(),
          .sample_rate = coder.sample_rate(),
          .frame_samples = coder.frame_samples(),
          .codebooks = coder.codebooks(),
          .codes_per_book = coder.codes_per_book(),
          .silence = {second, second + coder.codebooks()}};
}

DecodedSound sound_of(const CodecCoder& coder, std::int64_t look_ahead) {
  const ops::MelOptions& mel = coder.mel();
  if (coder.makes_sound()) return OverlapAdd(mel.fft, mel.hop, (mel.fft - mel.hop) / 2);
  VocoderOptions options;
  options.mel = mel;
  options.mel.mean = 0, options.mel.deviation = 1;  // decode() undoes them
  options.block = coder.rows_per_frame();
  options.look_ahead = look_ahead;
  return Vocoder(options);
}

CodeSpeaker::CodeSpeaker(CodecCoder& coder) : coder_(coder), sound_(sound_of(coder)) {}

std::vector<std::int16_t> CodeSpeaker::push(std::span<const std::int32_t> codes,
                                            std::int64_t frames) {
  const std::vector<float> decoded = coder_.decode(codes, frames);
  return std::visit([&](auto& sound) { return sound.push(decoded); }, sound_);
}
std::vector<std::int16_t> CodeSpeaker::finish() {
  return std::visit([](auto& sound) { return sound.finish(); }, sound_);
}
std::int64_t CodeSpeaker::delay() const {
  return std::visit([](const auto& sound) { return sound.delay(); }, sound_);
}

std::vector<std::int16_t> speak_codes(CodecCoder& coder, std::span<const std::int32_t> codes,
                                      std::int64_t frames) {
  // A minute at a time: features take fifty times the memory of their codes.
  constexpr std::int64_t kFrames = 750;
  DecodedSound decoded = sound_of(coder, kLookAheadOfRecordings);
  std::vector<std::int16_t> sound;
  const auto append = [&](const std::vector<std::int16_t>& more) {
    sound.insert(sound.end(), more.begin(), more.end());
  };
  for (std::int64_t first = 0; first < frames; first += kFrames) {
    const std::int64_t here = std::min(kFrames, frames - first);
    const auto part = codes.subspan(static_cast<std::size_t>(first * coder.codebooks()),
                                    static_cast<std::size_t>(here * coder.codebooks()));
    const std::vector<float> rows = coder.decode(part, here);
    append(std::visit([&](auto& to) { return to.push(rows); }, decoded));
  }
  append(std::visit([](auto& to) { return to.finish(); }, decoded));
  return sound;
}

namespace {

/// ln of the band powers, [rows, mels] of whole frames, as the codec computes them.
std::vector<float> features_of(const ops::MelOptions& mel, std::span<const std::int16_t> audio,
                               std::int64_t rows) {
  CpuDevice device;
  const Stream stream(device);
  ops::MelOptions options = mel;
  options.mean = 0, options.deviation = 1;
  std::vector<std::byte> tables(static_cast<std::size_t>(ops::mel_table_bytes(options)));
  const TensorView table{tables.data(), DType::u8, {std::ssize(tables)}};
  ops::make_mel_tables(stream, options, table);
  std::vector<float> features(static_cast<std::size_t>(rows * options.mels));
  auto samples = static_cast<std::int32_t>(audio.size()), frames = static_cast<std::int32_t>(rows);
  // The op only reads it.
  void* const bits = const_cast<std::int16_t*>(audio.data());
  ops::log_mel(stream, {.options = options,
                        .audio = {bits, DType::u16, {1, std::ssize(audio)}},
                        .audio_lengths = &samples,
                        .lengths = &frames,
                        .tables = table,
                        .out = {features.data(), DType::f32, {1, rows, options.mels}}});
  stream.synchronize();
  return features;
}

MelDistance distance_of(const std::vector<float>& was, const std::vector<float>& now) {
  MelDistance distance{.features = std::ssize(was)};
  for (std::size_t i = 0; i < was.size(); ++i)
    distance.sum += std::abs(static_cast<double>(was[i]) - static_cast<double>(now[i]));
  return distance;
}

}  // namespace

MelDistance mel_distance(CodecCoder& coder, std::span<const std::int16_t> audio,
                         std::span<const std::int32_t> codes) {
  const std::int64_t frames = std::ssize(codes) / coder.codebooks();
  CHOIR_CHECK(frames * coder.frame_samples() >= std::ssize(audio), "{} frames for {} samples",
              frames, audio.size());
  CHOIR_CHECK(!coder.makes_sound(), "features of a codec that makes sound");
  return distance_of(features_of(coder.mel(), audio, frames * coder.rows_per_frame()),
                     coder.decode(codes, frames));
}

MelDistance sound_distance(const CodecCoder& coder, std::span<const std::int16_t> audio,
                           std::span<const std::int16_t> sound) {
  const std::int64_t rows = std::ssize(sound) / coder.mel().hop;
  return distance_of(features_of(coder.mel(), audio, rows), features_of(coder.mel(), sound, rows));
}

double MelDistance::decibels() const {
  const double nepers = features > 0 ? sum / static_cast<double>(features) : 0;
  return 10 / std::log(10.0) * nepers;
}

}  // namespace choir
