#include "src/models/gpt/chat_data.hpp"

#include <algorithm>
#include <cmath>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/data/speech/data_sources.hpp"
#include "src/data/vocabulary/vocabulary_model.hpp"
#include "src/models/gpt/chat_deck.hpp"
#include "src/models/gpt/generator.hpp"
#include "src/models/gpt/token_data.hpp"

namespace choir {

RowPacker::RowPacker(std::int64_t block, std::int64_t open) : block_(block), most_(open) {
  CHOIR_CHECK(block >= 1 && open >= 1, "rows of {}, {} open", block, open);
}

std::int64_t RowPacker::add(std::int64_t length) {
  CHOIR_CHECK(length >= 1 && length <= block_, "{} inputs for a row of {}", length, block_);
  auto place = std::find_if(open_.begin(), open_.end(),
                            [&](const Open& row) { return row.used + length <= block_; });
  if (place == open_.end()) {
    if (std::ssize(open_) == most_) open_.erase(open_.begin());
    open_.push_back({rows_++, 0});
    place = open_.end() - 1;
  }
  const std::int64_t row = place->row;
  place->used += length;
  if (place->used == block_) open_.erase(place);
  return row;
}

std::vector<PackedRow> pack_rows(std::span<const std::int64_t> lengths, std::int64_t block,
                                 std::int64_t open) {
  RowPacker packer(block, open);
  std::vector<PackedRow> rows;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] > block || lengths[i] < 1)
      throw DataError(
          fmt::format("conversation {} has {} tokens, but a row only {}", i, lengths[i], block),
          "remove conversations that are longer than a row");
    const auto at = static_cast<std::size_t>(packer.add(lengths[i]));
    if (at == rows.size()) rows.push_back({.documents = {}, .begins = {0}});
    rows[at].documents.push_back(static_cast<std::int64_t>(i));
    rows[at].begins.push_back(rows[at].begins.back() + static_cast<std::int32_t>(lengths[i]));
  }
  return rows;
}

PackedTokens packed_tokens(std::span<const std::span<const std::int32_t>> ids,
                           std::span<const std::span<const std::uint8_t>> counted,
                           std::int64_t block) {
  PackedTokens made;
  const auto size = static_cast<std::size_t>(block);
  made.inputs.assign(size, 0);
  made.targets.assign(size, -1);
  made.positions.assign(size, 0);
  made.begins = {0};
  for (std::size_t d = 0; d < ids.size(); ++d) {
    const auto begin = static_cast<std::size_t>(made.begins.back());
    const std::size_t inputs = ids[d].size() - 1;
    CHOIR_CHECK(!ids[d].empty() && begin + inputs <= size, "{} tokens from {} on in a row of {}",
                ids[d].size(), begin, block);
    for (std::size_t i = 0; i < inputs; ++i) {
      made.inputs[begin + i] = ids[d][i];
      if (counted[d][i + 1] != 0) made.targets[begin + i] = ids[d][i + 1];
      made.positions[begin + i] = static_cast<std::int32_t>(i);
    }
    made.begins.push_back(static_cast<std::int32_t>(begin + inputs));
  }
  return made;
}

