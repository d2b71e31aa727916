#include "choir/data/corpora/spoken_corpus.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "choir/core/error.hpp"
#include "choir/core/philox.hpp"
#include "choir/core/run_program.hpp"
#include "choir/core/text.hpp"
#include "src/data/audio/waveform.hpp"

namespace choir {
namespace {

constexpr const char* kProgram = "espeak-ng";
constexpr const char* kPackage = "espeak-ng";
constexpr float kLoudest = 0.5f;  // of full scale; leaves headroom for the noise

/// Four normal deviates for four indices (Box-Muller, both of each pair).
std::array<float, 4> normals(PhiloxKey key, std::uint64_t index, std::uint64_t lane) {
  const PhiloxBlock r = philox_at(key, index, lane);
  std::array<float, 4> all{};
  for (std::size_t pair = 0; pair < 4; pair += 2) {
    const double u = (r[pair] + 1.0) * 0x1p-32;
    const double radius = std::sqrt(-2.0 * std::log(u));
    const double angle = 6.283185307179586476925 * uniform01(r[pair + 1]);
    all[pair] = static_cast<float>(radius * std::cos(angle));
    all[pair + 1] = static_cast<float>(radius * std::sin(angle));
  }
  return all;
}

std::vector<float> clean(const SpokenLine& line) {
  std::vector<std::string> argv{kProgram,
                                "-v",
                                line.voice,
                                "-s",
                                std::to_string(line.words_per_minute),
                                "-p",
                                std::to_string(line.pitch),
                                "--stdout"};
  if (!line.final_pause) argv.push_back("-z");
  argv.push_back("--");
  argv.push_back(line.text);
  const Wav wav = parse_wav(run_program(argv, kPackage), "what espeak-ng wrote");
  if (wav.samples.empty())
    throw DataError(
        fmt::format("espeak-ng produced no sound for '{}' with voice {}", line.text, line.voice));
  std::vector<float> speech(wav.samples.begin(), wav.samples.end());
  return resample(speech, wav.sample_rate, kSpokenRate);
}

}  // namespace

std::string espeak_version() {
  return std::string(trim(run_program({kProgram, "--version"}, kPackage)));
}

std::vector<std::int16_t> speak(const SpokenLine& line, std::uint64_t seed) {
  std::vector<float> speech = clean(line);
  const auto frame = static_cast<std::size_t>(line.frame);
  speech.resize((speech.size() + frame - 1) / frame * frame, 0.0f);
  float loudest = 1;
  double power = 0;
  for (const float x : speech) {
    loudest = std::max(loudest, std::abs(x));
    power += static_cast<double>(x) * x;
  }
  const float gain = line.gain > 0 ? static_cast<float>(line.gain) : kLoudest * 32767 / loudest;
  const auto rms = static_cast<float>(std::sqrt(power / static_cast<double>(speech.size())));
  const float noise = gain * rms * static_cast<float>(std::pow(10.0, -line.snr_db / 20));
  const PhiloxKey key = philox_key(seed, "spoken noise");
  std::vector<std::int16_t> samples(speech.size());
  for (std::size_t at = 0; at < speech.size(); at += 4) {
    const auto random = normals(key, line.id, at / 4);
    for (std::size_t i = at; i < std::min(at + 4, speech.size()); ++i) {
      const float value = gain * speech[i] + noise * random[i - at];
      samples[i] = static_cast<std::int16_t>(std::lrint(std::clamp(value, -32768.0f, 32767.0f)));
    }
  }
  return samples;
}

}  // namespace choir
