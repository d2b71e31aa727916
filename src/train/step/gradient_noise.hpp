#pragma once
// The gradient noise scale: the batch size up to which larger batches reduce the number of steps.
// Following "An Empirical Model of Large-Batch Training" (McCandlish, Kaplan, Amodei 2018),
// appendix A.1, it is estimated from the squared norms of gradients of a small and a large batch at
// the same parameters:
//
//   |G|^2 = (b_large |g_large|^2 - b_small |g_small|^2) / (b_large - b_small)
//   tr(S) = (|g_small|^2 - |g_large|^2) / (1 / b_small - 1 / b_large),  B_simple = tr(S) / |G|^2.
//
// Both estimates are unbiased, and both are averaged over several pairs before the division. Pure.
#include <cstdint>
#include <span>

namespace choir {

/// Squared norms of the mean gradient of two batches.
struct NoiseProbe {
  double small_square = 0, large_square = 0;
};

struct GradientNoise {
  std::int64_t small = 0, large = 0;  ///< samples
  int probes = 0;                     ///< 0: nothing was measured
  std::int64_t after_steps = 0;       ///< of training; the scale grows with them
  double signal = 0, noise = 0;       ///< |G|^2 and tr(S)
  double scale = 0;                   ///< B_simple, in samples; 0: noise hides the signal
  double error = 0;  ///< standard error of the scale (jackknife: each pair is left out once)
  bool known() const { return probes > 0 && scale > 0; }
};

/// Ignores pairs with a norm that is not finite.
GradientNoise estimate_noise(std::span<const NoiseProbe> probes, std::int64_t small,
                             std::int64_t large);

}  // namespace choir
