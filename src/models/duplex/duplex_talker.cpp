#include "choir/models/duplex/duplex_talker.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "choir/device/arena.hpp"
#include "choir/device/null_device.hpp"
#include "src/infer/host_scores.hpp"
#include "src/models/duplex/duplex.hpp"

namespace choir {

DuplexTalker::DuplexTalker(ModelInstance& instance, const DialogueControls& controls)
    : instance_(instance),
      controls_(controls),
      hearing_(instance),
      said_(instance.model().make_state(instance.pass(), instance.hooks(), 1)) {
  begin();
}

std::int64_t DuplexTalker::most_frames() const {
  return instance_.as<Duplex>().config().lm.block_size;
}

void DuplexTalker::begin() {
  const DuplexConfig& config = instance_.as<Duplex>().config();
  hearing_.begin();
  said_.begin(instance_.stream());
  frame_ = 0;
  text_ = controls_.pad;
  codes_.assign(static_cast<std::size_t>(config.codebooks),
                static_cast<std::int32_t>(config.delay_code()));
  speaking_ = false;
}

std::vector<AgentFrame> DuplexTalker::next() {
  const Tensor rows = hearing_.next();
  const std::int64_t count = rows.shape.rows();
  if (frame_ + count > most_frames())
    throw DeckError(
        fmt::format("the dialogue is longer than the {} frames ({:.1f} s) that the model has "
                    "positions for",
                    most_frames(),
                    static_cast<double>(most_frames()) *
                        instance_.as<Duplex>().config().encoder.seconds_per_frame()),
        "cut the recording, or train with a larger model.lm.block_size");
  // The next pass takes the memory in which these rows stand.
  const bool exists = instance_.device().kind() != DeviceKind::null;
  heard_.resize(rows.bytes());
  if (exists) instance_.device().copy_to_host(heard_.data(), rows.data, rows.bytes());
  const std::size_t bytes = rows.bytes() / static_cast<std::size_t>(count);
  std::vector<AgentFrame> frames;
  for (std::int64_t i = 0; i < count; ++i) {
    AgentFrame& frame = frames.emplace_back();
    frame.frame = frame_;
    frame.text = text_;
    if (text_ == controls_.bos) speaking_ = true;
    if (text_ == controls_.eos) speaking_ = false;
    frame.speaking = speaking_;
    step({heard_.data() + static_cast<std::size_t>(i) * bytes, rows.dtype, {1, rows.shape.back()}});
    frame.codes = codes_;
  }
  return frames;
}

void DuplexTalker::step(const TensorView& heard) {
  static std::int64_t nobody = 0;  // nothing random depends on it
  std::int32_t place = -1;
  ModelBatch batch;
  batch.samples = batch.tokens = 1;
  batch.add({.name = "dialogue_ids", .view = {&nobody, DType::i64, {1}}});
  batch.add({.name = "text", .view = {&text_, DType::i32, {1}}});
  batch.add({.name = "codes", .view = {codes_.data(), DType::i32, {1, std::ssize(codes_)}}});
  batch.add({.name = "frames", .view = {&place, DType::i32, {1}}});
  batch.add({.name = "heard", .view = heard});
  Arena& arena = instance_.arena();
  arena.begin_sequence();
  std::vector<Tensor> there;
  for (BatchField& field : batch.fields()) {
    if (instance_.device().host_visible()) break;
    there.push_back(arena.allocate(field.view.dtype, field.view.shape, "frame of a dialogue"));
    instance_.device().copy_from_host(there.back().data, field.view.data, field.view.bytes());
    field.view = there.back();
  }
  Pass& pass = instance_.pass();
  Sequence sequence = said_.next(1);
  sequence.sample_ids = static_cast<const std::int64_t*>(batch["dialogue_ids"].data);
  pass.begin(Mode::generate, sequence, 0);
  choose(instance_.model().forward(pass, 0, {}, batch, instance_.hooks()));
  said_.advance(1);
  arena.end_sequence();
  ++frame_;
}

void DuplexTalker::choose(const TensorView& logits) {
  Device& device = instance_.device();
  if (device.kind() == DeviceKind::null) return;
  TensorView host = logits;
  std::vector<std::byte> memory;
  if (!device.host_visible()) {
    memory.resize(logits.bytes());
    device.copy_to_host(memory.data(), logits.data, memory.size());
    host.data = memory.data();
  }
  scores_.resize(static_cast<std::size_t>(logits.count()));
  to_floats(host, scores_);
  auto from = scores_.begin();
  const auto best_of = [&](std::int64_t count) {
    const auto best = std::max_element(from, from + count) - from;
    from += count;
    return static_cast<std::int32_t>(best);
  };
  const DuplexConfig& config = instance_.as<Duplex>().config();
  text_ = best_of(config.lm.vocab_size);
  for (std::int32_t& code : codes_) code = best_of(config.code_ids());
}

StreamPlan plan_talk(const ModelInstance::Options& options, const Layout& layout, int rank,
                     double budget, const Device* target) {
  NullDevice device = target ? NullDevice(*target) : NullDevice();
  const auto mesh = Mesh::planned(layout, rank, 1);
  ModelInstance instance(options, device, *mesh, Arena::kUnbounded);
  DuplexTalker talker(instance, {});
  // As much as is ever kept of what was heard, then an end in each place of a chunk.
  const SpeechChunks& chunks = talker.chunks();
  const std::int64_t warm = (chunks.past / chunks.frames + chunks.overlap) * chunks.frames;
  for (const std::int64_t before : {std::int64_t{0}, warm})
    for (std::int64_t frames = chunks.frames; frames > 0; --frames) {
      const std::int64_t all = std::min(before + frames, talker.most_frames());
      std::int64_t left = chunks.samples_of(all);
      talker.begin();
      for (bool more = true; more;) {
        const std::vector<std::int16_t> silence(
            static_cast<std::size_t>(std::min(left, talker.room())));
        talker.push(silence);
        left -= std::ssize(silence);
        if (left == 0) talker.end();
        more = talker.ready();
        if (more) talker.next();
      }
    }
  MemoryPlan memory;
  instance.add_to(memory);
  if (static_cast<double>(memory.total()) > budget)
    throw DeckError(
        fmt::format("out of memory: a dialogue needs {} with the parameters, {} are allowed",
                    format_bytes(static_cast<double>(memory.total())), format_bytes(budget)),
        "raise --memory, or share the model by --tensor");
  return {.arena_bytes = instance.arena().peak(),
          .requests = instance.arena().requests(),
          .total_bytes = memory.total()};
}

}  // namespace choir
