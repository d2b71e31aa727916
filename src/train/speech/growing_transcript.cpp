#include "choir/train/speech/stream_transcriber.hpp"

namespace choir {

GrowingTranscript::GrowingTranscript(const TranscriptMaker& maker)
    : maker_(&maker), best_(maker.blank()) {
  begin();
}

void GrowingTranscript::begin() {
  best_ = CtcCollapse(maker_->blank());
  if (maker_->beam() > 0) beam_.emplace(maker_->blank() + 1, CtcBeamSearch{.beam = maker_->beam()});
}

void GrowingTranscript::add(std::span<const float> logits) {
  const std::int64_t symbols = maker_->blank() + 1;
  frames_.best.clear();
  frames_.log_probabilities.clear();
  maker_->add(frames_, logits, symbols);
  for (const std::int32_t symbol : frames_.best) best_.frame(symbol);
  const std::span<const float> all = frames_.log_probabilities;
  const auto width = static_cast<std::size_t>(symbols);
  for (std::size_t at = 0; at < all.size(); at += width) beam_->frame(all.subspan(at, width));
}

std::vector<TimedLabel> GrowingTranscript::labels() const {
  return beam_ ? beam_->results().front().labels : best_.labels();
}

std::string GrowingTranscript::newest(std::size_t labels) const {
  const std::vector<TimedLabel> found = beam_ ? this->labels() : std::vector<TimedLabel>();
  const std::span<const TimedLabel> all = beam_ ? found : best_.labels();
  Transcript end;
  maker_->finish(all.subspan(all.size() - std::min(all.size(), labels)), end);
  return all.size() > labels ? "... " + end.text : end.text;
}

void GrowingTranscript::finish(Transcript& transcript) const {
  maker_->finish(labels(), transcript);
}

}  // namespace choir
