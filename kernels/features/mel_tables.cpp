#include "kernels/features/mel_tables.hpp"

#include <algorithm>
#include <cmath>

namespace choir {
namespace {

// The Slaney scale: linear up to 1 kHz, 15 mel, then a factor of 6.4 every 27 mel. All tables are
// computed in extended precision and rounded once: a weight near the edge of its filter is a small
// difference of large frequencies.
using Wide = long double;
constexpr Wide kHertzPerMel = Wide{200} / 3, kBreakHertz = 1000, kBreakMel = 15;
const Wide kLogStep = std::log(Wide{64} / 10) / 27;

Wide mel_of(Wide hertz) {
  return hertz < kBreakHertz ? hertz / kHertzPerMel
                             : kBreakMel + std::log(hertz / kBreakHertz) / kLogStep;
}
Wide hertz_of(Wide mel) {
  return mel < kBreakMel ? mel * kHertzPerMel
                         : kBreakHertz * std::exp(kLogStep * (mel - kBreakMel));
}

/// Triangles over mels + 2 edges at equal distances in mel, each of area 1.
void put_filters(const ops::MelOptions& options, const MelTableLayout& at, double* tables) {
  const auto rate = static_cast<Wide>(options.sample_rate);
  const Wide end = options.high > 0 ? static_cast<Wide>(options.high) : rate / 2;
  const Wide top = mel_of(end);
  // The last edge is exactly `end`; if it were rounded, it could include the bin at the end.
  const auto edge = [&](std::int64_t i) {
    return i > options.mels
               ? end
               : hertz_of(top * static_cast<Wide>(i) / static_cast<Wide>(options.mels + 1));
  };
  std::int64_t used = 0;
  for (std::int64_t m = 0; m < options.mels; ++m) {
    const Wide low = edge(m), centre = edge(m + 1), high = edge(m + 2);
    std::int64_t first = 0, bins = 0;
    for (std::int64_t k = 0; k <= options.fft / 2; ++k) {
      const Wide f = static_cast<Wide>(k) * rate / static_cast<Wide>(options.fft);
      const Wide height = std::min((f - low) / (centre - low), (high - f) / (high - centre));
      if (height <= 0) continue;
      if (bins++ == 0) first = k;
      tables[at.weights + used + bins - 1] = static_cast<double>(height * 2 / (high - low));
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
  constexpr Wide kTurn = 6.283185307179586476925286766559L;
  if (options.window == 1) tables[0] = 1;
  for (std::int64_t n = 0; n < options.window && options.window > 1; ++n) {
    // Computed from the nearer end, so that the window is symmetric and 0 at both ends.
    const std::int64_t near = std::min(n, options.window - 1 - n);
    const Wide sine =
        std::sin(kTurn / 2 * static_cast<Wide>(near) / static_cast<Wide>(options.window - 1));
    tables[static_cast<std::size_t>(n)] = static_cast<double>(sine * sine);
  }
  for (std::int64_t k = 0; k < options.fft; ++k) {
    // Computed from the first quarter turn, so that the roots are exactly symmetric.
    const std::int64_t quarter = options.fft / 4, r = k % quarter;
    const Wide angle = kTurn * static_cast<Wide>(r) / static_cast<Wide>(options.fft);
    auto c = static_cast<double>(std::cos(angle)), s = static_cast<double>(-std::sin(angle));
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
