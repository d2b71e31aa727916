#include "src/data/sound/mel_inversion.hpp"

#include <algorithm>
#include <cmath>

namespace choir {
namespace {

/// Inner product of a filter with itself or with the next one.
double product(const ops::MelBand& a, const ops::MelBand& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.weights.size(); ++i) {
    const std::int64_t k = a.first + static_cast<std::int64_t>(i) - b.first;
    if (k >= 0 && k < std::ssize(b.weights))
      sum += a.weights[i] * b.weights[static_cast<std::size_t>(k)];
  }
  return sum;
}

}  // namespace

MelInversion::MelInversion(const ops::MelOptions& options, int updates)
    : bands_(ops::mel_bands(options)),
      bins_(options.fft / 2 + 1),
      updates_(updates),
      guard_(options.guard),
      mean_(options.mean),
      deviation_(options.deviation) {
  const std::size_t mels = bands_.size();
  pivots_.resize(mels), below_.resize(mels);
  for (std::size_t m = 0; m < mels; ++m) {
    const double own = product(bands_[m], bands_[m]);
    double pivot = own;
    if (m > 0) {
      // A filter without bins of its own adds nothing: its pivot is 0 and it is skipped.
      below_[m] = pivots_[m - 1] > 0 ? product(bands_[m - 1], bands_[m]) / pivots_[m - 1] : 0;
      pivot -= below_[m] * below_[m] * pivots_[m - 1];
    }
    pivots_[m] = pivot > 1e-9 * own ? pivot : 0;
  }
  for (auto* of_bands : {&mel_, &again_}) of_bands->resize(mels);
  for (auto* of_bins : {&powers_, &wanted_, &found_})
    of_bins->resize(static_cast<std::size_t>(bins_));
}

void MelInversion::magnitudes(std::span<const float> row, std::span<float> out) {
  double loudest = 0;
  for (std::size_t m = 0; m < mel_.size(); ++m) {
    // Powers are bounded by e^60, which no sound reaches, so that squares stay finite; NaN becomes
    // silence.
    const double logarithm = static_cast<double>(row[m]) * deviation_ + mean_;
    const double power = std::exp(std::min(logarithm, 60.0)) - guard_;
    mel_[m] = power > 0 ? power : 0;
    loudest = std::max(loudest, mel_[m]);
  }
  if (loudest == 0) return std::fill(out.begin(), out.end(), 0.0f);
  again_ = mel_;
  solve(again_);
  spread(again_, powers_);
  spread(mel_, wanted_);
  // A power of 0 would stay 0, so powers get a minimum that updates can raise.
  for (double& power : powers_) power = std::max(power, 1e-6 * loudest);
  for (int update = 0; update < updates_; ++update) {
    gather(powers_, again_);
    spread(again_, found_);
    for (std::size_t k = 0; k < powers_.size(); ++k)
      powers_[k] = found_[k] > 0 ? powers_[k] * wanted_[k] / found_[k] : 0;
  }
  for (std::size_t k = 0; k < powers_.size(); ++k)
    out[k] = static_cast<float>(std::sqrt(powers_[k]));
}

void MelInversion::solve(std::vector<double>& x) const {
  for (std::size_t m = 1; m < x.size(); ++m) x[m] -= below_[m] * x[m - 1];
  for (std::size_t m = 0; m < x.size(); ++m) x[m] = pivots_[m] > 0 ? x[m] / pivots_[m] : 0;
  for (std::size_t m = x.size() - 1; m > 0; --m) x[m - 1] -= below_[m] * x[m];
}

void MelInversion::spread(const std::vector<double>& of_bands, std::vector<double>& of_bins) const {
  std::fill(of_bins.begin(), of_bins.end(), 0.0);
  for (std::size_t m = 0; m < bands_.size(); ++m) {
    double* to = of_bins.data() + bands_[m].first;
    for (const double weight : bands_[m].weights) *to++ += weight * of_bands[m];
  }
}

void MelInversion::gather(const std::vector<double>& of_bins, std::vector<double>& of_bands) const {
  for (std::size_t m = 0; m < bands_.size(); ++m) {
    const double* from = of_bins.data() + bands_[m].first;
    of_bands[m] = 0;
    for (const double weight : bands_[m].weights) of_bands[m] += weight * *from++;
  }
}

}  // namespace choir