namespace {

SpeechMix open_mix(const Deck& deck, Mesh& mesh) {
  return open_blend(mesh.world(), gpt_settings(deck).input_cfg, deck.data.train,
                    gpt_settings(deck).temperature);
}

ConversationCorpusOptions corpus_options(const Deck& deck, std::uint64_t vocab_hash,
                                         const std::string& what) {
  return {.audio = false,
          .max_rows = gpt_of(deck).block_size,
          .vocab_size = gpt_of(deck).vocab_size,
          .vocab_hash = vocab_hash,
          .what = what};
}

ConversationCorpus open_corpus(const Deck& deck, const SpeechMix& mix, Mesh& mesh) {
  return ConversationCorpus::load(mesh.world(), leaves_of(mix),
                                  corpus_options(deck, 0, "the training data"));
}

/// Fills row `row` of a batch with conversations one after another, or with padding if there are
/// none.
void fill_row(const ConversationCorpus& corpus, std::span<const SpeechItem> items, std::int64_t row,
              Batch& batch) {
  const std::int64_t block = batch.inputs.shape[1];
  std::vector<std::vector<std::int32_t>> ids(items.size());
  std::vector<std::vector<std::uint8_t>> counted(items.size());
  for (std::size_t i = 0; i < items.size(); ++i)
    corpus.set(items[i].leaf).read(items[i].utterance, ids[i], counted[i]);
  const PackedTokens made = packed_tokens(
      std::vector<std::span<const std::int32_t>>(ids.begin(), ids.end()),
      std::vector<std::span<const std::uint8_t>>(counted.begin(), counted.end()), block);
  const auto put = [&](const std::vector<std::int32_t>& values, const TensorView& field) {
    std::copy(values.begin(), values.end(), field.as<std::int32_t>() + row * block);
  };
  put(made.inputs, batch.inputs);
  put(made.targets, batch.targets);
  batch.valid += block - std::count(made.targets.begin(), made.targets.end(), kIgnoredTarget);
  if (batch.begins.empty()) return;
  put(made.positions, batch.positions);
  // The positions after the last conversation form a document of padding.
  auto* begins = batch.begins.as<std::int32_t>() + row * block;
  for (std::size_t d = 0; d < made.begins.size(); ++d) {
    const std::int64_t end = d + 1 < made.begins.size() ? made.begins[d + 1] : block;
    std::fill(begins + made.begins[d], begins + end, made.begins[d]);
  }
}

/// Divides conversations into rows of `block` inputs, packed or one in each row.
std::vector<std::vector<SpeechItem>> rows_of(const std::vector<SpeechItem>& items,
                                             std::int64_t block, bool packed) {
  std::vector<std::vector<SpeechItem>> rows;
  RowPacker packer(block);
  for (const SpeechItem& item : items) {
    const auto at = packed ? static_cast<std::size_t>(packer.add(item.samples)) : rows.size();
    if (at == rows.size()) rows.emplace_back();
    rows[at].push_back(item);
  }
  return rows;
}

std::vector<SpeechItem> items_of(const ConversationCorpus& corpus) {
  std::vector<SpeechItem> items;
  for (int leaf = 0; leaf < corpus.folders(); ++leaf)
    items.insert(items.end(), corpus.items(leaf).begin(), corpus.items(leaf).end());
  return items;
}

/// Returns nothing for a tokenizer.json from which no vocabulary can be built: such data train, but
/// write no samples.
std::optional<Vocabulary> vocabulary_of(const std::string& json) {
  if (json.empty()) return std::nullopt;
  try {
    return Vocabulary::from_json(json, "the tokenizer beside the conversations");
  } catch (const DataError&) {
    return std::nullopt;
  }
}

}  // namespace

bool trains_on_chat(const Deck& deck, Mesh& mesh, bool evaluates) {
  if (deck.data.format == DataFormat::synthetic) return false;
  std::int64_t chat = 0;
  const bool named = !deck.data.val.empty() || !gpt_settings(deck).validation.empty();
  const SpeechMix mix = evaluates && named ? SpeechMix() : open_mix(deck, mesh);
  together(mesh.world(), [&] {
    if (mesh.rank() != 0) return;
    std::vector<std::string> paths;
    if (!mix.inputs.empty())
      for (const SpeechLeaf& leaf : leaves_of(mix)) paths.push_back(leaf.folder);
    paths.insert(paths.end(), deck.data.val.begin(), deck.data.val.end());
    for (const auto& [name, text] : gpt_settings(deck).validation)
      for (const std::string& folder : eval_set_of(name, text, kTextEvalWords).folders)
        paths.push_back(folder);
    const auto count = std::count_if(paths.begin(), paths.end(), holds_conversations);
    if (count != 0 && count != std::ssize(paths))
      throw DataError(
          "conversations and other data are mixed in data.train, data.val and "
          "data.validation",
          "name folders that 'choir prepare chat' wrote, or none of them");
    chat = count;
  });
  mesh.world().broadcast(&chat, sizeof chat, 0);
  return chat != 0;
}

ChatRows::ChatRows(SpeechBlend blend, std::int64_t block, bool packed)
    : blend_(std::move(blend)), block_(block), packed_(packed) {
  begin();
}

void ChatRows::begin() {
  draws_ = first_ = 0;
  drawn_.assign(static_cast<std::size_t>(blend_.pools()), 0);
  packer_.emplace(block_);
  rows_.clear();
}

SpeechItem ChatRows::draw() {
  const int pool = blend_.pool_of(draws_++);
  return blend_.row(pool, drawn_[static_cast<std::size_t>(pool)]++).item;
}

// Without packing, skipped rows are counted and not looked up.
const std::vector<SpeechItem>& ChatRows::row(std::int64_t sample) {
  if (sample < first_) begin();
  if (packed_) {
    while (packer_->finished() <= sample) {
      const SpeechItem item = draw();
      const auto at = static_cast<std::size_t>(packer_->add(item.samples) - first_);
      if (at == rows_.size()) rows_.emplace_back();
      rows_[at].push_back(item);
      for (; first_ < std::min(sample, packer_->finished()); ++first_) rows_.pop_front();
    }
    for (; first_ < sample; ++first_) rows_.pop_front();
    return rows_.front();
  }
  if (rows_.empty() || first_ != sample) {
    for (; draws_ < sample; ++draws_) ++drawn_[static_cast<std::size_t>(blend_.pool_of(draws_))];
    first_ = sample;
    rows_.assign(1, {draw()});
  }
  return rows_.front();
}

