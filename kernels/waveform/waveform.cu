// Spectra and sound. A thread has a sample of a frame, a joined sample or a bin, and neighbouring
// threads access neighbouring memory. A block has a row of the loss and reads it twice, the second
// time from the cache. Formulas and floors are in kernels/waveform/waveform.hpp.

#include "kernels/waveform/waveform.hpp"

#include "kernels/cuda/access.cuh"
#include "kernels/cuda/collective.cuh"
#include "kernels/features/dither.hpp"

namespace choir::cuda {

__device__ inline float sound_value(float sample) {
  return sample;
}
__device__ inline float sound_value(std::int16_t sample) {
  return static_cast<float>(sample) * 0x1p-15f;
}

template <class Sample>
__global__ void __launch_bounds__(kElementwiseThreads)
    split_frames_kernel(std::int64_t n, FramesOf of, const Sample* sound, float* frames) {
  follow_earlier();
  for (std::int64_t i = global_thread(); i < n; i += global_threads()) {
    const std::int64_t row = i / of.frame, b = row / of.rows, r = row % of.rows;
    const std::int64_t count = of.lengths[b] * of.unit;
    const std::int64_t s = r * of.hop - of.lead + i % of.frame;
    bool counts = s >= 0 && s < count && r * of.hop < count;
    if (of.audio_lengths != nullptr) counts = counts && s < of.audio_lengths[b];
    frames[i] = counts ? sound_value(sound[b * of.width + s]) : 0.0f;
  }
}

__global__ void __launch_bounds__(kElementwiseThreads)
    join_frames_kernel(std::int64_t n, FramesOf of, const float* frames, float* sound,
                       bool accumulate) {
  follow_earlier();
  for (std::int64_t i = global_thread(); i < n; i += global_threads()) {
    const std::int64_t b = i / of.width, s = i % of.width;
    const std::int64_t rows = of.lengths[b] * of.unit / of.hop;
    float sum = accumulate ? sound[i] : 0.0f;
    if (s < rows * of.hop) {
      // Begins at the first frame that reaches sample s and adds all frames that begin before it.
      const std::int64_t over = s + of.lead - of.frame;
      for (std::int64_t r = over < 0 ? 0 : over / of.hop + 1; r < rows; ++r) {
        const std::int64_t at = s - r * of.hop + of.lead;
        if (at < 0) break;
        sum += frames[(b * of.rows + r) * of.frame + at];
      }
    }
    sound[i] = sum;
  }
}

struct PolarNumbers {
  float gain, offset, most;
};

struct Direction {
  float cosine, sine;
};
/// Cosine and sine of an angle in radians. The error is that of rounding the angle to turns, |p|
/// 2^-23, plus 2^-22. The library functions also handle huge angles, which requires a stack.
__device__ inline Direction direction_of(float p) {
  const float turns = p * 0.159154943f, t = turns - rintf(turns);  // -1/2 ... 1/2
  const float a = fabsf(t), folded = a > 0.25f ? 0.5f - a : a;
  return {sine_of_turns(0.25f - a), copysignf(sine_of_turns(folded), t)};
}

__global__ void __launch_bounds__(kElementwiseThreads)
    polar_forward_kernel(std::int64_t n, std::int64_t bins, PolarNumbers how, const float* polar,
                         float* spectra) {
  follow_earlier();
  for (std::int64_t i = global_thread(); i < n; i += global_threads()) {
    const std::int64_t re = i / bins * 2 * bins + i % bins, im = re + bins;
    const float free = expf(how.gain * polar[re] + how.offset);
    const float magnitude = free > how.most ? how.most : free;  // NaN is preserved
    const Direction at = direction_of(polar[im]);
    spectra[re] = magnitude * at.cosine;
    spectra[im] = magnitude * at.sine;
  }
}

__global__ void __launch_bounds__(kElementwiseThreads)
    polar_backward_kernel(std::int64_t n, std::int64_t bins, PolarNumbers how, const float* polar,
                          const float* d_spectra, float* d_polar) {
  follow_earlier();
  for (std::int64_t i = global_thread(); i < n; i += global_threads()) {
    const std::int64_t re = i / bins * 2 * bins + i % bins, im = re + bins;
    const float free = expf(how.gain * polar[re] + how.offset);
    const float magnitude = free > how.most ? how.most : free;
    const Direction at = direction_of(polar[im]);
    const float d_re = d_spectra[re], d_im = d_spectra[im];
    d_polar[re] =
        free < how.most ? how.gain * magnitude * (d_re * at.cosine + d_im * at.sine) : 0.0f;
    d_polar[im] = magnitude * (d_im * at.cosine - d_re * at.sine);
  }
}

__global__ void __launch_bounds__(kElementwiseThreads)
    power_forward_kernel(std::int64_t n, std::int64_t bins, const float* spectra, float* powers) {
  follow_earlier();
  for (std::int64_t i = global_thread(); i < n; i += global_threads()) {
    const std::int64_t re = i / bins * 2 * bins + i % bins;
    powers[i] = spectra[re] * spectra[re] + spectra[re + bins] * spectra[re + bins];
  }
}

__global__ void __launch_bounds__(kElementwiseThreads)
    power_backward_kernel(std::int64_t n, std::int64_t bins, const float* spectra,
                          const float* d_powers, float* d_spectra) {
  follow_earlier();
  for (std::int64_t i = global_thread(); i < n; i += global_threads()) {
    const std::int64_t re = i / bins * 2 * bins + i % bins;
    const float twice = 2.0f * d_powers[i];
    d_spectra[re] = twice * spectra[re];
    d_spectra[re + bins] = twice * spectra[re + bins];
  }
}

struct SpectralTermNumbers {
  float* losses;  ///< may be nullptr
  float factor;
  double step;                 ///< factor times scale
  const double* device_scale;  ///< may be nullptr
};

struct SpectralNumbers {
  float* predicted;
  const float* target;
  const std::int32_t* lengths;  ///< may be nullptr
  std::int64_t tokens, width;
  float guard;
  SpectralTermNumbers logarithms, convergence;
  bool write_gradient;
};

constexpr int kSpectralThreads = 256;

__device__ inline float step_of(const SpectralTermNumbers& term) {
  if (term.losses == nullptr) return 0.0f;
  return static_cast<float>(term.device_scale == nullptr ? term.step
                                                         : term.step * *term.device_scale);
}

__global__ void __launch_bounds__(kSpectralThreads) spectral_loss_kernel(SpectralNumbers a) {
  follow_earlier();
  CHOIR_SHARED_ARRAY(float, scratch, kSpectralThreads / kWarp);
  const std::int64_t row = blockIdx.x;
  float* predicted = a.predicted + row * a.width;
  const float* target = a.target + row * a.width;
  const int me = static_cast<int>(threadIdx.x);
  if (a.lengths != nullptr && row % a.tokens >= a.lengths[row / a.tokens]) {
    for (std::int64_t c = me; a.write_gradient && c < a.width; c += kSpectralThreads)
      predicted[c] = 0.0f;
    return;
  }
  float logarithms = 0, square = 0, length = 0;
  for (std::int64_t c = me; c < a.width; c += kSpectralThreads) {
    const float p = predicted[c] + a.guard, t = target[c] + a.guard;
    const float difference = sqrtf(p) - sqrtf(t);
    logarithms += fabsf(logf(p) - logf(t));
    square += difference * difference;
    length += t;
  }
  logarithms = block_reduce<Sum, kSpectralThreads>(logarithms, scratch);
  const float distance = sqrtf(block_reduce<Sum, kSpectralThreads>(square, scratch));
  const float reference = sqrtf(block_reduce<Sum, kSpectralThreads>(length, scratch));
  if (me == 0 && a.logarithms.losses != nullptr)
    a.logarithms.losses[row] += a.logarithms.factor * logarithms;
  if (me == 0 && a.convergence.losses != nullptr)
    a.convergence.losses[row] += a.convergence.factor * (distance / reference);
  if (!a.write_gradient) return;
  const float of_log = step_of(a.logarithms);
  const float of_root =
      distance > 0.0f ? step_of(a.convergence) / (2.0f * distance * reference) : 0.0f;
  for (std::int64_t c = me; c < a.width; c += kSpectralThreads) {
    const float p = predicted[c] + a.guard, t = target[c] + a.guard;
    const float sign = p > t ? of_log : p < t ? -of_log : 0.0f;
    predicted[c] = sign / p + of_root * (1.0f - sqrtf(t / p));
  }
}

namespace {

/// Launches one thread for each of n items.
template <class Kernel, class... A>
void launch_flat(const Stream& stream, const char* name, Kernel kernel, std::int64_t n, A... a) {
  launch(stream, name, kernel, {elementwise_blocks(n), kElementwiseThreads}, n, a...);
}

PolarNumbers numbers_of(const ops::Polar& how) {
  return {static_cast<float>(how.gain), static_cast<float>(how.offset),
          static_cast<float>(how.most)};
}

SpectralTermNumbers numbers_of(const ops::SpectralTerm& term) {
  return {term.losses.empty() ? nullptr : term.losses.as<float>(), static_cast<float>(term.factor),
          term.factor * term.scale, term.device_scale};
}

}  // namespace

void split_frames(const Stream& stream, const FramesOf& of, const float* sound, float* frames) {
  launch_flat(stream, "split_frames", split_frames_kernel<float>, of.sounds * of.rows * of.frame,
              of, sound, frames);
}

void split_pcm(const Stream& stream, const FramesOf& of, const std::int16_t* pcm, float* frames) {
  launch_flat(stream, "split_pcm", split_frames_kernel<std::int16_t>,
              of.sounds * of.rows * of.frame, of, pcm, frames);
}

void join_frames(const Stream& stream, const FramesOf& of, const float* frames, float* sound,
                 bool accumulate) {
  launch_flat(stream, "join_frames", join_frames_kernel, of.sounds * of.width, of, frames, sound,
              accumulate);
}

void polar_forward(const Stream& stream, const ops::Polar& how, std::int64_t rows,
                   std::int64_t bins, const float* polar, float* spectra) {
  launch_flat(stream, "polar_forward", polar_forward_kernel, rows * bins, bins, numbers_of(how),
              polar, spectra);
}

void polar_backward(const Stream& stream, const ops::Polar& how, std::int64_t rows,
                    std::int64_t bins, const float* polar, const float* d_spectra, float* d_polar) {
  launch_flat(stream, "polar_backward", polar_backward_kernel, rows * bins, bins, numbers_of(how),
              polar, d_spectra, d_polar);
}

void power_forward(const Stream& stream, std::int64_t rows, std::int64_t bins, const float* spectra,
                   float* powers) {
  launch_flat(stream, "power_forward", power_forward_kernel, rows * bins, bins, spectra, powers);
}

void power_backward(const Stream& stream, std::int64_t rows, std::int64_t bins,
                    const float* spectra, const float* d_powers, float* d_spectra) {
  launch_flat(stream, "power_backward", power_backward_kernel, rows * bins, bins, spectra, d_powers,
              d_spectra);
}

void spectral_loss(const Stream& stream, const ops::SpectralLoss& args) {
  const std::int64_t rows = args.predicted.shape.rows();
  CHOIR_CHECK(rows <= kMostItems, "{} rows of a loss in one call", rows);
  launch(stream, "spectral_loss", spectral_loss_kernel,
         {dim3(static_cast<unsigned>(rows)), dim3(kSpectralThreads)},
         SpectralNumbers{args.predicted.as<float>(), args.target.as<float>(), args.lengths,
                         args.tokens, args.predicted.shape.back(), static_cast<float>(args.guard),
                         numbers_of(args.logarithms), numbers_of(args.convergence),
                         args.write_gradient});
}

}  // namespace choir::cuda
