#include <algorithm>
#include <cmath>

#include "choir/train/speech/transcriber.hpp"

namespace choir {

TranscriptMaker::TranscriptMaker(const TextUnits& units, double seconds_per_frame,
                                 std::int64_t beam)
    : seconds_per_frame_(seconds_per_frame), beam_(beam) {
  for (std::int32_t id = 0; id < units.vocab_size(); ++id) pieces_.push_back(units.piece(id));
}

void TranscriptMaker::add(Frames& frames, std::span<const float> logits,
                          std::int64_t symbols) const {
  const auto width = static_cast<std::size_t>(symbols);
  for (std::size_t at = 0; at < logits.size(); at += width) {
    const auto row = logits.subspan(at, width);
    const auto most = std::max_element(row.begin(), row.end());
    double sum = 0;
    for (const float x : row) sum += std::exp(static_cast<double>(x) - *most);
    if (!std::isfinite(sum))
      throw NumericError("the model's scores are not finite",
                         "the checkpoint is damaged, or its precision too narrow; try "
                         "--precision fp32");
    if (beam_ == 0) {
      frames.best.push_back(static_cast<std::int32_t>(most - row.begin()));
      continue;
    }
    const double normaliser = *most + std::log(sum);
    for (const float x : row)
      frames.log_probabilities.push_back(static_cast<float>(x - normaliser));
  }
}

void TranscriptMaker::finish(const Frames& frames, Transcript& transcript) const {
  std::vector<TimedLabel> labels;
  if (beam_ == 0)
    labels = ctc_collapse(frames.best, blank());
  else if (!frames.log_probabilities.empty())
    labels = ctc_beam_search(frames.log_probabilities, blank() + 1, {.beam = beam_}).front().labels;
  finish(labels, transcript);
}

void TranscriptMaker::finish(std::span<const TimedLabel> labels, Transcript& transcript) const {
  for (const TimedWord& word : timed_words(labels, pieces_)) {
    transcript.text += (transcript.text.empty() ? "" : " ") + word.text;
    transcript.words.push_back(
        {.text = word.text,
         .start = static_cast<double>(word.first) * seconds_per_frame_,
         .end = std::min(transcript.seconds,
                         static_cast<double>(word.last + 1) * seconds_per_frame_)});
  }
}

}  // namespace choir
