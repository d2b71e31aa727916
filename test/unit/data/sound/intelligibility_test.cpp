#include "src/data/metrics/intelligibility.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "choir/core/error.hpp"
#include "src/data/audio/waveform.hpp"

namespace choir {
namespace {

struct Waves {
  std::vector<std::int16_t> clean, changed;
};

std::int16_t quantised(double x) {
  return static_cast<std::int16_t>(std::nearbyint(std::clamp(4000 * x, -32768.0, 32767.0)));
}

/// A voice with gliding formants, syllables and a pause; and the same with noise at this many dB
/// below 1.
Waves waves(int rate, double seconds, double noise_db) {
  constexpr double kTurn = 2 * std::numbers::pi;
  Waves all;
  std::int64_t state = 1;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(rate * seconds); ++i) {
    const double t = static_cast<double>(i) / rate;
    const double phase = kTurn * (140 * t + 8 * std::sin(kTurn * 0.7 * t));
    double x = 0;
    for (int h = 1; h < 26; ++h) {
      double gain = 0;
      for (const double f : {600.0, 1500.0, 2600.0})
        gain += 1 / (1 + std::pow((h * 140.0 - f * (1 + 0.2 * std::sin(3 * t))) / 150, 2));
      x += gain * std::sin(h * phase);
    }
    x *= std::pow(std::max(0.0, std::sin(kTurn * 1.9 * t)), 2);
    if (t > 1 && t < 1.5) x = 0;
    state = (state * 1103515245 + 12345) % (std::int64_t{1} << 31);
    const double noise = static_cast<double>(state) / (1 << 30) - 1;
    all.clean.push_back(quantised(x));
    all.changed.push_back(quantised(x + std::pow(10, -noise_db / 20) * noise));
  }
  return all;
}

TEST(Stoi, IsWhatPystoiSays) {
  const struct {
    int rate;
    double seconds, noise_db, stoi;
  } golden[] = {{10000, 3, 10, 0.9606121980130006},
                {16000, 3, 10, 0.9717778587482929},
                {16000, 3, -5, 0.80533550674633},
                {8000, 2.5, 0, 0.8223445138563642},
                {22050, 2.5, 5, 0.9544704072984072}};
  for (const auto& g : golden) {
    const Waves w = waves(g.rate, g.seconds, g.noise_db);
    // One sample in thousands may be rounded in the other direction, which changes the score by
    // less than its share of the power.
    EXPECT_NEAR(stoi(w.clean, w.changed, g.rate).value(), g.stoi, 1e-6) << g.rate;
    EXPECT_NEAR(stoi(w.clean, w.clean, g.rate).value(), 1, 1e-12);
  }
}

TEST(Stoi, DoesNotHearLoudness) {
  const Waves w = waves(16000, 2, 10);
  std::vector<std::int16_t> quarter = w.changed, inverted = w.changed;
  for (auto& x : quarter) x = static_cast<std::int16_t>(x / 4 * 4);
  const double whole = stoi(w.clean, quarter, 16000).value();
  for (auto& x : quarter) x = static_cast<std::int16_t>(x / 4);
  for (auto& x : inverted) x = static_cast<std::int16_t>(-x);
  EXPECT_NEAR(stoi(w.clean, quarter, 16000).value(), whole, 1e-12);
  EXPECT_EQ(stoi(w.clean, inverted, 16000), stoi(w.clean, w.changed, 16000));
}

TEST(Stoi, TooLittleSpeechHasNone) {
  const Waves w = waves(16000, 0.3, 10);
  EXPECT_FALSE(stoi(w.clean, w.changed, 16000).has_value());
  EXPECT_FALSE(stoi({}, {}, 16000).has_value());
  const std::vector<std::int16_t> silence(32000), shorter(31999);
  const auto of_silence = stoi(silence, silence, 16000);
  EXPECT_TRUE(of_silence.has_value() && std::isfinite(*of_silence));
  EXPECT_THROW(stoi(silence, shorter, 16000), Error);
}

TEST(Polyphase, KeepsATone) {
  const auto tone = [](int rate, std::int64_t n) {
    return std::sin(2 * std::numbers::pi * 1000 * static_cast<double>(n) / rate);
  };
  for (const int from : {8000, 16000, 22050, 44100}) {
    std::vector<double> x;
    for (std::int64_t n = 0; n < from; ++n) x.push_back(tone(from, n));
    const auto y = resample_exactly(x, from, 10000);
    ASSERT_EQ(y.size(), 10000u);
    for (std::int64_t n = 500; n < 9500; ++n)  // 60 dB
      ASSERT_NEAR(y[static_cast<std::size_t>(n)], tone(10000, n), 1.1e-3) << from << " " << n;
  }
}

}  // namespace
}  // namespace choir
