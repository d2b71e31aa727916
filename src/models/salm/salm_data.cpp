#include "src/models/salm/salm_data.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "choir/comm/agreement.hpp"
#include "choir/data/speech/blend_source.hpp"

namespace choir {
namespace {

ConversationConfig conversation_config(const Deck& deck, bool training, std::uint64_t vocab_hash) {
  const SalmSettings& settings = salm_settings(deck);
  const SalmSection& data = settings.data;
  ConversationConfig config;
  const bool named = !deck.data.train.empty() || !data.input_cfg.empty();
  if (training && !named)
    throw DeckError("nothing to train on: data.train is not given",
                    "name folders of conversations (`choir prepare chat`)");
  config.eval = eval_sets_of(deck.data.val, data.validation, kSalmEvalWords);
  if (!training && config.eval.empty())
    throw DataError("there is no validation data",
                    "name folders of conversations in data.val, or sets in data.validation");
  config.frames = settings.model.clip_rows();
  config.sample_rate = static_cast<int>(settings.model.encoder.mel.sample_rate);
  config.vocab_size = settings.model.lm.vocab_size;
  config.vocab_hash = vocab_hash;
  config.batch_tokens = data.batch_tokens;
  config.max_tokens = std::min(data.max_tokens > 0 ? data.max_tokens : settings.model.lm.block_size,
                               data.batch_tokens);
  config.max_conversations = data.max_conversations;
  config.buckets = static_cast<int>(data.buckets);
  config.window = data.window;
  return config;
}

AnswerOptions answers_of(const SalmSection& settings) {
  return {.conversations = settings.answers, .tokens = settings.answer_tokens};
}

bool contains(const ConversationShape& a, const ConversationShape& b) {
  return a.rows >= b.rows && a.tokens >= b.tokens && a.clips >= b.clips && a.samples >= b.samples;
}

}  // namespace

SalmData open_conversation_data(const Deck& deck, Mesh& mesh, bool training,
                                std::uint64_t vocab_hash) {
  ConversationConfig config;
  const SalmSection& section = salm_settings(deck).data;
  together(mesh.world(), [&] { config = conversation_config(deck, training, vocab_hash); });
  if (training)
    config.train =
        open_blend(mesh.world(), section.input_cfg, deck.data.train, section.temperature);
  config.order_seed =
      open_order_seed(mesh.world(), section.shard_seed, static_cast<std::uint64_t>(deck.run.seed));
  SalmData data;
  data.mix = config.train;
  data.batches = ConversationBatches::open(mesh.world(), mesh.coordinates()[Axis::data],
                                           mesh.layout().size(Axis::data), config);
  const ChatForm& form = data.batches->corpus().form();
  together(mesh.world(), [&] {
    if (!form.tokenizer.empty()) data.tokenizer = open_chat_tokenizer(form, "the data").tokenizer;
  });
  return data;
}

std::vector<BatchShape> largest_shapes(const std::vector<ConversationShape>& shapes) {
  std::vector<BatchShape> list;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const ConversationShape& a = shapes[i];
    bool contained = false;
    for (std::size_t j = 0; j < shapes.size() && !contained; ++j)
      contained = j != i && contains(shapes[j], a) && (j < i || !(shapes[j] == a));
    if (!contained)
      list.push_back(
          {.samples = a.rows, .tokens = a.tokens, .audio_samples = a.samples, .clips = a.clips});
  }
  return list;
}

SalmTrainingData::SalmTrainingData(const Deck& deck, const BatchSizes& batch, Mesh& mesh,
                                   Logger& log)
    : settings_(salm_settings(deck).data),
      batch_(batch),
      mesh_(mesh),
      log_(log),
      data_(open_conversation_data(deck, mesh, true)),
      drawn_(static_cast<std::size_t>(corpus().folders()), 0) {
  if (mesh.rank() != 0) return;
  if (!has_validation())
    log.warn(
        "there is no validation data: nothing is evaluated, and no checkpoint is the best; "
        "name folders in data.val, or sets in data.validation");
  if (data_.tokenizer == nullptr && settings_.answers >= 0)
    log.warn("there is no tokenizer beside the conversations: validation generates no answers");
}

