#pragma once
// Powers of bins whose mel bands are given: a spectrum that no filter tells from the true one.
#include <cstdint>
#include <span>
#include <vector>

#include "choir/ops/spectra.hpp"

namespace choir {

/// Filters overlap with their neighbours alone, so W W^T is tridiagonal and the pseudo-inverse
/// W^T (W W^T)^-1 costs as much as the filters: about 1 k FLOP a frame of 80 mels, an update of
/// Lee and Seung (P <- P W^T m / W^T W P, which keeps powers positive) 2 k.
class MelInversion {
 public:
  MelInversion(const ops::MelOptions& options, int updates);

  std::int64_t bins() const { return bins_; }
  /// Local. Magnitudes [bins] of a row [mels] as log_mel() makes them.
  void magnitudes(std::span<const float> row, std::span<float> out);

 private:
  void solve(std::vector<double>& x) const;  ///< x <- (W W^T)^-1 x
  void spread(const std::vector<double>& of_bands, std::vector<double>& of_bins) const;
  void gather(const std::vector<double>& of_bins, std::vector<double>& of_bands) const;

  std::vector<ops::MelBand> bands_;
  std::int64_t bins_;
  int updates_;
  double guard_, mean_, deviation_;
  std::vector<double> pivots_, below_;  ///< of L D L^T
  std::vector<double> mel_, again_, powers_, wanted_, found_;
};

}  // namespace choir
