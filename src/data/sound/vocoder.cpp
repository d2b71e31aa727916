#include "choir/data/sound/vocoder.hpp"

#include <algorithm>

#include "choir/core/error.hpp"
#include "choir/data/sound/overlap_add.hpp"
#include "src/data/sound/mel_inversion.hpp"
#include "src/data/sound/phase_retrieval.hpp"

namespace choir {
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
