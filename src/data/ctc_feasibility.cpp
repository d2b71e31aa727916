#include "choir/data/ctc_feasibility.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "choir/core/error.hpp"

namespace choir {
namespace {

std::size_t index_of(std::int64_t subsampling) {
  const auto* at = std::find(kCtcSubsamplings.begin(), kCtcSubsamplings.end(), subsampling);
  CHOIR_CHECK(at != kCtcSubsamplings.end(), "subsampling by {}: it is 2, 4 or 8", subsampling);
  return static_cast<std::size_t>(at - kCtcSubsamplings.begin());
}

/// "0.04 %", never 0 % for what is more than none.
std::string percent(double share) {
  if (share == 0) return "none";
  return share < 1e-4 ? "below 0.01 %" : fmt::format("{:.2f} %", 100 * share);
}

}  // namespace

std::int64_t ctc_least_frames(std::span<const std::int32_t> labels) {
  auto frames = static_cast<std::int64_t>(labels.size());
  for (std::size_t i = 1; i < labels.size(); ++i) frames += labels[i] == labels[i - 1];
  return frames;
}

std::int64_t subsampled_frames(std::int64_t feature_frames, std::int64_t subsampling, bool causal) {
  for (std::int64_t factor = kCtcSubsamplings[index_of(subsampling)]; factor > 1; factor /= 2)
    feature_frames =
        causal && feature_frames > 0 ? feature_frames / 2 + 1 : (feature_frames + 1) / 2;
  return feature_frames;
}

std::int64_t CtcFeasibility::cure(std::int64_t subsampling) const {
  for (std::size_t i = index_of(subsampling); i-- > 0;)
    if (impossible[i] == 0) return kCtcSubsamplings[i];
  return 0;
}

CtcFeasibility& CtcFeasibility::operator+=(const CtcFeasibility& other) {
  utterances += other.utterances;
  for (std::size_t i = 0; i < impossible.size(); ++i) impossible[i] += other.impossible[i];
  return *this;
}

CtcFeasibility ctc_feasibility(std::span<const CtcUtterance> utterances,
                               const ops::MelOptions& features, bool causal) {
  CtcFeasibility found;
  for (const CtcUtterance& u : utterances) {
    ++found.utterances;
    const std::int64_t frames = ops::mel_frames(features, u.samples);
    for (std::size_t i = 0; i < kCtcSubsamplings.size(); ++i)
      if (subsampled_frames(frames, kCtcSubsamplings[i], causal) < u.least_frames)
        ++found.impossible[i];
  }
  return found;
}

std::string ctc_warning(const CtcFeasibility& found, std::int64_t subsampling,
                        const std::string& unit, double frames_per_second) {
  const std::size_t at = index_of(subsampling);
  if (found.impossible[at] == 0) return {};
  std::string text = fmt::format(
      "CTC is impossible for {} of {} utterances ({}): at subsampling {} there are {:g} frames a "
      "second, fewer than their labels ({}) need.",
      found.impossible[at], found.utterances, percent(found.share(at)), subsampling,
      frames_per_second / static_cast<double>(subsampling), unit);
  for (std::size_t i = at; i-- > 0;)
    text += fmt::format(" At {}: {}.", kCtcSubsamplings[i], percent(found.share(i)));
  const std::int64_t cure = found.cure(subsampling);
  if (cure > 0)
    return text + fmt::format(" Cure: subsampling {}, or a tokenizer of longer units.", cure);
  return text +
         " No subsampling cures all: take a tokenizer of longer units (bpe, unigram) or check their"
         " texts.";
}

}  // namespace choir
