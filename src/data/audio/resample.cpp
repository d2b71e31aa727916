#include "choir/data/audio/resample.hpp"

#include <cmath>

#include "choir/core/error.hpp"
#include "choir_features.hpp"

#ifdef CHOIR_HAVE_SOXR
#include <soxr.h>
#endif

namespace choir {

#ifdef CHOIR_HAVE_SOXR
std::vector<float> resample(std::span<const float> samples, int from, int to) {
  CHOIR_CHECK(from > 0 && to > 0, "rates {} and {}", from, to);
  if (from == to) return {samples.begin(), samples.end()};
  const double expected = static_cast<double>(samples.size()) * to / from;
  std::vector<float> result(static_cast<std::size_t>(std::ceil(expected)) + 16);
  const soxr_io_spec_t io = soxr_io_spec(SOXR_FLOAT32_I, SOXR_FLOAT32_I);
  const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
  const soxr_runtime_spec_t runtime = soxr_runtime_spec(1);
  std::size_t used = 0, made = 0;
  const soxr_error_t failed =
      soxr_oneshot(from, to, 1, samples.data(), samples.size(), &used, result.data(), result.size(),
                   &made, &io, &quality, &runtime);
  if (failed != nullptr || used != samples.size())
    throw Error(ExitCode::other, fmt::format("resampling from {} to {} hertz failed: {}", from, to,
                                             failed != nullptr ? failed : "input left over"));
  result.resize(made);
  return result;
}
#else
std::vector<float> resample(std::span<const float> samples, int from, int to) {
  if (from == to) return {samples.begin(), samples.end()};
  throw DeckError(fmt::format("audio of {} hertz cannot be brought to {}: this program was built "
                              "without libsoxr",
                              from, to),
                  "install libsoxr-dev and build again, or ask for the rate of the audio with "
                  "--sample-rate");
}
#endif

}  // namespace choir
