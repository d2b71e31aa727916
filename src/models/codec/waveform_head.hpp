#pragma once
// What makes a codec's sound itself (model.head = "istft"): rows of the decoder are log-magnitudes
// and phases of short spectra, whose inverse transforms overlap to a waveform, and training
// compares this with what was said. After Vocos (Siuzdak 2023, arXiv 2306.00814), without its
// adversaries.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "choir/models/batch.hpp"
#include "choir/nn/pass.hpp"
#include "choir/ops/waveform.hpp"
#include "src/models/codec/codec_config.hpp"

namespace choir {

/// A row of features has a spectrum of `fft` points around its middle, with the window sin^2 and,
/// coming back, what makes windows and windows add up to one. Transforms are products with
/// matrices, which give their gradients, too. All of it is in f32 (f64 for f64), whole on every
/// rank, like the loss of features.
class WaveformHead {
 public:
  explicit WaveformHead(const CodecConfig& config);

  std::size_t table_bytes(DType real) const;
  /// Written on the host, copied and waited for; `memory` has table_bytes(real).
  void make_tables(const Stream& stream, DType real, void* memory);

  /// Rows of the decoder [N, rows (fft + 2)] to frames [N rows, fft] whose overlapping sum is the
  /// sound (choir/data/sound/overlap_add.hpp).
  Tensor frames(Pass& pass, const Tensor& rows) const;

  struct Compared {
    Tensor losses;  ///< [3, B*T], as CodecFamily::loss_terms() has them
    Tensor d_rows;  ///< while training the gradient of the rows, in their type
  };
  /// Rows [B*T, rows (fft + 2)]. Of a frame, 0 where it does not count:
  ///   mel          mean |ln p - ln t| of mel powers, windows and filters of the features
  ///   stft         of each resolution mean |ln m - ln t| of magnitudes
  ///   convergence  of each |m - t| / |t|, over all spectra of the frame
  /// and the means over resolutions of N points N/4 apart. Beside what counts there is silence on
  /// both sides.
  Compared compare(Pass& pass, const Tensor& rows, const ModelBatch& batch) const;

  /// FLOPs of a frame, on average of forward and backward as training counts them.
  static double flops(const CodecConfig& config);

 private:
  /// A transform that sound is looked at with.
  struct Look {
    std::int64_t frame = 0, hop = 0, lead = 0, bins = 0;
    std::int64_t bands = 0;  ///< of mel powers; 0: bins as they are
    double guard = 0;
    std::vector<double> window;
    std::int64_t points = 0;
    TensorView basis;    ///< [2 bins, frame]
    TensorView filters;  ///< [bands, bins]
  };
  /// The powers of its spectra, and with `spectra` these.
  Tensor powers(Pass& pass, const Look& look, const Tensor& frames, Tensor* spectra) const;
  /// Adds to the losses of one look, and to d_wave.
  void look_at(Pass& pass, const Look& look, const Tensor& wave, const ModelBatch& batch,
               const Tensor& losses, const Tensor& d_wave) const;
  ops::SpectralLoss loss_of(const Pass& pass, const Look& look, const ModelBatch& batch,
                            const Tensor& losses) const;
  ops::SoundFrames framing(const Pass& pass, std::int64_t hop, std::int64_t lead) const;
  Tensor real_rows(Pass& pass, const Tensor& rows) const;
  Tensor spectra(Pass& pass, const Tensor& polar) const;
  Tensor synthesise(Pass& pass, const Tensor& spectra, std::int64_t sounds) const;
  /// f(view, numbers in f64) of every table.
  template <class F>
  void for_tables(const F& f);

  CodecConfig config_;
  ops::Polar polar_;
  std::int64_t bins_;
  TensorView synthesis_;     ///< [2 bins, fft]
  std::vector<Look> looks_;  ///< that of the features, then one a resolution
};

}  // namespace choir
