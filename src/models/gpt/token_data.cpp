#include "src/models/gpt/token_data.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "choir/core/philox.hpp"
#include "choir/run/model_instance.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/text.hpp"
#include "src/data/speech/data_sources.hpp"
#include "src/data/text/token_samples.hpp"
#include "src/models/gpt/family.hpp"
#include "src/models/gpt/generator.hpp"
#include "src/models/gpt/gpt.hpp"
#include "src/models/gpt/gpt_config.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

/// The texts of the shipped decks, which no clone has from the start. The first is a link to the
/// text that `make quickstart` found.
constexpr const char* kQuickstart = "data/quickstart/input.txt";
constexpr const char* kShakespeare = "data/shakespeare/input.txt";
/// The text that `make quickstart` names instead if it cannot download the other one.
constexpr const char* kBible = "data/kjv/input.txt";

/// The numbers of different characters in tiny Shakespeare and of bytes.
constexpr int kShakespeareCharacters = 65, kBytes = 256;

bool is_missing_default(const std::string& path) {
  return (path == kQuickstart || path == kShakespeare) && !fs::exists(path);
}

/// Throws DataError if the deck names the text of the shipped decks and it is not there.
void require_default_corpus(const DataConfig& config) {
  const bool only_sets = config.evaluates && (!config.val.empty() || !config.validation.empty());
  for (const auto* paths : {&config.train, &config.val})
    for (const std::string& path : *paths) {
      if (!is_missing_default(path) || (only_sets && paths == &config.train)) continue;
      const char* const here = fs::exists(kBible)         ? kBible
                               : fs::exists(kShakespeare) ? kShakespeare
                                                          : nullptr;
      const std::string named =
          fmt::format("name {}: 'data.train=[\"{}\"]'",
                      here != nullptr ? "the text that make quickstart took" : "a text of your own",
                      here != nullptr ? here : "my.txt");
      // Only a clone has the Makefile with the targets that get these texts.
      const bool clone = fs::exists("Makefile") && fs::exists(".make/quickstart.sh");
      throw DataError(fmt::format("'{}' is missing, the text of the shipped decks", path),
                      !clone
                          ? named
                          : fmt::format("`make data-{}; or {}",
                                        path == kQuickstart
                                            ? "quickstart` downloads a text or takes one of Debian"
                                            : "shakespeare` downloads it",
                                        named));
    }
}

/// A text with a limit is a pool of its own: no window extends from its end into the next text.
void append_pools(const SpeechPool& pool, std::span<const std::int64_t> limits,
                  std::span<const std::int64_t> lengths, std::vector<TokenPool>& pools) {
  const auto at = [](std::span<const std::int64_t> list, int leaf) {
    return list[static_cast<std::size_t>(leaf)];
  };
  if (std::ranges::none_of(pool.leaves, [&](int leaf) { return at(limits, leaf) > 0; }))
    return pools.push_back({.texts = pool.leaves, .probability = pool.probability});
  double all = 0;
  for (const int leaf : pool.leaves) all += static_cast<double>(at(lengths, leaf));
  for (const int leaf : pool.leaves)
    pools.push_back({.texts = {leaf},
                     .probability = pool.probability * static_cast<double>(at(lengths, leaf)) / all,
                     .limit = at(limits, leaf)});
}

void set_blend(const SpeechMix& mix, DataConfig& config) {
  std::vector<std::int64_t> limits;
  for (const SpeechLeaf& leaf : leaves_of(mix)) {
    const std::string tags = tags_text(leaf.tags);
    config.blend.push_back(leaf.folder);
    config.blend_names.push_back(leaf.folder + (tags.empty() ? "" : ", tags " + tags));
    limits.push_back(leaf.limit);
  }
  config.pools = [mix, limits](std::span<const std::int64_t> tokens) {
    std::vector<std::int64_t> lengths(tokens.begin(), tokens.end());
    for (std::size_t i = 0; i < lengths.size(); ++i)
      if (limits[i] > 0) lengths[i] = std::min(lengths[i], limits[i]);
    std::vector<TokenPool> pools;
    for (const SpeechPool& pool : pools_of(mix, lengths))
      append_pools(pool, limits, lengths, pools);
    return pools;
  };
}

/// The format of files of tokens; `automatic` where their paths decide.
TokenFormat token_format_of(DataFormat format) {
  switch (format) {
    case DataFormat::native:
      return TokenFormat::native;
    case DataFormat::nanogpt:
      return TokenFormat::nanogpt;
    case DataFormat::megatron:
      return TokenFormat::megatron;
    case DataFormat::automatic:
    case DataFormat::text:
    case DataFormat::synthetic:
      break;
  }
  return TokenFormat::automatic;
}

