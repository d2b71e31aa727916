#include "src/models/duplex/talker.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "src/models/duplex/duplex.hpp"
#include "src/models/duplex/family.hpp"
#include "src/run/inference_pass.hpp"
#include "src/run/null_instance.hpp"

namespace choir {
namespace {

/// The fields of one frame of each dialogue, in memory that the model can read.
class FrameBatch {
 public:
  FrameBatch(ModelInstance& instance, const TensorView& heard, std::span<const std::int32_t> text,
             std::span<const std::int32_t> codes)
      : instance_(instance), text_(text.begin(), text.end()), codes_(codes.begin(), codes.end()) {
    const std::int64_t dialogues = std::ssize(text_);
    for (std::int64_t row = 0; row < dialogues; ++row)
      frames_.push_back(static_cast<std::int32_t>(-1 - row));
    batch.samples = dialogues;
    batch.tokens = 1;
    add(0, "text", text_, {dialogues});
    add(1, "codes", codes_, {dialogues, std::ssize(codes_) / dialogues});
    add(2, "frames", frames_, {dialogues});
    batch.add({.name = "heard", .view = heard.reshaped({dialogues, heard.shape.back()})});
  }
  FrameBatch(const FrameBatch&) = delete;
  FrameBatch& operator=(const FrameBatch&) = delete;

  ModelBatch batch;

 private:
  void add(std::size_t place, std::string_view name, std::vector<std::int32_t>& host,
           const Shape& shape) {
    const TensorView view{host.data(), DType::i32, shape};
    Device& device = instance_.device();
    if (device.host_visible()) {
      batch.add({.name = name, .view = view});
      return;
    }
    there_[place] = instance_.arena().allocate(DType::i32, shape, "frame of a dialogue");
    device.copy_from_host(there_[place].data, view.data, view.bytes());
    batch.add({.name = name, .view = there_[place]});
  }

  ModelInstance& instance_;
  std::vector<std::int32_t> text_, codes_, frames_;
  std::array<Tensor, 3> there_;
};

}  // namespace

DuplexRows::DuplexRows(ModelInstance& instance, std::int64_t dialogues, std::int64_t most)
    : instance_(&instance),
      config_(instance.as<Duplex>().config()),
      most_(most),
      rows_(instance.as<Duplex>().make_state_of(instance.pass(), dialogues, most)) {
  begin();
}

void DuplexRows::begin() {
  rows_.begin(instance_->stream());
}

Tensor DuplexRows::step(const TensorView& heard, std::span<const std::int32_t> text,
                        std::span<const std::int32_t> codes) {
  CHOIR_CHECK(std::ssize(text) == rows_.streams(), "{} tokens of {} dialogues", text.size(),
              rows_.streams());
  CHOIR_CHECK(std::ssize(codes) == config_.codebooks * rows_.streams(),
              "{} codes of {} dialogues with {} codebooks", codes.size(), rows_.streams(),
              config_.codebooks);
  CHOIR_CHECK(has_room(1), "a dialogue of more than {} frames", most_);
  const FrameBatch frame(*instance_, heard, text, codes);
  instance_->pass().begin(Mode::generate, rows_.next(1), 0);
  Tensor logits = instance_->model().forward(instance_->pass(), 0, {}, frame.batch);
  rows_.advance(1);
  return logits;
}

void DuplexRows::rehearse(const TensorView& heard) {
  rows_.pretend((most_ > 0 ? most_ : config_.lm.block_size) - 1);
  const std::vector<std::int32_t> text(static_cast<std::size_t>(rows_.streams()), 0);
  const std::vector<std::int32_t> codes(text.size() * static_cast<std::size_t>(config_.codebooks),
                                        0);
  step(heard, text, codes);
  begin();
}

void DuplexRows::walk_along(ModelInstance& instance, const TensorView& heard) {
  const std::int32_t text = 0;
  const std::vector<std::int32_t> codes(
      static_cast<std::size_t>(instance.as<Duplex>().config().codebooks), 0);
  const FrameBatch frame(instance, heard, {&text, 1}, codes);
  instance.pass().begin(Mode::generate, {.batch = 1, .tokens = 1}, 0);
  instance.model().forward(instance.pass(), 0, {}, frame.batch);
}

void DuplexRows::choose(const TensorView& logits, std::span<std::int32_t> text,
                        std::span<std::int32_t> codes) {
  scores_.resize(static_cast<std::size_t>(logits.count()));
  if (!look_at_scores(instance_->device(), logits, memory_,
                      [&](const TensorView& host) { to_floats(host, scores_); }))
    return;
  auto from = scores_.begin();
  const auto best_of = [&](std::int64_t count) {
    const auto best = std::max_element(from, from + count) - from;
    from += count;
    return static_cast<std::int32_t>(best);
  };
  const auto books = static_cast<std::size_t>(config_.codebooks);
  for (std::size_t row = 0; row < text.size(); ++row) {
    text[row] = best_of(config_.lm.vocab_size);
    for (std::int32_t& code : codes.subspan(row * books, books)) code = best_of(config_.code_ids());
  }
}

DuplexStream::DuplexStream(ModelInstance& instance)
    : instance_(&instance),
      config_(instance.as<Duplex>().config()),
      audio_(instance, config_.encoder, instance.as<Duplex>().make_encoder_state(instance.pass())),
      rows_(instance, 1, config_.lm.position == Position::rope ? 0 : config_.lm.block_size) {
  begin();
}

void DuplexStream::rehearse() {
  const Tensor heard =
      instance_->pass().allocate({audio_.chunks().frames, config_.encoder.n_embd}, "heard frames");
  rows_.rehearse(heard.slice(0, 1));
}

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
  NullInstance instance(options, layout, rank, target);
  DuplexTalker talker(*instance, {});
  talker.rehearse_fully();
  return measured_plan(*instance, budget, "a dialogue");
}

}  // namespace choir
