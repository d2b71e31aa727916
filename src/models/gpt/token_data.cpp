#include "choir/models/gpt/token_data.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "choir/comm/agreement.hpp"
#include "choir/core/run_program.hpp"
#include "choir/core/text.hpp"
#include "choir/data/speech/blend_source.hpp"
#include "choir/models/gpt/gpt_settings.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

constexpr const char* kShakespeare = "data/shakespeare/input.txt";
constexpr const char* kBible = "data/kjv/input.txt";

/// One verse a line, without the reference that `bible` prints before it. Returns "" if the program
/// is not installed.
std::string read_bible() {
  std::string verses;
  try {
    verses = run_program({"bible", "-f", "Gen1:1-Rev22:21"}, "bible-kjv");
  } catch (const DataError&) {
    return "";
  }
  std::string text;
  for (std::size_t at = 0; at < verses.size();) {
    const std::size_t end = std::min(verses.find('\n', at), verses.size() - 1) + 1;
    const std::string verse = verses.substr(at, end - at);
    text += verse.substr(verse.find(' ') + 1);
    at = end;
  }
  return text;
}

void write_bible() {
  const std::string text = read_bible();
  if (text.empty())
    throw DataError(
        fmt::format("'{}' is missing, and there is no bible-kjv to replace it", kShakespeare),
        "`make data-shakespeare` downloads it; or name your own text: "
        "'data.train=[\"my.txt\"]'");
  fs::create_directories(fs::path(kBible).parent_path());
  const std::string fresh = std::string(kBible) + ".new";
  std::ofstream file(fresh, std::ios::trunc);
  file << text;
  if (!file.flush()) throw StorageError("cannot write '" + fresh + "'", "is the disk full?");
  fs::rename(fresh, kBible);
}

/// The text that the shipped decks train on by default: data/shakespeare/input.txt if it exists,
/// else data/kjv/input.txt, written once by the `bible` program of Debian's bible-kjv. Collective
/// over `world`: rank 0 looks and, if necessary, writes. DataError if there is neither.
std::string default_corpus(Communicator& world, Logger& log) {
  int shakespeare = 0;
  together(world, [&] {
    if (world.rank() != 0) return;
    shakespeare = fs::exists(kShakespeare);
    if (!shakespeare && !fs::exists(kBible)) write_bible();
  });
  world.broadcast(&shakespeare, sizeof shakespeare, 0);
  if (!shakespeare)
    log.info("data: no {}: training on the King James Bible ({})", kShakespeare, kBible);
  return shakespeare ? kShakespeare : kBible;
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

DataConfig data_config(const Deck& deck, const SpeechMix& mix, std::int64_t rows,
                       std::uint64_t vocab_hash, Logger& log) {
  const DataSection& d = deck.data;
  DataConfig config;
  config.train = d.train;
  config.val = d.val;
  config.synthetic = d.format == "synthetic";
  const bool decided_by_path = config.synthetic || d.format == "auto" || d.format == "text";
  config.format = decided_by_path ? TokenFormat::automatic : token_format_of(d.format);
  config.reader.kind = reader_kind_of(d.reader);
  config.reader.preload = preload_of(d.preload);
  config.reader.hints = d.hints;
  config.reader.group_ranks = d.readers_every;
  config.tokenizer = vocabulary_kind_of(gpt_settings(deck).tokenizer);
  config.train_fraction = 1.0 - gpt_settings(deck).val_fraction;
  config.say = [&log](const std::string& line) { log.info("data: {}", line); };
  const GptSettings& gpt = gpt_settings(deck);
  if (!gpt.input_cfg.empty()) set_blend(mix, config);
  for (const auto& [name, text] : gpt.validation) {
    const SpeechEvalSet set = eval_set_of(name, text, EvalWords{});
    config.validation.emplace_back(name, set.folders);
    if (set.limit > 0) config.validation_limits[name] = set.limit;
  }
  config.block_size = gpt_of(deck).block_size;
  config.rows = rows;
  config.vocab_size = gpt_of(deck).vocab_size;
  config.vocab_hash = vocab_hash;
  // Global batches, so that the evaluated data depend neither on the micro-batch nor on the number
  // of ranks.
  config.eval_windows =
      static_cast<std::int64_t>(gpt_settings(deck).eval_batches) * deck.train.global_batch_size;
  config.slots = deck.data.prefetch + 1;
  return config;
}

}  // namespace

