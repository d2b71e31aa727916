#include "choir/models/duplex/user_ear.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "choir/comm/agreement.hpp"
#include "choir/core/error.hpp"
#include "choir/core/text.hpp"
#include "src/infer/host_scores.hpp"
#include "src/models/duplex/recogniser_run.hpp"

namespace choir {

UserEar::UserEar(const std::string& recogniser, const std::string& key, int sample_rate,
                 Communicator& world)
    : run_(recogniser, world) {
  StreamPlan plan;
  together(world, [&] {
    units_.emplace(units_of_recogniser(run_, key, sample_rate));
    const auto& config = run_.options().model.as<FastConformerConfig>();
    if (const auto against = keys_against_streaming(config); !against.empty())
      throw DeckError(
          fmt::format("{}: {} cannot stream: {}", key, run_.path(), join(against, ", ")),
          "use a recogniser that processes audio in chunks, for example one trained with "
          "inputs/asr_streaming.json");
    maker_.emplace(*units_, config.seconds_per_frame(), 0);
    labels_.emplace(maker_->blank());
    plan = plan_stream(run_.options(), Layout(), 0, HUGE_VAL, nullptr);
  });
  ModelInstance& instance = run_.load(plan.arena_bytes, world);
  instance.arena().set_requests(plan.requests);
  together(world, [&] {
    stream_.emplace(instance);
    stream_->begin();
  });
}

std::string UserEar::hear(std::span<const std::int16_t> audio) {
  std::string words;
  while (!audio.empty()) {
    const auto part = std::min(audio.size(), static_cast<std::size_t>(stream_->room()));
    stream_->push(audio.first(part));
    audio = audio.subspan(part);
    words += hear_chunks();
  }
  return words;
}

std::string UserEar::end() {
  stream_->end();
  return hear_chunks() + characters_.finish();
}

std::string UserEar::hear_chunks() {
  while (stream_->ready()) {
    const Tensor logits = stream_->next();
    scores_.resize(static_cast<std::size_t>(logits.count()));
    to_floats(logits, scores_);
    frames_.best.clear();
    maker_->add(frames_, scores_, maker_->blank() + 1);
    for (const std::int32_t symbol : frames_.best) labels_->frame(symbol);
  }
  std::string words;
  for (const auto& labels = labels_->labels(); told_ < labels.size(); ++told_)
    words += characters_.push(units_->piece(labels[told_].label));
  return words;
}

}  // namespace choir
