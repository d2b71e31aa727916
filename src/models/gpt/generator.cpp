#include "src/models/gpt/generator.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "choir/core/error.hpp"
#include "choir/models/family.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/quantities.hpp"
#include "src/models/gpt/gpt.hpp"
#include "src/run/inference_pass.hpp"

namespace choir {

/// Texts that are generated together. The streams of a state have equally many positions, so those
/// of shorter texts begin with padding, a document of its own that the text does not see.
class Generator::Batch {
 public:
  /// Called with the logits of the last position of each text, [texts, vocabulary], in host memory.
  using Show = std::function<void(const TensorView&)>;

  Batch(ModelInstance& instance, std::int64_t texts)
      : instance_(instance),
        state_(instance.model().make_state(instance.pass(), texts)),
        graph_(instance) {}

  std::int64_t seen() const { return state_.seen(); }
  std::int64_t replays() const { return graph_.replays(); }
  /// Restarts the texts with these ids, at most a block of each. Returns the result of feed().
  bool begin(const std::vector<std::span<const std::int32_t>>& texts, const Show& show);
  /// Feeds the next id of each text. Returns false if nothing was shown, because another stage has
  /// the logits or the device is the null device.
  bool feed(const std::vector<std::int32_t>& ids, const Show& show);
  /// Keeps only the texts with these indices.
  void keep(const std::vector<std::int64_t>& texts);

 private:
  Tensor on_device(const std::vector<std::int32_t>& values, const char* tag) const;
  void mark_begins();
  Tensor positions_in_texts(std::int64_t tokens) const;
  Tensor forward(Sequence sequence, const Tensor& ids, const Tensor& positions) const;

  ModelInstance& instance_;
  StreamState state_;
  TokenGraph graph_;
  HostBuffer memory_;                  ///< host memory of the logits
  std::vector<std::int64_t> padding_;  ///< padding of each text
  std::int64_t first_ = 0;             ///< positions of the first feed
  Tensor begins_;                      ///< [texts, first_], if some texts are padded
};

Tensor Generator::Batch::on_device(const std::vector<std::int32_t>& values, const char* tag) const {
  const Tensor there = instance_.arena().allocate(DType::i32, {std::ssize(values)}, tag);
  instance_.device().copy_from_host(there.data, values.data(), there.bytes());
  return there;
}

bool Generator::Batch::begin(const std::vector<std::span<const std::int32_t>>& texts,
                             const Show& show) {
  state_.begin(instance_.stream());
  graph_.forget();
  padding_.clear();
  first_ = 0;
  for (const auto& text : texts) first_ = std::max<std::int64_t>(first_, std::ssize(text));
  std::vector<std::int32_t> ids;
  for (const auto& text : texts) {
    padding_.push_back(first_ - std::ssize(text));
    ids.insert(ids.end(), static_cast<std::size_t>(padding_.back()), 0);
    ids.insert(ids.end(), text.begin(), text.end());
  }
  mark_begins();
  return feed(ids, show);
}

void Generator::Batch::keep(const std::vector<std::int64_t>& texts) {
  state_.keep(instance_.stream(), texts);
  graph_.forget();
  std::vector<std::int64_t> padding;
  for (const std::int64_t i : texts) padding.push_back(padding_[static_cast<std::size_t>(i)]);
  padding_ = std::move(padding);
  mark_begins();
}

void Generator::Batch::mark_begins() {
  begins_.reset();
  if (std::count(padding_.begin(), padding_.end(), 0) == std::ssize(padding_)) return;
  std::vector<std::int32_t> begins;
  for (const std::int64_t padding : padding_)
    for (std::int64_t at = 0; at < first_; ++at)
      begins.push_back(static_cast<std::int32_t>(at < padding ? 0 : padding));
  begins_ = on_device(begins, "where texts begin");
}

/// Positions within each text of its next `tokens` tokens; empty if no text is padded.
Tensor Generator::Batch::positions_in_texts(std::int64_t tokens) const {
  if (begins_.empty()) return {};
  std::vector<std::int32_t> within;
  for (const std::int64_t padding : padding_)
    for (std::int64_t at = seen(); at < seen() + tokens; ++at)
      within.push_back(static_cast<std::int32_t>(at < padding ? at : at - padding));
  return on_device(within, "positions in texts");
}

// Positions after those in `begins_` belong to the document of the last one.
Tensor Generator::Batch::forward(Sequence sequence, const Tensor& ids,
                                 const Tensor& positions) const {
  if (!begins_.empty()) {
    sequence.document_positions = first_;
    sequence.document_begins = begins_.as<std::int32_t>();
    sequence.positions_in_document = positions.as<std::int32_t>();
  }
  Pass& pass = instance_.pass();
  pass.begin(Mode::generate, sequence, 0);
  return forward_through_stages(instance_.model(), pass, token_batch(sequence.batch, ids),
                                instance_.stages());
}

bool Generator::Batch::feed(const std::vector<std::int32_t>& ids, const Show& show) {
  const std::int64_t count = std::ssize(ids) / state_.streams();
  const Tensor device_ids = on_device(ids, "prompt"), positions = positions_in_texts(count);
  bool shown = false;
  graph_.run(
      state_, count, device_ids.data,
      [&](const Sequence& sequence) { return forward(sequence, device_ids, positions); },
      [&](const TensorView& out) {
        shown = look_at_scores(instance_.device(), out, memory_, show);
      });
  return shown;
}

Generator::Generator(ModelInstance& instance) : instance_(instance) {}

std::string GenerationTimes::to_string() const {
  const auto rate = [](std::int64_t count, double time) {
    return time > 0 ? static_cast<double>(count) / time : 0.0;
  };
  return fmt::format(
      "prompt: {} tokens in {:.3f} s, {:.1f} a second; then {} in {:.3f} s, {:.1f} a second",
      prompt_tokens, prompt_seconds, rate(prompt_tokens, prompt_seconds), tokens, seconds,
      rate(tokens, seconds));
}

namespace {

/// A question in progress. The context of the model is its ids from `begin` on.
struct GrowingText {
  std::size_t number = 0;
  std::vector<std::int32_t>* ids = nullptr;
  std::size_t begin = 0;
  const Question* question = nullptr;
  TokenChooser chooser;
  std::vector<float> logits;