std::unique_ptr<Dataset> open_data(const Deck& deck, std::int64_t rows, Mesh& mesh, Logger& log,
                                   std::uint64_t vocab_hash) {
  if (gpt_of(deck).packed)
    throw DataError("data.pack = true requires conversations, and these data are none",
                    "'choir prepare chat' prepares conversations; other rows are full already");
  const GptSettings& settings = gpt_settings(deck);
  const SpeechMix mix =
      open_blend(mesh.world(), settings.input_cfg, deck.data.train, settings.temperature);
  DataConfig config = data_config(deck, mix, rows, vocab_hash, log);
  for (auto* paths : {&config.train, &config.val})
    for (std::string& path : *paths)
      if (path == kDefaultCorpus) path = default_corpus(mesh.world(), log);
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
  return made;
}

namespace {

struct LossSum {
  double loss = 0, tokens = 0;
};

LossSum loss_sum(ModelInstance& instance, Dataset& data, int set, Mesh& mesh,
                 ProgressLine* progress) {
  const Communicator& ranks = mesh.host_along(Axis::data);
  Communicator& stages = mesh.host_along(Axis::pipeline);
  // Only one of the ranks that share a batch counts its tokens.
  const bool counts = stages.rank() == 0 && mesh.coordinates()[Axis::context] == 0;
  const auto calls = static_cast<std::size_t>(data.eval_calls(set));
  const auto size = static_cast<std::size_t>(ranks.size());
  // One entry per micro-batch, zero on the other ranks: the order of summation is that of the data.
  std::vector<double> sums(2 * calls * size, 0.0);
  for (std::size_t c = 0; c < calls; ++c) {
    const Batch& batch = data.eval_batch(static_cast<std::int64_t>(c), set);
    if (progress != nullptr)
      progress->at(static_cast<std::int64_t>(c), static_cast<std::int64_t>(calls));
    // A rank without a batch of its own still provides its part of the parameters to the others.
    if (batch.valid == 0 && !instance.storage().sharding().values_sharded()) continue;
    const std::size_t at = 2 * (c * size + static_cast<std::size_t>(ranks.rank()));
    sums[at] = instance.loss_sum(token_batch(batch));
    sums[at + 1] = counts ? static_cast<double>(batch.valid) : 0;
  }
  for (Communicator* all : {&mesh.host_replicas(), &stages})
    all->all_reduce(sums.data(), sums.size(), DType::f64, ReduceOp::sum);
  LossSum sum;
  for (std::size_t i = 0; i < sums.size(); i += 2) sum.loss += sums[i], sum.tokens += sums[i + 1];
  return sum;
}

}  // namespace

std::vector<Validation> validations(ModelInstance& instance, Dataset& data, Mesh& mesh,
                                    ProgressLine* progress) {
  std::vector<Validation> made;
  LossSum all;
  for (int set = 0; set < data.eval_sets(); ++set) {
    const LossSum sum = loss_sum(instance, data, set, mesh, progress);
    all.loss += sum.loss, all.tokens += sum.tokens;
    made.push_back({.name = data.eval_name(set), .loss = sum.loss / sum.tokens, .metrics = {}});
  }
  if (made.size() == 1) made.front().name.clear();
  if (made.size() > 1)
    made.insert(made.begin(), {.name = "", .loss = all.loss / all.tokens, .metrics = {}});
  return made;
}

double validation_loss(ModelInstance& instance, Dataset& data, Mesh& mesh, ProgressLine* progress) {
  return validations(instance, data, mesh, progress).front().loss;
}

}  // namespace choir
