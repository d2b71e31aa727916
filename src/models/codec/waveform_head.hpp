#pragma once
// The head of a codec that produces sound itself (model.head = "istft"): rows of the decoder are
// log-magnitudes and phases of short spectra, whose inverse transforms overlap to a waveform, which
// training compares with the recording. After Vocos (Siuzdak 2023, arXiv 2306.00814), without its
// adversaries.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "choir/models/batch.hpp"
#include "choir/nn/pass.hpp"
#include "kernels/waveform/waveform.hpp"
#include "src/models/codec/codec_config.hpp"

namespace choir {

/// A row of features has a spectrum of `fft` points around its middle, with the window sin^2. The
/// inverse uses the dual window, so that the two windows together add up to one. Transforms are
/// matrix products, which also give their gradients. All of it is in f32 (f64 for f64) and whole on
/// every rank, like the loss of features.
class WaveformHead {
 public:
  explicit WaveformHead(const CodecConfig& config);

  std::size_t table_bytes(DType real) const;
  /// Computes the tables on the host and waits for their copy; `memory` has table_bytes(real).
  void make_tables(const Stream& stream, DType real, void* memory);

  /// Converts rows of the decoder [N, rows (fft + 2)] to frames [N rows, fft] whose overlapping sum
  /// is the sound (src/data/audio/synthesis.hpp).
  Tensor frames(Pass& pass, const Tensor& rows) const;

  struct Compared {
    Tensor losses;  ///< [3, B*T], in the order of CodecFamily::loss_terms()
    Tensor d_rows;  ///< in training the gradient of the rows, in their type
  };
  /// Compares rows [B*T, rows (fft + 2)] with the audio. The losses of a frame, 0 for padding:
  ///   mel          mean |ln p - ln t| of mel powers, with the windows and filters of the features
  ///   stft         mean |ln m - ln t| of magnitudes, for each resolution
  ///   convergence  |m - t| / |t| over all spectra of the frame, for each resolution
  /// The last two are averaged over the resolutions, whose windows of N points are N/4 apart.
  /// Silence surrounds the frames that are not padding.
  Compared compare(Pass& pass, const Tensor& rows, const ModelBatch& batch) const;

  /// FLOPs of a frame, averaged over forward and backward as training counts them.
  static double flops(const CodecConfig& config);

 private:
  /// A transform in which the loss compares sound.
  struct Look {
    std::int64_t frame = 0, hop = 0, lead = 0, bins = 0;
    std::int64_t bands = 0;  ///< mel powers; 0: the bins themselves
    double guard = 0;
    std::vector<double> window;
    std::int64_t points = 0;
    TensorView basis;    ///< [2 bins, frame]
    TensorView filters;  ///< [bands, bins]
  };
  /// The powers of the spectra of frames; `spectra` receives the spectra unless it is nullptr.
  Tensor powers(Pass& pass, const Look& look, const Tensor& frames, Tensor* spectra) const;
  /// Adds to the losses of one transform, and to d_wave.
  void look_at(Pass& pass, const Look& look, const Tensor& wave, const ModelBatch& batch,
               const Tensor& losses, const Tensor& d_wave) const;
  ops::SpectralLoss loss_of(const Pass& pass, const Look& look, const ModelBatch& batch,
                            const Tensor& losses) const;
  ops::SoundFrames framing(const Pass& pass, std::int64_t hop, std::int64_t lead) const;
  Tensor real_rows(Pass& pass, const Tensor& rows) const;
  Tensor spectra(Pass& pass, const Tensor& polar) const;
  Tensor synthesise(Pass& pass, const Tensor& spectra, std::int64_t sounds) const;
  /// Calls f(view, numbers in f64) for every table.
  template <class F>
  void for_tables(const F& f);

  CodecConfig config_;
  ops::Polar polar_;
  std::int64_t bins_;
  TensorView synthesis_;     ///< [2 bins, fft]
  std::vector<Look> looks_;  ///< that of the features, then one per resolution
};

}  // namespace choir
