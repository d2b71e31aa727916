#include "choir/data/sound/overlap_add.hpp"

#include <algorithm>
#include <cmath>

#include "choir/core/error.hpp"

namespace choir {

std::vector<std::int16_t> pcm_of(std::span<const float> wave) {
  std::vector<std::int16_t> samples(wave.size());
  std::transform(wave.begin(), wave.end(), samples.begin(), [](float x) {
    return static_cast<std::int16_t>(std::lrint(std::clamp(x * 32768.0f, -32768.0f, 32767.0f)));
  });
  return samples;
}

OverlapAdd::OverlapAdd(std::int64_t frame, std::int64_t hop, std::int64_t lead)
    : frame_(frame), hop_(hop), lead_(lead) {
  CHOIR_CHECK(lead >= 0 && lead < frame && hop >= 1 && hop <= frame - lead,
              "frames of {} samples, {} apart, {} before their own", frame, hop, lead);
}

std::vector<std::int16_t> OverlapAdd::take(std::int64_t samples) {
  const auto count =
      static_cast<std::ptrdiff_t>(std::clamp<std::int64_t>(samples - taken_, 0, std::ssize(sums_)));
  std::vector<std::int16_t> pcm = pcm_of(std::span(sums_).first(static_cast<std::size_t>(count)));
  sums_.erase(sums_.begin(), sums_.begin() + count);
  taken_ += count;
  return pcm;
}

std::vector<std::int16_t> OverlapAdd::push(std::span<const float> frames) {
  CHOIR_CHECK(std::ssize(frames) % frame_ == 0, "{} samples are no frames of {}", frames.size(),
              frame_);
  for (; !frames.empty(); frames = frames.subspan(static_cast<std::size_t>(frame_))) {
    const std::int64_t begin = pushed_++ * hop_ - lead_ - taken_;
    sums_.resize(static_cast<std::size_t>(begin + frame_), 0.0f);
    for (std::int64_t n = std::max<std::int64_t>(0, -begin); n < frame_; ++n)
      sums_[static_cast<std::size_t>(begin + n)] += frames[static_cast<std::size_t>(n)];
  }
  return take(pushed_ * hop_ - lead_);
}

std::vector<std::int16_t> OverlapAdd::finish() {
  std::vector<std::int16_t> rest = take(pushed_ * hop_);
  sums_.clear();
  pushed_ = taken_ = 0;
  return rest;
}

}  // namespace choir