/// True if data.val or data.validation names the validation data.
bool names_validation(const Deck& deck) {
  return !deck.data.val.empty() || !gpt_settings(deck).validation.empty();
}

DataConfig data_config(const Deck& deck, const SpeechMix& mix, std::int64_t rows,
                       const std::string* trained, Logger& log) {
  const DataSection& d = deck.data;
  DataConfig config;
  config.train = d.train;
  config.val = d.val;
  config.synthetic = d.format == DataFormat::synthetic;
  config.format = token_format_of(d.format);
  config.reader.kind = d.reader;
  config.reader.preload = d.preload;
  config.reader.hints = d.hints;
  config.reader.group_ranks = d.readers_every;
  const GptSettings& gpt = gpt_settings(deck);
  if (gpt.tokenizer == "char" || gpt.tokenizer == "byte")
    config.tokenizer = vocabulary_kind_of(gpt.tokenizer);
  else
    config.tokenizer_file = gpt.tokenizer;
  config.text_field = gpt.text_field;
  config.on_the_fly = gpt.on_the_fly;
  config.text_threads = gpt.text_threads;
  config.train_fraction = 1.0 - gpt.val_fraction;
  config.say = [&log](const std::string& line) { log.info("data: {}", line); };
  if (!mix.inputs.empty() && !gpt.input_cfg.empty()) set_blend(mix, config);
  // Global batches, so that the evaluated data depend neither on the micro-batch nor on the number
  // of ranks.
  const std::int64_t batch = std::max(deck.train.global_batch_size, 1);
  for (const auto& [name, text] : gpt.validation) {
    const SpeechEvalSet set = eval_set_of(name, text, kTextEvalWords);
    config.validation.emplace_back(name, set.folders);
    if (set.limit > 0) config.validation_limits[name] = set.limit;
    if (set.batches) config.validation_windows[name] = *set.batches * batch;
  }
  config.block_size = gpt_of(deck).block_size;
  config.rows = rows;
  config.vocab_size = gpt_of(deck).vocab_size;
  config.evaluates = trained != nullptr;
  if (trained != nullptr && !trained->empty()) {
    config.trained_vocabulary = *trained;
    config.vocab_hash = Vocabulary::from_json(*trained, "the checkpoint").hash();
  }
  if (!config.synthetic || deck.given("eval.batches"))
    config.eval_windows = gpt.eval_batches * batch;
  config.slots = deck.data.prefetch + 1;
  config.documents = separates_documents(deck);
  config.document_end = static_cast<std::int32_t>(gpt_settings(deck).document_end);
  config.window = gpt_of(deck).window;
  return config;
}

}  // namespace

std::string replace_missing_text(Deck& deck) {
  if (deck.model.type != "gpt" || deck.data.train.size() != 1 || !deck.data.val.empty() ||
      !is_missing_default(deck.data.train.front()))
    return {};
  const GptSettings& settings = gpt_settings(deck);
  const bool bytes = settings.tokenizer == "byte";
  if ((settings.tokenizer != "char" && !bytes) || !settings.validation.empty() ||
      !settings.input_cfg.empty())
    return {};
  std::int64_t& vocabulary = deck.family().vocab_size(deck);
  const bool assumed = vocabulary == 0;
  if (assumed) vocabulary = bytes ? kBytes : kShakespeareCharacters;
  const std::string text = deck.data.train.front();
  deck.data.train.clear();
  deck.data.format = DataFormat::synthetic;
  return fmt::format("'{}' is missing: random tokens take its place here, with {} vocabulary of {}",
                     text, assumed ? "an assumed" : "the deck's", vocabulary);
}

std::unique_ptr<Dataset> open_data(const Deck& deck, std::int64_t rows, Mesh& mesh, Logger& log,
                                   const std::string* trained) {
  if (gpt_of(deck).packed)
    throw DataError("data.pack = true requires conversations, and these data are none",
                    "'choir prepare chat' prepares conversations; other rows are full already");
  const GptSettings& settings = gpt_settings(deck);
  SpeechMix mix;
  if (trained == nullptr || !names_validation(deck))
    mix = open_blend(mesh.world(), settings.input_cfg, deck.data.train, settings.temperature);
  DataConfig config = data_config(deck, mix, rows, trained, log);
  together(mesh.world(), [&] {
    if (mesh.world().rank() == 0) require_default_corpus(config);
  });
  config.seed = order_seed(deck, mesh);
  config.peers = &mesh.host_peers();
  return Dataset::open(mesh.host_along(Axis::data), config);
}

