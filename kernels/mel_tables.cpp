#include "kernels/mel_tables.hpp"

#include <algorithm>
#include <cmath>

namespace choir {
namespace {

// The Slaney scale: linear up to 1 kHz, 15 mel, then a factor of 6.4 every 27 mel.
constexpr double kHertzPerMel = 200.0 / 3, kBreakHertz = 1000, kBreakMel = 15;
const double kLogStep = std::log(6.4) / 27;

double mel_of(double hertz) {
  return hertz < kBreakHertz ? hertz / kHertzPerMel
                             : kBreakMel + std::log(hertz / kBreakHertz) / kLogStep;
}
double hertz_of(double mel) {
  return mel < kBreakMel ? mel * kHertzPerMel
                         : kBreakHertz * std::exp(kLogStep * (mel - kBreakMel));
}

/// Triangles between neighbours but one of mels + 2 edges, equally far in mel, each of area 1.
void put_filters(const ops::MelOptions& options, const MelTableLayout& at, double* tables) {
  const double rate = static_cast<double>(options.sample_rate);
  const double top = mel_of(options.high > 0 ? options.high : rate / 2);
  const auto edge = [&](std::int64_t i) {
    return hertz_of(top * static_cast<double>(i) / static_cast<double>(options.mels + 1));
  };
  std::int64_t used = 0;
  for (std::int64_t m = 0; m < options.mels; ++m) {
    const double low = edge(m), centre = edge(m + 1), high = edge(m + 2);
    std::int64_t first = 0, bins = 0;
    for (std::int64_t k = 0; k <= options.fft / 2; ++k) {
      const double f = static_cast<double>(k) * rate / static_cast<double>(options.fft);
      const double height = std::min((f - low) / (centre - low), (high - f) / (high - centre));
      if (height <= 0) continue;
      if (bins++ == 0) first = k;
      tables[at.weights + used + bins - 1] = height * 2 / (high - low);
    }
    double* band = tables + at.bands + 3 * m;
    band[0] = static_cast<double>(first), band[1] = static_cast<double>(bins);
    band[2] = static_cast<double>(used);
    used += bins;
  }
  CHOIR_CHECK(used <= options.fft + 2, "{} weights of mel filters", used);
}

}  // namespace

std::vector<double> mel_tables(const ops::MelOptions& options) {
  const MelTableLayout at = mel_table_layout(options);
  std::vector<double> tables(static_cast<std::size_t>(at.size));
  constexpr double kTurn = 6.283185307179586476925;
  for (std::int64_t n = 0; n < options.window; ++n)
    tables[static_cast<std::size_t>(n)] =
        options.window == 1 ? 1
                            : 0.5 - 0.5 * std::cos(kTurn * static_cast<double>(n) /
                                                   static_cast<double>(options.window - 1));
  for (std::int64_t k = 0; k < options.fft; ++k) {
    // From the first quarter turn, so that the roots are as symmetric as the circle.
    const std::int64_t quarter = options.fft / 4, r = k % quarter;
    const double angle = kTurn * static_cast<double>(r) / static_cast<double>(options.fft);
    double c = std::cos(angle), s = -std::sin(angle);
    for (std::int64_t q = k / quarter; q > 0; --q) {
      const double turned = s;
      s = -c, c = turned;
    }
    tables[static_cast<std::size_t>(at.roots + 2 * k)] = c;
    tables[static_cast<std::size_t>(at.roots + 2 * k + 1)] = s;
  }
  put_filters(options, at, tables.data());
  return tables;
}

}  // namespace choir