std::string SalmTrainingData::vocabulary_json() const {
  return corpus().tokenizer().empty() ? "" : corpus().form().to_json();
}

std::string SalmTrainingData::contents() const {
  std::string text = fmt::format("conversations {:016x}", corpus().hash());
  for (int set = 0; set < data_.batches->eval_sets(); ++set)
    text += fmt::format(", {} {:016x}", data_.batches->eval_name(set),
                        data_.batches->eval_corpus(set).hash());
  return text +
         blend_contents(data_.batches->sampler().blend(), leaves_of(data_.mix), "conversation");
}

void SalmTrainingData::start_training(const Sharding& sharding, std::int64_t per_rank,
                                      const Position& from) {
  steps_.begin(data_.batches->sampler(), from, batch_.global, "conversations", mesh_, log_);
  data_.batches->start_training(steps_.order(sharding, per_rank));
}

void SalmTrainingData::add(const SpeechItem& item, const Model& model, StepContent& to) {
  const auto clips = corpus().set(item.leaf).clips(item.utterance);
  std::int64_t samples = 0;
  for (const ClipOfFile& clip : clips) samples += clip.samples;
  const std::int64_t count = std::ssize(clips);
  to.flops += model.flops({.samples = 1,
                           .tokens = item.samples,
                           .audio_samples = count > 0 ? samples / count : 0,
                           .clips = count});
  if (samples > 0)
    to.audio_seconds += static_cast<double>(samples) / static_cast<double>(corpus().sample_rate());
  ++drawn_[static_cast<std::size_t>(item.leaf)];
}

StepContent SalmTrainingData::content(std::int64_t step, const Model& model) {
  return steps_.content(step, [&](const SpeechStep& planned, StepContent& to) {
    for (const SpeechRow& row : planned.rows) add(row.item, model, to);
  });
}

std::string SalmTrainingData::drawn() const {
  return drawn_text(sources_of(leaves_of(data_.mix), data_.batches->sampler().blend(), 1), drawn_);
}

std::vector<Validation> SalmTrainingData::validate(ModelInstance& instance,
                                                   ProgressLine* progress) {
  std::vector<SalmSetScores> sets = score_conversations(
      instance, *data_.batches, data_.tokenizer.get(), answers_of(settings_), progress);
  if (mesh_.rank() == 0) {
    for (const std::string& line : lines_of(sets)) log_.info("validation {}", line);
    if (const std::string parts = drawn(); !parts.empty()) log_.info("drawn so far: {}", parts);
  }
  pairs_ = std::move(sets.front().pairs);
  return validations_of(sets);
}

namespace {

std::uint64_t hash_of(const std::string& vocabulary) {
  if (vocabulary.empty()) return 0;
  const ChatForm form = ChatForm::from_json(vocabulary, "the checkpoint");
  return open_chat_tokenizer(form, "the checkpoint").tokenizer->hash();
}

}  // namespace

SalmEvaluationData::SalmEvaluationData(const Deck& deck, const std::string& vocabulary, Mesh& mesh)
    : settings_(salm_settings(deck).data),
      data_(open_conversation_data(deck, mesh, false, hash_of(vocabulary))) {}

EvaluationData::Result SalmEvaluationData::evaluate(ModelInstance& instance,
                                                    ProgressLine* progress) {
  const auto sets = score_conversations(instance, *data_.batches, data_.tokenizer.get(),
                                        answers_of(settings_), progress);
  Result result;
  if (const std::string pairs = choir::to_string(sets.front().pairs); !pairs.empty())
    result.lines.push_back(pairs + "\n");
  for (std::string& line : lines_of(sets)) result.lines.push_back(std::move(line));
  result.metrics = metrics_text(validations_of(sets));
  return result;
}

}  // namespace choir