std::uint64_t order_seed(const Deck& deck, Mesh& mesh) {
  return open_order_seed(mesh.world(), gpt_settings(deck).shard_seed,
                         static_cast<std::uint64_t>(deck.run.seed));
}

MicroBatchOrder micro_batch_order(const Sharding& sharding, std::int64_t mine,
                                  std::int64_t first_sample) {
  return {.first_sample = first_sample,
          .per_step = mine * sharding.data_ranks(),
          .rank_offset = sharding.first_micro_batch(mine),
          .per_rank = mine,
          .stride = sharding.micro_batch_stride()};
}

ModelBatch token_batch(const Batch& batch) {
  const std::int64_t n = batch.inputs.count();
  ModelBatch made = token_batch(batch.inputs.shape[0], batch.inputs.reshaped({n}),
                                batch.targets.reshaped({n}), batch.first_sample);
  if (!batch.begins.empty())
    add_documents(made, batch.begins.reshaped({n}), batch.positions.reshaped({n}));
  if (batch.resident_inputs == nullptr) return made;
  BatchField& inputs = made.fields()[0];
  inputs.resident = batch.resident_inputs;
  inputs.resident_padding = batch.resident_input_padding;
  BatchField& targets = made.fields()[1];
  targets.resident = batch.resident_targets;
  targets.resident_padding = batch.resident_target_padding;
  return made;
}

std::string TokenMeaning::describe(const Scores& scores, Validation& to) const {
  // With a z-loss, the cross-entropy is the first of the metrics.
  to.perplexity = std::exp(to.metrics.empty() ? to.loss : to.metrics.front().second);
  to.counts = {{counted_, scores.count(kTargetsCounter)}};
  return {};
}

void TokenScorer::score(int set, std::int64_t call, SetSums& sums) {
  const Batch& batch = data_.eval_batch(call, set);
  if (sums.leaves_out(batch.valid == 0)) return;
  sums.add_losses(instance_.loss_sums(token_batch(batch)));
  sums.add(kTargetsCounter, batch.valid);
}

double validation_loss(ModelInstance& instance, Dataset& data) {
  TokenScorer scorer(instance, data);
  return evaluate_sets(instance, scorer, nullptr).sets.front().loss;
}

namespace {

double document_flops(const Gpt& gpt, const DocumentCounts& counts, double tokens) {
  return gpt.document_flops(tokens, static_cast<double>(counts.pairs),
                            static_cast<double>(counts.window_pairs));
}

}  // namespace

TokenTrainingData::TokenTrainingData(const Deck& deck, const BatchSizes& batch, Mesh& mesh,
                                     Logger& log)
    : settings_(gpt_settings(deck)),
      seed_(static_cast<std::uint64_t>(deck.run.seed)),
      block_size_(gpt_of(deck).block_size),
      batch_(batch),
      mesh_(mesh),
      log_(log),
      data_(open_data(deck, batch.micro, mesh, log)) {}

std::string TokenTrainingData::vocabulary_json() const {
  const Vocabulary* vocabulary = data_->vocabulary();
  return vocabulary ? vocabulary->to_json() : "";
}

void TokenTrainingData::require_resumable(std::int64_t consumed_samples) const {
  if (consumed_samples % batch_.micro == 0) return;
  throw DeckError(
      fmt::format(
          "the checkpoint has used {} sequences, which is no multiple of the micro-batch size {}",
          consumed_samples, batch_.micro),
      "use the previous train.micro_batch_size, or a divisor of it");
}

void TokenTrainingData::start_training(const Sharding& sharding, std::int64_t per_rank,
                                       const Position& from) {
  first_step_ = from.step;
  data_->start_training(micro_batch_order(sharding, per_rank, from.consumed_samples));
}

void TokenTrainingData::add_resident(MemoryPlan& plan, const Device* device) const {
  const std::size_t bytes = data_->resident_bytes(device == nullptr || device->host_visible());
  if (bytes > 0) plan.add(kResident, bytes);
}

ModelBatch TokenTrainingData::next() {
  const Batch& batch = data_->next();
  CHOIR_CHECK(separates() || batch.valid == batch.targets.count(), "a training window of {} tokens",
              batch.valid);
  return token_batch(batch);
}

