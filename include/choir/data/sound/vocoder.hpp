#pragma once
// Log-mel rows to a waveform that can be heard: powers of bins from those of bands, and phases that
// fit them by fast Griffin-Lim (Perraudin, Balazs, Sondergaard 2013). No model, nothing learned.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "choir/ops/log_mel.hpp"

namespace choir {

/// Per second of sound at hop 160: 100 rows, each with 15 updates of 2 k FLOP and 2 iterations + 1
/// transforms of `fft` points on (block + look_ahead) / block as many rows: 2,550 with what stands
/// here, 8,500 for a recording (see vocode()). A look-ahead of 0, 4, 8, 32 rows gives speech whose
/// rows are true a STOI of 0.959, 0.966, 0.971, 0.975; all frames of a recording at once, 0.962.
struct VocoderOptions {
  ops::MelOptions mel;  ///< of the rows; their preemphasis must be 0, dither does not matter
  /// Row t is the spectrum around sample t hop + centre, 0 ... hop.
  std::int64_t centre = 0;
  int updates = 15;  ///< of the powers, see src/data/sound/mel_inversion.hpp
  int iterations = 8;
  double momentum = 0.99;
  /// Rows that are worked on together: their phases are found, then fixed. 8 is a frame of 80 ms.
  std::int64_t block = 8;
  /// Rows behind a block that are seen before its phases are fixed.
  std::int64_t look_ahead = 4;
  std::uint64_t seed = 0;  ///< of the phases that it begins with
};

/// A stream of rows. What comes out depends on all the rows that came in, never on how they were
/// cut; the memory is that of a block, whatever the length. Not thread safe.
class Vocoder {
 public:
  /// Throws DeckError: options that are none, rows with preemphasis.
  explicit Vocoder(const VocoderOptions& options);
  ~Vocoder();
  Vocoder(Vocoder&&) noexcept;

  /// So many samples behind the end of the rows pushed (whole blocks of them) does the sound end
  /// that came out: look_ahead rows and half a window less `centre`.
  std::int64_t delay() const;
  /// Local. rows [n, mels]; 16-bit samples that are finished, hop for each row but for the delay.
  std::vector<std::int16_t> push(std::span<const float> rows);
  /// Local. The rest, so that all rows have hop samples each; a new stream begins.
  std::vector<std::int16_t> finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Rows of look-ahead where nobody waits.
inline constexpr std::int64_t kLookAheadOfRecordings = 32;
/// Local. All rows [T, mels] of a recording with that look-ahead: T hop samples.
std::vector<std::int16_t> vocode(VocoderOptions options, std::span<const float> rows);

}  // namespace choir