  std::span<const std::int32_t> context() const { return std::span(*ids).subspan(begin); }
  bool stopped() const {
    const std::vector<std::int32_t>& stop = question->choice.stop;
    if (std::find(stop.begin(), stop.end(), ids->back()) != stop.end()) return true;
    return question->ends && question->ends(std::span(*ids).subspan(question->prompt.size()));
  }
};

/// The contexts after the model has no position left for the longest row of the batch. A context
/// longer than the block is cut to its newest half, as if the text were alone.
std::vector<std::span<const std::int32_t>> contexts_within(std::size_t block,
                                                           std::vector<GrowingText>& texts) {
  std::vector<std::span<const std::int32_t>> contexts;
  for (GrowingText& text : texts) {
    if (text.context().size() > block)
      text.begin = text.ids->size() - std::max<std::size_t>(1, block / 2);
    contexts.push_back(text.context());
  }
  return contexts;
}

/// Distributes the tokens that the last stage has chosen.
void agree(ModelInstance& instance, std::vector<std::int32_t>& tokens) {
  Communicator& stages = instance.mesh().host_along(Axis::pipeline);
  if (stages.size() > 1)
    stages.broadcast(tokens.data(), tokens.size() * sizeof tokens[0], stages.size() - 1);
}

}  // namespace

std::vector<std::vector<std::int32_t>> Generator::generate_together(
    const std::vector<Question>& questions, std::int64_t count,
    const std::function<void(std::size_t, std::int32_t)>& on_token) {
  const GptConfig& config = instance_.as<Gpt>().config();
  const auto block = static_cast<std::size_t>(config.block_size);
  std::vector<std::vector<std::int32_t>> answers;
  for (const Question& question : questions) {
    CHOIR_CHECK(!question.prompt.empty(), "generation needs at least one token to start from");
    answers.push_back(question.prompt);
  }
  std::vector<GrowingText> texts;
  for (std::size_t i = 0; i < questions.size(); ++i)
    texts.push_back({.number = i,
                     .ids = &answers[i],
                     .begin = answers[i].size() - std::min(answers[i].size(), block),
                     .question = &questions[i],
                     .chooser = TokenChooser(questions[i].choice, config.vocab_size),
                     .logits = std::vector<float>(static_cast<std::size_t>(config.vocab_size))});
  if (texts.empty()) return answers;
  Batch batch(instance_, std::ssize(texts));
  const auto keep_logits = [&](const TensorView& rows) {
    for (std::size_t i = 0; i < texts.size(); ++i)
      to_floats(rows.slice(static_cast<std::int64_t>(i), 1), texts[i].logits);
  };
  for (std::int64_t step = 0; step < count && !texts.empty(); ++step) {
    std::vector<std::int32_t> tokens;
    for (const GrowingText& text : texts) tokens.push_back(text.ids->back());
    const bool anew = step == 0 || static_cast<std::size_t>(batch.seen()) == block;
    const double began = now_seconds();
    const bool chooses = anew ? batch.begin(contexts_within(block, texts), keep_logits)
                              : batch.feed(tokens, keep_logits);
    for (std::size_t i = 0; i < texts.size(); ++i)
      tokens[i] = chooses ? texts[i].chooser.choose(texts[i].logits, step) : 0;
    agree(instance_, tokens);
    (anew ? times_.prompt_seconds : times_.seconds) += now_seconds() - began;
    for (const GrowingText& text : texts)
      anew ? times_.prompt_tokens += std::ssize(text.context()) : ++times_.tokens;
    std::vector<std::int64_t> going;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      texts[i].ids->push_back(tokens[i]);
      if (texts[i].stopped()) continue;
      going.push_back(static_cast<std::int64_t>(i));
      if (on_token) on_token(texts[i].number, tokens[i]);
    }
    if (going.size() == texts.size()) continue;
    std::erase_if(texts, [](const GrowingText& text) { return text.stopped(); });
    if (!texts.empty()) batch.keep(going);
  }
  times_.replayed += batch.replays();
  return answers;
}

