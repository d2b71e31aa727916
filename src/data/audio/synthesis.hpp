#pragma once
// Waveforms from the output of models, as streams: overlap-add of frames whose phases a model has
// learned, and a vocoder for log-mel rows, which estimates powers of bins from those of bands, and
// phases by fast Griffin-Lim (Perraudin, Balazs, Sondergaard 2013). The vocoder has no model and
// nothing is learned.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/features/features.hpp"

namespace choir {

/// Converts a wave in [-1, 1) to 16-bit samples; values beyond are clipped.
std::vector<std::int16_t> pcm_of(std::span<const float> wave);

/// A stream of frames: sample s is the sum over r of frame r at s - r hop + lead, in the order of
/// r, so the result does not depend on how the frames are divided into pushes. Not thread-safe.
class OverlapAdd {
 public:
  /// Throws Error unless 0 <= lead < frame and 1 <= hop <= frame - lead.
  OverlapAdd(std::int64_t frame, std::int64_t hop, std::int64_t lead);

  /// Number of samples by which the output lags behind the end of the pushed frames.
  std::int64_t delay() const { return lead_; }
  /// Local. Adds frames [n, frame] and returns the samples that are final: hop per frame, less the
  /// delay.
  std::vector<std::int16_t> push(std::span<const float> frames);
  /// Local. Returns the remaining samples, so that all frames have hop samples each, and begins a
  /// new stream.
  std::vector<std::int16_t> finish();

 private:
  std::vector<std::int16_t> take(std::int64_t samples);

  std::int64_t frame_, hop_, lead_;
  std::int64_t pushed_ = 0, taken_ = 0;  ///< number of frames, of samples
  std::vector<float> sums_;              ///< sums from sample taken_ on
};

/// Cost per second of sound at hop 160: 100 rows, each with 15 updates of 2 k FLOP and 2 iterations
/// + 1 transforms of `fft` points on (block + look_ahead) / block as many rows, that is 2,550
/// transforms with these defaults and 8,500 for a recording (see vocode()). A look-ahead of 0, 4,
/// 8, 32 rows gives speech with exact rows a STOI of 0.959, 0.966, 0.971, 0.975; processing all
/// frames of a recording at once gives 0.962.
struct VocoderOptions {
  ops::MelOptions mel;  ///< features of the rows; preemphasis must be 0, dither is ignored
  /// Row t is the spectrum around sample t hop + centre, 0 ... hop.
  std::int64_t centre = 0;
  int updates = 15;  ///< updates of the powers; see MelInversion
  int iterations = 8;
  double momentum = 0.99;
  /// Rows that are processed together: their phases are found, then fixed. 8 rows are a frame of 80
  /// ms.
  std::int64_t block = 8;
  /// Rows after a block that are known before its phases are fixed.
  std::int64_t look_ahead = 4;
  std::uint64_t seed = 0;  ///< seed of the initial phases
};

/// A stream of rows. The output depends on all rows pushed, but not on how they are divided into
/// pushes; the memory is that of a block, whatever the length. Not thread-safe.
class Vocoder {
 public:
  /// Throws DeckError for invalid options, and for rows with preemphasis.
  explicit Vocoder(const VocoderOptions& options);
  ~Vocoder();
  Vocoder(Vocoder&&) noexcept;

  /// Number of samples by which the output lags behind the end of the pushed rows (whole blocks):
  /// look_ahead rows and half a window less `centre`.
  std::int64_t delay() const;
  /// Local. Adds rows [n, mels] and returns the 16-bit samples that are final: hop per row, less
  /// the delay.
  std::vector<std::int16_t> push(std::span<const float> rows);
  /// Local. Returns the remaining samples, so that all rows have hop samples each, and begins a new
  /// stream.
  std::vector<std::int16_t> finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Rows of look-ahead for recordings, whose latency does not matter.
inline constexpr std::int64_t kLookAheadOfRecordings = 32;
/// Local. Converts all rows [T, mels] of a recording with that look-ahead to T hop samples.
std::vector<std::int16_t> vocode(VocoderOptions options, std::span<const float> rows);

}  // namespace choir
