#pragma once
// Inversion of a mel filter bank: powers of bins with given mel bands, a spectrum that the filters
// cannot distinguish from the true one.
#include <cstdint>
#include <span>
#include <vector>

#include "choir/ops/spectra.hpp"

namespace choir {

/// Filters overlap only with their neighbours, so W W^T is tridiagonal and the pseudo-inverse W^T
/// (W W^T)^-1 costs as much as the filters: about 1 k FLOP for a frame of 80 mels. An update of Lee
/// and Seung (P <- P W^T m / W^T W P, which keeps powers positive) costs 2 k FLOP.
class MelInversion {
 public:
  MelInversion(const ops::MelOptions& options, int updates);

  std::int64_t bins() const { return bins_; }
  /// Local. Computes the magnitudes [bins] of a row [mels] of log_mel().
  void magnitudes(std::span<const float> row, std::span<float> out);

 private:
  void solve(std::vector<double>& x) const;  ///< x <- (W W^T)^-1 x
  void spread(const std::vector<double>& of_bands, std::vector<double>& of_bins) const;
  void gather(const std::vector<double>& of_bins, std::vector<double>& of_bands) const;

  std::vector<ops::MelBand> bands_;
  std::int64_t bins_;
  int updates_;
  double guard_, mean_, deviation_;
  std::vector<double> pivots_, below_;  ///< the factors of L D L^T
  std::vector<double> mel_, again_, powers_, wanted_, found_;
};

}  // namespace choir
