#include "choir/models/duplex/duplex_talker.hpp"

#include <fmt/core.h>

#include <limits>

#include "choir/device/null_device.hpp"
#include "src/models/duplex/duplex_family.hpp"

namespace choir {

DuplexTalker::DuplexTalker(ModelInstance& instance, const DialogueControls& controls)
    : controls_(controls), stream_(instance) {
  begin();
}

void DuplexTalker::begin() {
  stream_.begin();
  text_ = controls_.pad;
  codes_.assign(static_cast<std::size_t>(config().codebooks),
                static_cast<std::int32_t>(config().delay_code()));
  speaking_ = false;
}

std::optional<std::int64_t> DuplexTalker::most_frames() const {
  if (config().lm.position == Position::rope) return std::nullopt;
  return config().lm.block_size;
}

void DuplexTalker::rehearse_fully() {
  constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
  rehearse(*this, most_frames().value_or(kAny));
  stream_.rehearse();
}

std::vector<AgentFrame> DuplexTalker::next() {
  const Tensor heard = stream_.audio().next();
  const std::int64_t count = heard.shape.rows();
  DuplexRows& rows = stream_.rows();
  if (!rows.has_room(count))
    throw DeckError(
        fmt::format("the dialogue is longer than the {} frames ({:.1f} s) of the model's learned "
                    "positions",
                    *most_frames(),
                    static_cast<double>(*most_frames()) * config().encoder.seconds_per_frame()),
        "cut the recording, or train with model.lm.position = \"rope\", which has no limit");
  std::vector<AgentFrame> frames;
  for (std::int64_t i = 0; i < count; ++i) {
    if (text_ == controls_.bos) speaking_ = true;
    if (text_ == controls_.eos) speaking_ = false;
    AgentFrame& frame = frames.emplace_back();
    frame.frame = rows.seen();
    frame.text = text_;
    frame.speaking = speaking_;
    const Tensor logits = rows.step(heard.slice(i, 1), {&text_, 1}, codes_);
    rows.choose(logits, {&text_, 1}, codes_);
    frame.codes = codes_;
  }
  return frames;
}

void require_talker(const ModelConfig& model, const std::string& source) {
  if (&model.family() == &duplex_family()) return;
  throw DeckError(
      source + " is not a model that talks while it listens",
      "use a checkpoint of model.type = \"duplex\"; `choir generate --audio` answers questions");
}

StreamPlan plan_talk(const ModelInstance::Options& options, const Layout& layout, int rank,
                     double budget, const Device* target) {
  NullDevice device = target ? NullDevice(*target) : NullDevice();
  const auto mesh = Mesh::planned(layout, rank, 1);
  ModelInstance instance(options, device, *mesh, Arena::kUnbounded);
  DuplexTalker talker(instance, {});
  talker.rehearse_fully();
  return measured_plan(instance, budget, "a dialogue");
}

}  // namespace choir