ChatValidation::ChatValidation(const Deck& deck, std::int64_t rows, std::uint64_t vocab_hash,
                               Mesh& mesh)
    : rows_(rows), buffer_(rows, gpt_of(deck).block_size, gpt_of(deck).packed) {
  const std::int64_t batch = std::max(deck.train.global_batch_size, 1);
  for (const SpeechEvalSet& asked :
       eval_sets_of(deck.data.val, gpt_settings(deck).validation, kTextEvalWords)) {
    const std::int64_t most = asked.batches.value_or(gpt_settings(deck).eval_batches) * batch;
    ChatEvalSet& set = sets_.emplace_back();
    set.name = asked.name;
    set.corpus = ConversationCorpus::load(
        mesh.world(), leaves_of(asked),
        corpus_options(deck, vocab_hash, fmt::format("validation set '{}'", asked.name)));
    set.corpus.limit(asked.limit);
    set.items = items_of(set.corpus);
    set.all_items = std::ssize(set.items);
    if (most > 0 && std::ssize(set.items) > most) set.items.resize(static_cast<std::size_t>(most));
    set.rows = rows_of(set.items, gpt_of(deck).block_size, gpt_of(deck).packed);
  }
}

std::int64_t ChatValidation::calls(int set, int ranks) const {
  const std::int64_t a_call = rows_ * ranks;
  return (std::ssize(sets_[static_cast<std::size_t>(set)].rows) + a_call - 1) / a_call;
}

const Batch& ChatValidation::batch(int number, std::int64_t micro_batch) {
  const ChatEvalSet& set = sets_[static_cast<std::size_t>(number)];
  buffer_.batch.valid = 0;
  for (std::int64_t row = 0; row < rows_; ++row) {
    const std::int64_t i = micro_batch * rows_ + row;
    if (i < std::ssize(set.rows))
      fill_row(set.corpus, set.rows[static_cast<std::size_t>(i)], row, buffer_.batch);
    else
      fill_row(set.corpus, {}, row, buffer_.batch);
  }
  return buffer_.batch;
}

namespace {

/// "12 conversations", or "12 of 40 conversations (eval.batches)".
std::string items_text(const ChatEvalSet& set) {
  if (std::ssize(set.items) == set.all_items) return counted(set.all_items, "conversation");
  return fmt::format("the first {} of {} (eval.batches; eval.batches=all evaluates all)",
                     format_count(std::ssize(set.items)), counted(set.all_items, "conversation"));
}

class ChatScorer final : public SetScorer {
 public:
  ChatScorer(ModelInstance& instance, ChatValidation& data)
      : instance_(instance), data_(data), ranks_(instance.mesh().host_along(Axis::data)) {}
  const ScoreMeaning& meaning() const override { return meaning_; }
  int sets() const override { return static_cast<int>(data_.sets().size()); }
  std::string name(int set) const override {
    return data_.sets()[static_cast<std::size_t>(set)].name;
  }
  std::int64_t calls(int set) const override { return data_.calls(set, ranks_.size()); }
  void score(int set, std::int64_t call, SetSums& sums) override {
    const Batch& batch = data_.batch(set, call * ranks_.size() + ranks_.rank());
    if (sums.leaves_out(batch.valid == 0)) return;
    sums.add_losses(instance_.loss_sums(token_batch(batch)));
    sums.add(kTargetsCounter, batch.valid);
  }

 private:
  ModelInstance& instance_;
  ChatValidation& data_;
  const Communicator& ranks_;
  TokenMeaning meaning_{"targets"};
};

}  // namespace

EvaluationResult ChatValidation::evaluate(ModelInstance& instance, ProgressLine* progress) {
  ChatScorer scorer(instance, *this);
  return evaluate_sets(instance, scorer, progress);
}