StepContent TokenTrainingData::content(std::int64_t step, const Model& model) {
  if (separates()) {
    const DocumentCounts& counts = data_->step_contents(step - first_step_);
    return {.samples = static_cast<double>(batch_.global),
            .targets = static_cast<double>(counts.targets),
            .flops = document_flops(dynamic_cast<const Gpt&>(model), counts,
                                    static_cast<double>(batch_.global * block_size_))};
  }
  const ByTerm of_micro_batch = static_cast<double>(batch_.micro * block_size_);
  return {.samples = static_cast<double>(batch_.global),
          .targets = static_cast<double>(batch_.global * block_size_),
          .micro_batch_targets =
              std::vector<ByTerm>(static_cast<std::size_t>(batch_.micro_batches()), of_micro_batch),
          .flops = model.flops({.samples = batch_.global, .tokens = block_size_})};
}

// The ranks that share layers with rank 0 generate together with it.
std::string TokenTrainingData::sample(ModelInstance& instance, ProgressLine* progress) {
  if (settings_.sample_tokens == 0) return {};
  // If parameters are sharded, all ranks run the model to provide them.
  const bool all_walk = instance.storage().sharding().values_sharded();
  const bool first =
      mesh_.coordinates()[Axis::data] == 0 && mesh_.coordinates()[Axis::context] == 0;
  if (!first && !all_walk) return {};
  const Vocabulary* vocabulary = data_->vocabulary();
  if (vocabulary == nullptr) return {};
  std::vector<std::int32_t> prompt;
  try {
    prompt = vocabulary->encode(settings_.sample_prompt, "eval.sample_prompt");
  } catch (const DataError& error) {
    if (mesh_.rank() == 0) log_.warn("no text sample: {}", error.what());
    return {};
  }
  auto tokens = Generator(instance).generate(
      std::move(prompt), settings_.sample_tokens,
      {.temperature = settings_.sample_temperature, .top_k = settings_.sample_top_k, .seed = seed_},
      counted_by(progress, settings_.sample_tokens));
  // A model may have more ids than its vocabulary has entries, as room for control tokens.
  std::erase_if(tokens, [&](std::int32_t id) { return id >= vocabulary->size(); });
  return mesh_.rank() == 0 ? vocabulary->decode(tokens) : "";
}

TokenEvaluationData::TokenEvaluationData(const Deck& deck, const std::string& vocabulary,
                                         Mesh& mesh, Logger& log)
    : block_size_(gpt_of(deck).block_size), data_(open_data(deck, kRows, mesh, log, &vocabulary)) {
  if (!data_->has_validation())
    throw DataError("there is no validation data",
                    "name some with data.val='[\"FILE\"]' or data.validation");
  if (const std::string part = data_->evaluated_part(); !part.empty()) log.info("data: {}", part);
}

std::vector<BatchShape> TokenEvaluationData::shapes() const {
  return {{.samples = kRows, .tokens = block_size_}};
}

std::int64_t matmul_weights(const GptConfig& c) {
  const double blocks =
      c.over_layers([&](const LayerKind& kind) { return c.matrix_weights(kind); });
  return static_cast<std::int64_t>(blocks) + c.vocab_size * c.n_embd;
}

StepWork step_work(const GptConfig& c, const Precision& precision, std::int64_t sequences,
                   std::int64_t parameters) {
  const auto tokens = static_cast<double>(sequences * c.block_size);
  double pairs = c.over_layers([&](const LayerKind& kind) { return c.visible_pairs(kind); });
  pairs *= static_cast<double>(sequences * c.n_head);
  StepWork work = update_work(precision, parameters);
  work.gemm_flops = 6.0 * static_cast<double>(matmul_weights(c)) * tokens;
  work.attention_flops = 12.0 * static_cast<double>(c.head_width()) * pairs;
  return work;
}

TokenBenchBatches::TokenBenchBatches(const Deck& deck, const BatchSizes& batch, Mesh& mesh,
                                     Logger& log)
    : data_(open_data(deck, batch.micro, mesh, log)),
      batch_(batch),
      tokens_(static_cast<double>(batch.global * gpt_of(deck).block_size)),
      documents_(separates_documents(deck)) {}

void TokenBenchBatches::start(const Sharding& sharding) {
  micro_batches_ = 0;
  data_->start_training(micro_batch_order(sharding, batch_.accum, 0));
}

ModelBatch TokenBenchBatches::micro_batch(std::int64_t, std::int64_t) {
  ++micro_batches_;
  return token_batch(data_->next());
}

ByTerm TokenBenchBatches::targets(std::int64_t step) const {
  if (!documents_) return tokens_;
  // Probes of the gradient noise leave out steps of the schedule, but no step of the data.
  const std::int64_t next = micro_batches_ / batch_.accum;
  return static_cast<double>(data_->step_contents(std::min(step, next)).targets);
}

