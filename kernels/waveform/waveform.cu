#include "kernels/waveform/waveform.cuh"

namespace choir::cuda {
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