std::string padding_advice(const RowFill& fill, const GptConfig& model) {
  constexpr double kMuch = 0.5;
  if (fill.padding() <= kMuch || fill.conversations == 0) return {};
  const std::int64_t block = chat_row_length({.conversations = fill.conversations,
                                              .tokens = fill.tokens + fill.conversations,
                                              .longest = fill.longest + 1},
                                             model);
  // A row holds whole conversations: half of one of mean length may remain free at its end.
  const double mean = static_cast<double>(fill.tokens) / static_cast<double>(fill.conversations);
  const double free = std::min(mean, static_cast<double>(block)) / 2;
  const auto rows = static_cast<std::int64_t>(std::ceil(
      static_cast<double>(fill.tokens) / std::max(static_cast<double>(block) - free, 1.0)));
  const RowFill better{.block = block, .rows = rows, .tokens = fill.tokens};
  if (better.padding() > fill.padding() - 0.1) return {};
  std::vector<std::string> keys;
  if (!fill.packed) keys.emplace_back("data.pack=true");
  if (block != fill.block) keys.push_back(fmt::format("model.block_size={}", block));
  return fmt::format(
      "{:.1f} % of the rows is padding, which takes time as tokens do: {} in rows of {}, the "
      "longest with {} tokens. {} leaves about {:.0f} % (with as many rows in a step, a step then "
      "has {:.1f} times as many conversations)",
      100 * fill.padding(), counted(fill.conversations, "conversation"), fill.block,
      fill.longest + 1, join(keys, " "), 100 * better.padding(),
      static_cast<double>(fill.rows) / static_cast<double>(rows));
}

ChatTrainingData::ChatTrainingData(const Deck& deck, const BatchSizes& batch, Mesh& mesh,
                                   Logger& log)
    : settings_(gpt_settings(deck)),
      seed_(static_cast<std::uint64_t>(deck.run.seed)),
      block_size_(gpt_of(deck).block_size),
      batch_(batch),
      mesh_(mesh),
      mix_(open_mix(deck, mesh)),
      corpus_(open_corpus(deck, mix_, mesh)),
      vocabulary_(vocabulary_of(corpus_.tokenizer())),
      reading_(SpeechBlend(corpus_.pools(mix_), order_seed(deck, mesh)), block_size_,
               settings_.model.packed),
      planning_(reading_),
      validation_(deck, batch.micro, corpus_.vocab_hash(), mesh),
      buffer_(batch.micro, block_size_, settings_.model.packed) {
  const std::string advice = padding_advice(fill(), settings_.model);
  if (!advice.empty() && mesh.rank() == 0) log.warn("{}", advice);
}

RowFill ChatTrainingData::fill() const {
  RowFill fill{.block = block_size_,
               .rows = corpus_.conversations(),
               .conversations = corpus_.conversations(),
               .packed = settings_.model.packed};
  for (int leaf = 0; leaf < corpus_.folders(); ++leaf)
    for (const SpeechItem& item : corpus_.items(leaf)) {
      fill.tokens += item.samples;
      fill.longest = std::max<std::int64_t>(fill.longest, item.samples);
    }
  if (fill.packed) fill.rows = std::ssize(rows_of(items_of(corpus_), block_size_, true));
  return fill;
}

std::string ChatTrainingData::vocabulary_json() const {
  if (!vocabulary_) return "";
  return corpus_.form().chat_template.empty() ? vocabulary_->to_json() : corpus_.form().to_json();
}

std::vector<SpeechSource> ChatTrainingData::sources() const {
  return sources_of(leaves_of(mix_), reading_.blend(), 1);
}

std::string ChatTrainingData::to_string() const {
  std::int64_t targets = 0;
  for (int leaf = 0; leaf < corpus_.folders(); ++leaf)
    for (const SpeechItem& item : corpus_.items(leaf)) targets += item.labels;
  const RowFill rows = fill();
  std::string text = fmt::format(
      "train {}{}, vocabulary of {}; {:.1f} % of their tokens are targets, {:.1f} % of the rows of "
      "{} is padding",
      counted(rows.conversations, "conversation"),
      settings_.model.packed ? " packed in " + counted(rows.rows, "row") : "",
      format_count(corpus_.vocab_size()),
      100.0 * static_cast<double>(targets) / static_cast<double>(rows.tokens),
      100.0 * rows.padding(), block_size_);
  if (const auto all = sources(); all.size() > 1)
    for (const SpeechSource& source : all)
      text += fmt::format("\nblend {:.2f} % '{}': {}", 100 * source.share, source.leaf.folder,
                          counted(source.utterances, "conversation"));
  if (!corpus_.left_out().empty()) text += "\n" + corpus_.left_out();
  for (const ChatEvalSet& set : validation_.sets())
    text += fmt::format("\nvalidation '{}': {}{}", set.name, items_text(set),
                        set.corpus.left_out().empty() ? "" : "; " + set.corpus.left_out());
  return text;
}