ByTerm TokenBenchBatches::repeated_targets(std::int64_t step, const ModelBatch& one) const {
  if (!documents_) return targets(step);
  const TensorView& targets = one["targets"];
  const auto* first = targets.as<std::int32_t>();
  const auto counted = targets.count() - std::count(first, first + targets.count(), kIgnoredTarget);
  return static_cast<double>(counted * batch_.micro_batches());
}

double TokenBenchBatches::flops(std::int64_t step, ModelInstance& instance) const {
  if (documents_) return document_flops(instance.as<Gpt>(), data_->step_contents(step), tokens_);
  return instance.as<Gpt>().flops_per_token() * tokens_;
}

StepWork TokenBenchBatches::work(const EngineOptions& options, ModelInstance& instance,
                                 double parts) const {
  StepWork work = step_work(options.model.as<GptConfig>(), options.precision,
                            batch_.micro * batch_.accum, instance.storage().slices_size());
  if (documents_) {
    // The share of all pairs of query and key that the documents of the first step leave.
    const Gpt& gpt = instance.as<Gpt>();
    const double all = gpt.flops({.samples = batch_.global, .tokens = gpt.config().block_size});
    const double products = gpt.document_flops(tokens_, 0, 0);
    work.attention_flops *=
        (document_flops(gpt, data_->step_contents(0), tokens_) - products) / (all - products);
  }
  work.gemm_flops /= parts;
  work.attention_flops /= parts;
  return work;
}

SyntheticTokens::SyntheticTokens(std::uint64_t seed, std::int64_t rows, std::int64_t tokens,
                                 std::int64_t vocabulary, bool packed)
    : tokens_key_(philox_key(seed, "verify tokens")),
      length_key_(philox_key(seed, "verify lengths")),
      documents_key_(philox_key(seed, "verify documents")),
      rows_(rows),
      tokens_(tokens),
      vocabulary_(vocabulary),
      inputs_(static_cast<std::size_t>(rows * tokens)),
      targets_(inputs_.size()),
      begins_(packed ? inputs_.size() : 0),
      positions_(begins_.size()) {}

std::int64_t SyntheticTokens::length(std::int64_t sample) const {
  const PhiloxBlock word = philox_at(length_key_, static_cast<std::uint64_t>(sample));
  return static_cast<std::int64_t>(word[0] % static_cast<std::uint64_t>(tokens_ + 1));
}

void SyntheticTokens::write_documents(std::int64_t sample, std::int64_t row) {
  constexpr std::uint32_t kUsualTokens = 5;
  std::int32_t begin = 0;
  for (std::int64_t t = 0; t < tokens_; ++t) {
    const PhiloxBlock word = philox_at(documents_key_, static_cast<std::uint64_t>(sample),
                                       static_cast<std::uint64_t>(t));
    if (word[0] % kUsualTokens == 0) begin = static_cast<std::int32_t>(t);
    const auto at = static_cast<std::size_t>(row * tokens_ + t);
    begins_[at] = begin;
    positions_[at] = static_cast<std::int32_t>(t) - begin;
  }
}

ModelBatch SyntheticTokens::micro_batch(std::int64_t index) {
  const auto token = [&](std::int64_t sample, std::int64_t position) {
    const PhiloxBlock word = philox_at(tokens_key_, static_cast<std::uint64_t>(sample),
                                       static_cast<std::uint64_t>(position));
    return static_cast<std::int32_t>(word[0] % static_cast<std::uint64_t>(vocabulary_));
  };
  const std::int64_t first = index * rows_;
  for (std::int64_t row = 0; row < rows_; ++row) {
    const std::int64_t counted = length(first + row);
    if (!begins_.empty()) write_documents(first + row, row);
    for (std::int64_t t = 0; t < tokens_; ++t) {
      const auto at = static_cast<std::size_t>(row * tokens_ + t);
      inputs_[at] = token(first + row, t);
      targets_[at] = t < counted ? token(first + row, t + 1) : kIgnoredTarget;
    }
  }
  const Shape shape{rows_ * tokens_};
  ModelBatch batch = token_batch(rows_, {inputs_.data(), DType::i32, shape},
                                 {targets_.data(), DType::i32, shape}, first);
  if (!begins_.empty())
    add_documents(batch, {begins_.data(), DType::i32, shape},
                  {positions_.data(), DType::i32, shape});
  return batch;
}

std::int64_t SyntheticTokens::valid(std::int64_t first, std::int64_t count) const {
  std::int64_t sum = 0;
  for (std::int64_t sample = first; sample < first + count; ++sample) sum += length(sample);
  return sum;
}

}  // namespace choir
