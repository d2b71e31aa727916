#include "src/data/audio/synthesis.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "choir/core/error.hpp"
#include "choir/core/philox.hpp"
#include "kernels/features/spectra.hpp"

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

// Inversion of a mel filter bank: powers of bins with given mel bands, a spectrum that the filters
// cannot distinguish from the true one.

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

// Phases for magnitudes of overlapping frames, block by block. The frames of a block start with
// random phases, are iterated together until they are consistent with each other and with the sound
// before them, and are then fixed, except for the last ones, which wait for the next block.

class PhaseRetrieval {
 public:
  explicit PhaseRetrieval(const VocoderOptions& options);

  std::int64_t bins() const { return transform_.bins(); }
  /// Samples of the window before the first sample of its frame.
  std::int64_t lead() const { return lead_; }
  /// Local. Takes magnitudes [n, bins], n at most `block`, and appends the final samples in [-1,
  /// 1); with `last` all samples, and a new stream begins.
  void advance(std::span<const float> magnitudes, bool last, std::vector<float>& to);

 private:
  void begin_frames(std::span<const float> magnitudes);
  void weigh();
  void overlap_add();
  void iterate();
  void fix(std::int64_t frames, std::vector<float>& to);
  /// Samples covered by the moving frames, from the first sample of the first window.
  std::int64_t reach() const { return (moving_ - 1) * hop_ + window_size_; }

  ops::RealTransform<float> transform_;
  std::vector<float> window_;
  std::int64_t hop_, window_size_, lead_, look_ahead_;
  int iterations_;
  float momentum_;
  PhiloxKey key_;

  std::int64_t first_ = 0, moving_ = 0;  ///< first moving frame, number of moving frames
  std::int64_t given_ = 0;               ///< samples returned so far
  std::vector<float> magnitudes_;        ///< [moving, bins]
  std::vector<float> spectra_, before_;  ///< [moving, bins, 2]: now, and as rebuilt before
  std::vector<float> frames_;            ///< [moving, fft]
  std::vector<float> sound_, scale_;     ///< [reach]: the sound, and 1 / the sum of squared windows
  std::vector<float> fixed_, fixed_weight_;  ///< [window - hop]: contribution of fixed frames
};

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

namespace {

void check_vocoder(const VocoderOptions& o) {
  const auto refuse = [](bool good, const char* what, auto value, const char* hint) {
    if (!good) throw DeckError(fmt::format("vocoder: {} = {}", what, value), hint);
  };
  ops::check(o.mel);
  refuse(o.mel.preemphasis == 0, "preemphasis of the features", o.mel.preemphasis,
         "features that become sound again have none");
  refuse(o.centre >= 0 && o.centre <= o.mel.hop, "centre", o.centre, "0 ... hop samples");
  refuse(o.updates >= 0 && o.updates <= 1000, "updates", o.updates, "0 ... 1000; 15 is usual");
  refuse(o.iterations >= 1 && o.iterations <= 1000, "iterations", o.iterations,
         "1 ... 1000; 8 is usual");
  refuse(o.momentum >= 0 && o.momentum <= 1, "momentum", o.momentum, "0 ... 1; 0.99 is usual");
  refuse(o.block >= 1 && o.block <= 100000, "block", o.block, "1 ... 100,000 rows");
  refuse(o.look_ahead >= 0 && o.look_ahead <= 1000, "look_ahead", o.look_ahead, "0 ... 1000 rows");
}

}  // namespace

struct Vocoder::State {
  explicit State(const VocoderOptions& o) : options(o), inversion(o.mel, o.updates), phases(o) {
    waiting.reserve(static_cast<std::size_t>(o.block * o.mel.mels));
    magnitudes.resize(static_cast<std::size_t>(o.block * phases.bins()));
  }

  /// Processes all waiting rows, at most a block.
  void advance(bool last) {
    const auto mels = static_cast<std::size_t>(options.mel.mels);
    const auto bins = static_cast<std::size_t>(phases.bins());
    const std::size_t rows = waiting.size() / mels;
    for (std::size_t i = 0; i < rows; ++i)
      inversion.magnitudes(std::span(waiting).subspan(i * mels, mels),
                           std::span(magnitudes).subspan(i * bins, bins));
    waiting.clear();
    phases.advance(std::span(magnitudes).first(rows * bins), last, sound);
  }

  std::vector<std::int16_t> take() {
    std::vector<std::int16_t> samples = pcm_of(sound);
    sound.clear();
    return samples;
  }

  VocoderOptions options;
  MelInversion inversion;
  PhaseRetrieval phases;
  std::vector<float> waiting, magnitudes, sound;
};

Vocoder::Vocoder(const VocoderOptions& options) {
  check_vocoder(options);
  state_ = std::make_unique<State>(options);
}
Vocoder::~Vocoder() = default;
Vocoder::Vocoder(Vocoder&&) noexcept = default;

std::int64_t Vocoder::delay() const {
  const VocoderOptions& o = state_->options;
  return o.look_ahead * o.mel.hop + state_->phases.lead();
}

std::vector<std::int16_t> Vocoder::push(std::span<const float> rows) {
  State& s = *state_;
  const auto mels = static_cast<std::size_t>(s.options.mel.mels);
  const std::size_t block = static_cast<std::size_t>(s.options.block) * mels;
  CHOIR_CHECK(rows.size() % mels == 0, "{} numbers are no rows of {} mels", rows.size(), mels);
  while (!rows.empty()) {
    const std::size_t here = std::min(rows.size(), block - s.waiting.size());
    s.waiting.insert(s.waiting.end(), rows.begin(),
                     rows.begin() + static_cast<std::ptrdiff_t>(here));
    rows = rows.subspan(here);
    if (s.waiting.size() == block) s.advance(false);
  }
  return s.take();
}

std::vector<std::int16_t> Vocoder::finish() {
  state_->advance(true);
  return state_->take();
}

std::vector<std::int16_t> vocode(VocoderOptions options, std::span<const float> rows) {
  options.look_ahead = kLookAheadOfRecordings;
  Vocoder vocoder(options);
  std::vector<std::int16_t> sound = vocoder.push(rows);
  const std::vector<std::int16_t> rest = vocoder.finish();
  sound.insert(sound.end(), rest.begin(), rest.end());
  return sound;
}

}  // namespace choir
