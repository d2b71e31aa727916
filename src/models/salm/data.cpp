#include "src/models/salm/data.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/data/chat/splice.hpp"
#include "src/data/speech/data_sources.hpp"

namespace choir {
namespace {

/// Sizes of a micro-batch: conversations, their clips in total, frames of the longest clip, and the
/// largest number of tokens between two clips and at the ends of a row.
struct Kind {
  std::int64_t rows, clips, frames, tokens;
};
constexpr std::array<Kind, 3> kKinds{{{3, 4, 4, 4}, {2, 2, 6, 6}, {1, 1, 9, 5}}};
constexpr std::int32_t kPlaceholder = -1;

/// Clips of row `row`. The first rows have two clips each until all are used.
std::int64_t clips_of_row(const Kind& kind, std::int64_t row) {
  return row + 1 < kind.rows ? std::min<std::int64_t>(2, kind.clips - 2 * row)
                             : std::max<std::int64_t>(0, kind.clips - 2 * row);
}

}  // namespace

SyntheticConversations::SyntheticConversations(std::uint64_t seed, const SalmConfig& config)
    : row_key_(philox_key(seed, "verify conversations")),
      audio_key_(philox_key(seed, "verify clips")),
      config_(config) {
  std::int64_t longest = 0;
  for (const BatchShape& shape : shapes()) longest = std::max(longest, shape.tokens);
  if (longest > config.lm.block_size)
    throw DeckError(fmt::format("random conversations have up to {} tokens and frames, more than "
                                "model.lm.block_size = {}",
                                longest, config.lm.block_size),
                    fmt::format("legal: {} or more", longest));
  for (const BatchShape& shape : shapes())
    batches_.push_back(std::make_unique<HostBatch>(config, shape));
  padding_ = std::make_unique<HostBatch>(
      config, BatchShape{.samples = 1,
                         .tokens = 1,
                         .audio_samples = config.encoder.mel.hop * config.encoder.subsampling,
                         .clips = 1});
  padding_->clear();
}

BatchShape SyntheticConversations::shape_of_kind(std::size_t number) const {
  const Kind& kind = kKinds[number];
  const std::int64_t samples = kind.frames * config_.encoder.mel.hop * config_.encoder.subsampling;
  // The longest row has two clips, three runs of tokens, and one more token that is only a target.
  const std::int64_t clips = std::min<std::int64_t>(2, kind.clips);
  return {.samples = kind.rows,
          .tokens = clips * config_.clip_rows().rows(samples) + (clips + 1) * kind.tokens,
          .audio_samples = samples,
          .clips = kind.clips};
}

std::vector<BatchShape> SyntheticConversations::shapes() const {
  std::vector<BatchShape> list;
  for (std::size_t kind = 0; kind < kKinds.size(); ++kind) list.push_back(shape_of_kind(kind));
  return list;
}

BatchShape SyntheticConversations::shape(std::int64_t index) const {
  return shape_of_kind(kind(index));
}

std::size_t SyntheticConversations::kind(std::int64_t index) const {
  return philox_at(row_key_, static_cast<std::uint64_t>(index), kMostRows)[0] % kKinds.size();
}

std::vector<SyntheticConversations::Row> SyntheticConversations::rows(std::int64_t index) const {
  const std::size_t number = kind(index);
  const Kind& kind = kKinds[number];
  const BatchShape shape = shape_of_kind(number);
  std::vector<Row> list;
  for (std::int64_t at = 0; at < kind.rows; ++at) {
    std::uint64_t drawn = 0;
    const auto below = [&](std::int64_t n) {
      const auto id = static_cast<std::uint64_t>(index * kMostRows + at);
      return static_cast<std::int64_t>(philox_at(row_key_, id, 1000 + drawn++)[0] %
                                       static_cast<std::uint64_t>(n));
    };
    Row row;
    const auto add_tokens = [&](bool counted) {
      const std::int64_t count = 1 + below(kind.tokens);
      for (std::int64_t i = 0; i < count; ++i) {
        row.ids.push_back(static_cast<std::int32_t>(below(config_.vocab_size)));
        row.counted.push_back(counted ? 1 : 0);
      }
    };
    add_tokens(false);
    for (std::int64_t clip = 0; clip < clips_of_row(kind, at); ++clip) {
      row.ids.push_back(kPlaceholder);
      row.counted.push_back(0);
      // The first clip has the full length of the shape.
      row.clip_samples.push_back(at == 0 && clip == 0
                                     ? shape.audio_samples
                                     : shape.audio_samples / 3 + below(shape.audio_samples / 2));
      add_tokens(clip % 2 == 0);
    }
    list.push_back(std::move(row));
  }
  return list;
}

void SyntheticConversations::fill_audio(ModelBatch& batch, std::int64_t clip, std::int64_t id,
                                        std::int64_t samples) const {
  const std::int64_t clips = batch["audio"].shape[0], length = batch["audio"].shape[1];
  auto* audio = static_cast<std::int16_t*>(batch["audio"].data) + clip * length;
  const double loud = 400.0 * static_cast<double>(1 + id % 7);
  for (std::int64_t i = 0; i < length; ++i) {
    const double noise =
        normal_at(audio_key_, static_cast<std::uint64_t>(id * (std::int64_t{1} << 32) + i));
    audio[i] = i < samples ? static_cast<std::int16_t>(std::clamp(loud * noise, -32768.0, 32767.0))
                           : std::int16_t{0};
  }
  batch["audio_lengths"].as<std::int32_t>()[clip] = static_cast<std::int32_t>(samples);
  for (int stage = 0; stage <= config_.encoder.stages(); ++stage)
    batch["frame_lengths"].as<std::int32_t>()[stage * clips + clip] =
        static_cast<std::int32_t>(config_.encoder.lengths_after(stage, samples));
  batch["sample_ids"].as<std::int64_t>()[clip] = id;
}

ModelBatch SyntheticConversations::micro_batch(std::int64_t index) {
  ModelBatch& batch = batches_[kind(index)]->batch;
  const BatchShape shape = this->shape(index);
  const std::vector<Row> rows = this->rows(index);
  std::vector<SpliceRow> views;
  std::int64_t clip = 0;
  for (std::size_t at = 0; at < rows.size(); ++at) {
    const std::int64_t id = index * kMostRows + static_cast<std::int64_t>(at);
    batch["conversation_ids"].as<std::int64_t>()[at] = id;
    views.push_back({rows[at].ids, rows[at].counted, rows[at].clip_samples});
    for (const std::int64_t samples : rows[at].clip_samples) {
      fill_audio(batch, clip, 2 * id + clip % 2, samples);
      ++clip;
    }
  }
  const Splice splice =
      make_splice(views, {.frames = config_.clip_rows(),
                          .placeholder = kPlaceholder,
                          .padded_rows = config_.clip_rows().rows(shape.audio_samples),
                          .row_tokens = shape.tokens});
  std::ranges::copy(splice.splice, batch["index"].as<std::int32_t>());
  std::ranges::copy(splice.targets, batch["targets"].as<std::int32_t>());
  return batch;
}

ModelBatch SyntheticConversations::padding() {
  return padding_->batch;
}

ByTerm SyntheticConversations::targets(std::int64_t first, std::int64_t count) const {
  std::int64_t sum = 0;
  for (std::int64_t index = first; index < first + count; ++index)
    for (const Row& row : rows(index)) sum += std::ranges::count(row.counted, 1);
  return static_cast<double>(sum);
}

double SyntheticConversations::audio_seconds(std::int64_t index) const {
  std::int64_t sum = 0;
  for (const Row& row : rows(index))
    for (const std::int64_t samples : row.clip_samples) sum += samples;
  return static_cast<double>(sum) / static_cast<double>(config_.encoder.mel.sample_rate);
}

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

bool contains(const ConversationShape& a, const ConversationShape& b) {
  return a.rows >= b.rows && a.tokens >= b.tokens && a.clips >= b.clips && a.samples >= b.samples;
}

}  // namespace

EvaluationResult SalmData::evaluate(ModelInstance& instance, ProgressLine* progress) {
  SalmScorer scorer(instance, *batches, tokenizer.get(), answers);
  return evaluate_sets(instance, scorer, progress);
}

namespace {

AnswerOptions answers_of(const Deck& deck, const GenerationOptions& set) {
  const SalmSection& keys = salm_settings(deck).data;
  return {.conversations = set.answers.value_or(keys.answers),
          .tokens = set.answer_tokens.value_or(keys.answer_tokens),
          .choice = {.temperature = set.temperature,
                     .top_k = static_cast<int>(set.top_k),
                     .top_p = set.top_p,
                     .seed = static_cast<std::uint64_t>(deck.run.seed),
                     .stop = {}}};
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
  for (const SpeechEvalSet& set : config.eval)
    data.answers.push_back(answers_of(deck, set.generation));
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

}  // namespace choir