std::string ChatTrainingData::contents() const {
  std::string text = fmt::format("conversations {:016x}", corpus_.hash());
  for (const ChatEvalSet& set : validation_.sets())
    text += fmt::format(", {} {:016x}", set.name, set.corpus.hash());
  return text + blend_contents(reading_.blend(), leaves_of(mix_), "conversation");
}

void ChatTrainingData::require_resumable(std::int64_t consumed_samples) const {
  if (consumed_samples % batch_.micro == 0) return;
  throw DeckError(
      fmt::format(
          "the checkpoint has used {} samples, which is no multiple of the micro-batch size {}",
          consumed_samples, batch_.micro),
      "use the previous train.micro_batch_size, or a divisor of it");
}

void ChatTrainingData::start_training(const Sharding& sharding, std::int64_t per_rank,
                                      const Position& from) {
  order_ = micro_batch_order(sharding, per_rank, from.consumed_samples);
  calls_ = 0;
  first_step_ = from.step;
  first_sample_ = from.consumed_samples;
}

ModelBatch ChatTrainingData::next() {
  Batch& batch = buffer_.batch;
  batch.micro_batch = order_.micro_batch(calls_++);
  batch.first_sample = order_.first_sample + batch.micro_batch * batch_.micro;
  batch.valid = 0;
  for (std::int64_t row = 0; row < batch_.micro; ++row) {
    fill_row(corpus_, reading_.row(batch.first_sample + row), row, batch);
  }
  return token_batch(batch);
}

StepContent ChatTrainingData::content(std::int64_t step, const Model& model) {
  const std::int64_t first = first_sample_ + (step - first_step_) * batch_.global;
  ByTerm targets(1, 0);
  std::vector<ByTerm> of_micro_batches(static_cast<std::size_t>(batch_.micro_batches()), targets);
  for (std::int64_t i = 0; i < batch_.global; ++i)
    for (const SpeechItem& item : planning_.row(first + i)) {
      of_micro_batches[static_cast<std::size_t>(i / batch_.micro)] += ByTerm(item.labels);
      targets += ByTerm(item.labels);
    }
  return {.samples = static_cast<double>(batch_.global),
          .targets = targets,
          .micro_batch_targets = std::move(of_micro_batches),
          .flops = model.flops({.samples = batch_.global, .tokens = block_size_})};
}

// The ranks that share layers with rank 0 generate together with it.
std::string ChatTrainingData::sample(ModelInstance& instance, ProgressLine* progress) {
  const bool all_walk = instance.storage().sharding().values_sharded();
  const bool first =
      mesh_.coordinates()[Axis::data] == 0 && mesh_.coordinates()[Axis::context] == 0;
  if (settings_.sample_tokens == 0 || (!first && !all_walk)) return {};
  if (!vocabulary_ || validation_.sets().empty()) return {};
  const ChatEvalSet& set = validation_.sets().front();
  std::vector<std::int32_t> ids;
  std::vector<std::uint8_t> counted;
  set.corpus.set(set.items.front().leaf).read(set.items.front().utterance, ids, counted);
  const auto answer = std::find(counted.begin(), counted.end(), 1) - counted.begin();
  const std::vector<std::int32_t> prompt(ids.begin(), ids.begin() + answer);
  if (prompt.empty()) return {};
  auto tokens = Generator(instance).generate(
      prompt, settings_.sample_tokens,
      {.temperature = settings_.sample_temperature, .top_k = settings_.sample_top_k, .seed = seed_},
      counted_by(progress, settings_.sample_tokens));
  if (mesh_.rank() != 0) return {};
  // Control tokens are not entries of the vocabulary.
  const auto end = std::find(tokens.begin() + answer, tokens.end(), corpus_.end_of_turn());
  tokens.erase(end, tokens.end());
  std::erase_if(tokens, [&](std::int32_t id) { return id >= vocabulary_->size(); });
  return vocabulary_->decode(tokens);
}

ChatEvaluationData::ChatEvaluationData(const Deck& deck, const std::string& vocabulary, Mesh& mesh,
                                       Logger& log)
    : block_size_(gpt_of(deck).block_size),
      validation_(deck, kRows,
                  vocabulary.empty()
                      ? 0
                      : hash_of_tokens(Vocabulary::from_json(vocabulary, "the checkpoint")),
                  mesh) {
  if (validation_.sets().empty())
    throw DataError("there is no validation data",
                    "name some with data.val='[\"FOLDER\"]' or data.validation");
  for (const ChatEvalSet& set : validation_.sets())
    if (std::ssize(set.items) < set.all_items)
      log.info("data: validation '{}': {}", set.name, items_text(set));
}

}  // namespace choir
