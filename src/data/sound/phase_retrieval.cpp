#include "src/data/sound/phase_retrieval.hpp"

#include <algorithm>
#include <cmath>

namespace choir {
namespace {

constexpr float kQuietest = 1e-20f;  // smallest magnitude that has a phase

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

}  // namespace

PhaseRetrieval::PhaseRetrieval(const VocoderOptions& options)
    : transform_(options.mel.fft),
      hop_(options.mel.hop),
      window_size_(options.mel.window),
      lead_(ops::mel_window_lead(options.mel) - options.centre),
      look_ahead_(options.look_ahead),
      iterations_(options.iterations),
      momentum_(static_cast<float>(options.momentum / (1 + options.momentum))),
      key_(philox_key(options.seed, "vocoder phases")) {
  for (const double w : ops::mel_window(options.mel)) window_.push_back(static_cast<float>(w));
  fixed_.resize(at(std::max<std::int64_t>(window_size_ - hop_, 0)));
  fixed_weight_ = fixed_;
  const std::int64_t most = options.block + look_ahead_;
  magnitudes_.reserve(at(most * bins()));
  for (auto* spectra : {&spectra_, &before_}) spectra->reserve(at(most * 2 * bins()));
  frames_.reserve(at(most * transform_.points()));
  for (auto* samples : {&sound_, &scale_}) samples->reserve(at(most * hop_ + window_size_));
}

void PhaseRetrieval::advance(std::span<const float> magnitudes, bool last, std::vector<float>& to) {
  begin_frames(magnitudes);
  if (moving_ > 0) {
    weigh();
    for (int i = 0; i < iterations_; ++i) iterate();
    overlap_add();
    fix(last ? moving_ : std::max<std::int64_t>(moving_ - look_ahead_, 0), to);
  }
  if (!last) return;
  std::fill(fixed_.begin(), fixed_.end(), 0.0f);
  std::fill(fixed_weight_.begin(), fixed_weight_.end(), 0.0f);
  first_ = moving_ = given_ = 0;
}

void PhaseRetrieval::begin_frames(std::span<const float> magnitudes) {
  const std::int64_t more = std::ssize(magnitudes) / bins();
  magnitudes_.insert(magnitudes_.end(), magnitudes.begin(), magnitudes.end());
  for (std::int64_t t = first_ + moving_; t < first_ + moving_ + more; ++t)
    for (std::int64_t k = 0; k < bins(); k += 4) {
      const PhiloxBlock words =
          philox_at(key_, static_cast<std::uint64_t>(k / 4), static_cast<std::uint64_t>(t));
      for (std::int64_t i = k; i < std::min(k + 4, bins()); ++i) {
        const float turns = 6.2831853f * static_cast<float>(uniform01(words[at(i - k)]));
        const float magnitude = magnitudes_[at((t - first_) * bins() + i)];
        spectra_.push_back(magnitude * std::cos(turns));
        spectra_.push_back(magnitude * std::sin(turns));
      }
    }
  moving_ += more;
  before_.resize(spectra_.size(), 0.0f);
  frames_.resize(at(moving_ * transform_.points()), 0.0f);
}

/// Computes the weights of samples. The sound before the recording and, as far as is known, after
/// its last row is zero.
void PhaseRetrieval::weigh() {
  std::vector<float>& weight = scale_;
  weight.assign(at(reach()), 0.0f);
  std::copy_n(fixed_weight_.begin(), std::min(fixed_weight_.size(), weight.size()), weight.begin());
  for (std::int64_t i = 0; i < moving_; ++i)
    for (std::int64_t n = 0; n < window_size_; ++n)
      weight[at(i * hop_ + n)] += window_[at(n)] * window_[at(n)];
  const std::int64_t start = first_ * hop_ - lead_, end = (first_ + moving_) * hop_;
  for (std::int64_t n = 0; n < reach(); ++n)
    weight[at(n)] =
        start + n >= 0 && start + n < end && weight[at(n)] > 1e-8f ? 1 / weight[at(n)] : 0.0f;
}

void PhaseRetrieval::overlap_add() {
  transform_.inverse(moving_, spectra_.data(), frames_.data());
  sound_.assign(at(reach()), 0.0f);
  std::copy_n(fixed_.begin(), std::min(fixed_.size(), sound_.size()), sound_.begin());
  for (std::int64_t i = 0; i < moving_; ++i) {
    const float* frame = frames_.data() + i * transform_.points();
    float* to = sound_.data() + i * hop_;
    for (std::int64_t n = 0; n < window_size_; ++n) to[n] += window_[at(n)] * frame[n];
  }
  for (std::int64_t n = 0; n < reach(); ++n) sound_[at(n)] *= scale_[at(n)];
}

/// Computes the spectra of the overlapped sound, extrapolates them by the momentum, and restores
/// the given magnitudes.
void PhaseRetrieval::iterate() {
  overlap_add();
  for (std::int64_t i = 0; i < moving_; ++i) {
    float* frame = frames_.data() + i * transform_.points();
    const float* from = sound_.data() + i * hop_;
    for (std::int64_t n = 0; n < window_size_; ++n) frame[n] = window_[at(n)] * from[n];
    std::fill(frame + window_size_, frame + transform_.points(), 0.0f);
  }
  transform_.forward(moving_, frames_.data(), spectra_.data());
  for (std::size_t i = 0; i < magnitudes_.size(); ++i) {
    float *now = spectra_.data() + 2 * i, *before = before_.data() + 2 * i;
    const float re = now[0] - momentum_ * before[0], im = now[1] - momentum_ * before[1];
    before[0] = now[0], before[1] = now[1];
    const float scale = magnitudes_[i] / (std::sqrt(re * re + im * im) + kQuietest);
    now[0] = re * scale, now[1] = im * scale;
  }
}

/// Fixes the first `frames` of the moving frames and appends the samples that no other frame
/// reaches.
void PhaseRetrieval::fix(std::int64_t frames, std::vector<float>& to) {
  const std::int64_t start = first_ * hop_ - lead_;  // first sample of sound_
  const bool all = frames == moving_;
  const std::int64_t end = (first_ + frames) * hop_ - (all ? 0 : lead_);
  for (; given_ < end; ++given_)
    to.push_back(given_ - start < reach() ? sound_[at(given_ - start)] : 0.0f);
  std::vector<float> sum(fixed_), weight(fixed_weight_);
  const auto next = static_cast<std::size_t>(frames * hop_);
  sum.resize(std::max(sum.size(), next + fixed_.size())), weight.resize(sum.size());
  for (std::int64_t i = 0; i < frames; ++i)
    for (std::int64_t n = 0; n < window_size_; ++n) {
      const float w = window_[at(n)];
      sum[at(i * hop_ + n)] += w * frames_[at(i * transform_.points() + n)];
      weight[at(i * hop_ + n)] += w * w;
    }
  std::copy_n(sum.begin() + frames * hop_, fixed_.size(), fixed_.begin());
  std::copy_n(weight.begin() + frames * hop_, fixed_.size(), fixed_weight_.begin());
  magnitudes_.erase(magnitudes_.begin(), magnitudes_.begin() + frames * bins());
  for (auto* spectra : {&spectra_, &before_})
    spectra->erase(spectra->begin(), spectra->begin() + frames * 2 * bins());
  first_ += frames, moving_ -= frames;
}

}  // namespace choir
