#include "kernels/features/features.hpp"

#include <complex>

#include "test/support/log_mel_case.hpp"

namespace choir::test {
namespace {

/// The filters of the tables as a dense matrix [mels, fft/2 + 1].
std::vector<double> dense_filters(const ops::MelOptions& options) {
  const std::vector<double> tables = mel_tables(options);
  const MelTableLayout at = mel_table_layout(options);
  const std::int64_t bins = options.fft / 2 + 1;
  std::vector<double> dense(static_cast<std::size_t>(options.mels * bins));
  for (std::int64_t m = 0; m < options.mels; ++m) {
    const double* band = tables.data() + at.bands + 3 * m;
    for (std::int64_t k = 0; k < static_cast<std::int64_t>(band[1]); ++k)
      dense[static_cast<std::size_t>(m * bins + static_cast<std::int64_t>(band[0]) + k)] =
          tables[static_cast<std::size_t>(at.weights + static_cast<std::int64_t>(band[2]) + k)];
  }
  return dense;
}

template <std::size_t kCount>
void expect_filters(const ops::MelOptions& options, const Golden (&golden)[kCount], int weights,
                    double sum) {
  for (const auto& filters : {dense_filters(options), ref::mel_filters(options)}) {
    int used = 0;
    double total = 0;
    for (const double f : filters) used += f > 0, total += f;
    EXPECT_EQ(used, weights);
    EXPECT_NEAR(total, sum, 1e-12);
    for (const Golden& g : golden)
      EXPECT_NEAR(filters[static_cast<std::size_t>(g.row * (options.fft / 2 + 1) + g.column)],
                  g.value, 1e-14)
          << "filter " << g.row << " bin " << g.column;
  }
}

TEST(MelTables, FiltersAreThoseOfLibrosa) {
  expect_filters({}, kFilters16, kFilters16Weights, kFilters16Sum);
  expect_filters(at_8_khz(), kFilters8, kFilters8Weights, kFilters8Sum);
}

TEST(MelTables, TheBinAtTheEndLiesOnTheLastEdgeAndWeighsNothing) {
  // If an edge is converted back from mel to 8000 + 1e-12 Hz, the bin at 8000 Hz has a weight of
  // 2e-17.
  for (const std::int64_t rate : {8000, 11025, 16000, 22050, 44100, 48000})
    for (const std::int64_t mels : {1, 40, 64, 80, 128}) {
      const ops::MelOptions options{.sample_rate = rate, .mels = mels};
      for (const auto& filters : {dense_filters(options), ref::mel_filters(options)})
        EXPECT_EQ(filters.back(), 0) << mels << " mels to " << rate / 2 << " Hz";
    }
}

TEST(MelTables, FiltersFitWhateverTheirNumberAndTheirEnd) {
  for (const std::int64_t fft : {256, 512, 1024})
    for (const std::int64_t mels : {std::int64_t{1}, std::int64_t{80}, fft / 2 + 1})
      for (const double high : {0.0, 300.0, 3999.5}) {
        const ops::MelOptions options{.window = 200, .fft = fft, .mels = mels, .high = high};
        const std::vector<double> dense = dense_filters(options), exact = ref::mel_filters(options);
        for (std::size_t i = 0; i < dense.size(); ++i) ASSERT_NEAR(dense[i], exact[i], 1e-13);
      }
}

TEST(MelTables, WindowIsTheSymmetricHannAndRootsLieOnTheCircle) {
  const ops::MelOptions options;
  const std::vector<double> tables = mel_tables(options);
  const MelTableLayout at = mel_table_layout(options);
  EXPECT_EQ(tables[0], 0);
  EXPECT_EQ(tables[399], 0);
  EXPECT_NEAR(tables[100], 0.5 - 0.5 * std::cos(200 * M_PI / 399), 1e-15);
  for (std::size_t n = 0; n < 400; ++n) ASSERT_EQ(tables[n], tables[399 - n]);
  for (int k = 0; k < 512; ++k) {
    const auto root = std::polar(1.0, -2 * M_PI * k / 512);
    const auto i = static_cast<std::size_t>(at.roots + 2 * k);
    ASSERT_NEAR(tables[i], root.real(), 2e-15);
    ASSERT_NEAR(tables[i + 1], root.imag(), 2e-15);
  }
}

TEST(MelTables, SpectrumPositionsArePermutations) {
  for (const int count : {128, 256, 512}) {
    std::vector<bool> taken(static_cast<std::size_t>(count));
    for (int k = 0; k < count; ++k)
      taken[static_cast<std::size_t>(spectrum_position(k, count))] = true;
    EXPECT_EQ(std::count(taken.begin(), taken.end(), true), count);
  }
  EXPECT_EQ(spectrum_position(1, 256), 64);
  EXPECT_EQ(spectrum_position(1, 2), 1);
}

}  // namespace
}  // namespace choir::test