std::vector<std::int32_t> Generator::generate(std::vector<std::int32_t> tokens, std::int64_t count,
                                              const TokenChoice& choice,
                                              const std::function<void(std::int32_t)>& on_token) {
  return generate_together({{.prompt = std::move(tokens), .choice = choice}}, count,
                           [&](std::size_t, std::int32_t token) {
                             if (on_token) on_token(token);
                           })
      .front();
}

// A full block first and half a block after it are the two largest contexts that are ever fed. They
// are fed once with equal lengths and once with shorter texts, which are padded, because other
// kernels may compute those.
void Generator::plan(std::int64_t questions) {
  const auto block = static_cast<std::size_t>(instance_.as<Gpt>().config().block_size);
  std::vector<Question> asked(static_cast<std::size_t>(questions),
                              {.prompt = std::vector<std::int32_t>(block, 0), .choice = {}});
  generate_together(asked, 2);
  for (std::size_t i = 1; i < asked.size(); ++i) asked[i].prompt.resize(1);
  if (asked.size() > 1) generate_together(asked, 2);
}

std::vector<double> Generator::logits(const std::vector<std::int32_t>& ids) {
  const GptConfig& config = instance_.as<Gpt>().config();
  CHOIR_CHECK(static_cast<std::int64_t>(ids.size()) <= config.block_size, "{} ids", ids.size());
  const auto width = static_cast<std::size_t>(config.vocab_size);
  Batch batch(instance_, 1);
  std::vector<double> all;
  const auto show = [&](const TensorView& row) {
    all.resize(all.size() + width);
    to_doubles(row, std::span(all).last(width));
  };
  for (std::size_t i = 0; i < ids.size(); ++i)
    i == 0 ? batch.begin({std::span(ids).first(1)}, show) : batch.feed({ids[i]}, show);
  times_.replayed += batch.replays();
  return all;
}

std::function<void(std::int32_t)> counted_by(ProgressLine* line, std::int64_t tokens) {
  if (line == nullptr) return {};
  return [line, tokens, done = std::int64_t{0}](std::int32_t) mutable { line->at(++done, tokens); };
}

LoadedModel load_generator(const FamilyTable& families, const std::string& path,
                           const std::string& precision, Workplace& place,
                           const std::vector<std::string>& overrides, std::int64_t together) {
  return load_generator(open_model(families, path, precision, *place.mesh, overrides), place,
                        together);
}

LoadedModel load_generator(LoadedModel loaded, Workplace& place, std::int64_t together) {
  choir::together(place.mesh->world(), [&] {
    require_ability(loaded, loaded.deck.family().generates(), "does not continue text", "gpt");
  });
  load_instance(
      loaded, [&](ModelInstance& instance) { Generator(instance).plan(together); }, place);
  return loaded;
}

}  // namespace choir
