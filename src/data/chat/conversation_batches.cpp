#include "src/data/chat/conversation_batches.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/core/hash.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/data/chat/splice.hpp"
#include "src/data/read_ahead.hpp"

namespace choir {
namespace {

const SpeechFrames kRows{.hop = 1, .stages = 0};  // lengths are rows instead of samples

struct BatchLimits {
  SpeechFrames frames;
  std::vector<ConversationShape> shapes;
};

/// Reads clips from the shards of a corpus and keeps the files open.
class ClipReader {
 public:
  explicit ClipReader(const ConversationCorpus& corpus) : corpus_(corpus) {}

  void read(int leaf, const ClipOfFile& clip, std::uint16_t* to) {
    const AudioCatalog& catalog = *corpus_.catalog(leaf);
    const AudioCatalog::Utterance& utterance = catalog[clip.utterance];
    const auto key = std::pair(leaf, utterance.shard);
    auto file = files_.find(key);
    if (file == files_.end())
      file = files_.emplace(key, PosixFile::for_reading(catalog.shard_path(utterance.shard))).first;
    const auto bytes = static_cast<std::size_t>(utterance.samples) * sizeof *to;
    file->second.read_at(to, bytes, AudioCatalog::kHeaderBytes + utterance.first * 2);
    if (crc32c(to, bytes) != utterance.crc)
      throw DataError(
          fmt::format("the audio of clip {} of '{}' is damaged", clip.utterance, catalog.folder()),
          "make it again with 'choir prepare chat'");
  }

 private:
  const ConversationCorpus& corpus_;
  std::map<std::pair<int, std::int32_t>, PosixFile> files_;
};

/// Buffers of one micro-batch.
class BatchMemory {
 public:
  explicit BatchMemory(const BatchLimits& limits) : frames_(limits.frames) {
    std::size_t audio = 0, clips = 0, cells = 0, rows = 0;
    for (const ConversationShape& shape : limits.shapes) {
      audio = std::max(audio, static_cast<std::size_t>(shape.clips * shape.samples));
      clips = std::max(clips, static_cast<std::size_t>(shape.clips));
      cells = std::max(cells, static_cast<std::size_t>(shape.rows * shape.tokens));
      rows = std::max(rows, static_cast<std::size_t>(shape.rows));
    }
    audio_.reserve(audio);
    splice_.splice.reserve(cells);
    splice_.targets.reserve(cells);
    splice_.lengths.reserve(rows);
    clip_ids_.reserve(clips);
  }

  void fill(std::span<const SpeechRow> drawn, const ConversationCorpus& corpus,
            ClipReader& reader) {
    drawn_.assign(drawn.begin(), drawn.end());
    collect(corpus);
    const std::int64_t samples = frames_.padded(longest_);
    batch.clips = std::max<std::int64_t>(std::ssize(clips_), 1);
    batch.clip_rows = frames_.rows(samples);
    std::vector<SpliceRow> rows;
    for (std::size_t b = 0; b < drawn_.size(); ++b)
      rows.push_back({std::span(ids_).subspan(begins_[b], begins_[b + 1] - begins_[b]),
                      std::span(counted_).subspan(begins_[b], begins_[b + 1] - begins_[b]),
                      std::span(clip_samples_)
                          .subspan(clip_begins_[b], clip_begins_[b + 1] - clip_begins_[b])});
    if (rows.empty()) rows.push_back({});  // a row of padding
    make_splice(rows, {.frames = frames_, .padded_rows = batch.clip_rows}, splice_);
    batch.rows = splice_.rows;
    batch.tokens = splice_.tokens;
    batch.counted = splice_.counted;
    lay_out_audio(samples, reader);
    set_views(samples);
  }
  std::size_t bytes() const {
    return audio_.capacity() * 2 + (splice_.splice.capacity() + splice_.targets.capacity()) * 4;
  }

  ConversationBatch batch;
  SpeechCursor after;

 private:
  struct Clip {
    int leaf;
    ClipOfFile clip;
  };

  void collect(const ConversationCorpus& corpus) {
    ids_.clear(), counted_.clear(), clips_.clear(), clip_samples_.clear(), clip_ids_.clear();
    conversation_ids_.clear();
    begins_.assign(1, 0), clip_begins_.assign(1, 0);
    longest_ = 0;
    batch.audio_samples = 0;
    for (const SpeechRow& row : drawn_) {
      const ConversationSet& set = corpus.set(row.item.leaf);
      set.read(row.item.utterance, ids_, counted_);
      const std::int64_t id = (row.epoch << 40) ^ (std::int64_t{row.item.leaf} << 32) ^
                              std::int64_t{row.item.utterance};
      conversation_ids_.push_back(id);
      std::int64_t number = 0;
      for (const ClipOfFile& clip : set.clips(row.item.utterance)) {
        clips_.push_back({row.item.leaf, clip});
        clip_samples_.push_back(clip.samples);
        clip_ids_.push_back(id ^ (number++ << 56));
        longest_ = std::max<std::int64_t>(longest_, clip.samples);
        batch.audio_samples += clip.samples;
      }
      begins_.push_back(ids_.size());
      clip_begins_.push_back(clips_.size());
    }
    if (conversation_ids_.empty()) conversation_ids_.push_back(0);
    if (clip_ids_.empty()) clip_ids_.push_back(0);
  }

  void lay_out_audio(std::int64_t samples, ClipReader& reader) {
    const auto n = static_cast<std::size_t>(batch.clips);
    audio_.assign(n * static_cast<std::size_t>(samples), 0);
    audio_lengths_.assign(n, 0);
    frame_lengths_.assign(static_cast<std::size_t>(frames_.stages + 1) * n, 0);
    for (std::size_t c = 0; c < clips_.size(); ++c) {
      const std::int64_t length = clips_[c].clip.samples;
      reader.read(clips_[c].leaf, clips_[c].clip,
                  audio_.data() + c * static_cast<std::size_t>(samples));
      audio_lengths_[c] = static_cast<std::int32_t>(length);
      for (int stage = 0; stage <= frames_.stages; ++stage)
        frame_lengths_[static_cast<std::size_t>(stage) * n + c] =
            static_cast<std::int32_t>(frames_.after(stage, length));
    }
  }

  void set_views(std::int64_t samples) {
    const std::int64_t n = batch.clips, b = batch.rows, cells = batch.rows * batch.tokens;
    batch.audio = {audio_.data(), DType::u16, {n, samples}};
    batch.audio_lengths = {audio_lengths_.data(), DType::i32, {n}};
    batch.frame_lengths = {frame_lengths_.data(), DType::i32, {frames_.stages + 1, n}};
    batch.clip_ids = {clip_ids_.data(), DType::i64, {n}};
    batch.splice = {splice_.splice.data(), DType::i32, {cells}};
    batch.targets = {splice_.targets.data(), DType::i32, {cells}};
    batch.lengths = {splice_.lengths.data(), DType::i32, {b}};
    batch.conversation_ids = {conversation_ids_.data(), DType::i64, {b}};
    batch.drawn = drawn_;
  }

  SpeechFrames frames_;
  std::vector<SpeechRow> drawn_;
  std::vector<std::int32_t> ids_, audio_lengths_, frame_lengths_;
  std::vector<std::uint8_t> counted_;
  std::vector<std::size_t> begins_, clip_begins_;
  std::vector<Clip> clips_;
  std::vector<std::int64_t> clip_samples_, clip_ids_, conversation_ids_;
  std::vector<std::uint16_t> audio_;
  Splice splice_;
  std::int64_t longest_ = 0;
};

class TrainingSlots final : public SlotSource {
 public:
  TrainingSlots(const ConversationCorpus& corpus, const SpeechSampler& sampler,
                const BatchLimits& limits, const SpeechOrder& order, int slots)
      : corpus_(corpus),
        reader_(corpus),
        order_(order),
        steps_(sampler, order.from, order.micro_batches) {
    for (int i = 0; i < slots; ++i) slots_.push_back(std::make_unique<BatchMemory>(limits));
  }
  void fill(std::int64_t call, int slot) override {
    const std::int64_t place = call % order_.places;
    if (place == 0) steps_.next(step_);
    BatchMemory& to = *slots_[static_cast<std::size_t>(slot)];
    const std::int64_t j = order_.first + place * order_.stride;
    to.fill(j < order_.micro_batches ? step_.micro_batch(j) : std::span<const SpeechRow>(), corpus_,
            reader_);
    to.after = step_.after;
    to.batch.after = &to.after;
    to.batch.step = call / order_.places;
    to.batch.micro_batch = j;
    to.batch.step_targets = step_.targets;
  }
  void abandon() override {}
  const ConversationBatch& batch(int slot) const {
    return slots_[static_cast<std::size_t>(slot)]->batch;
  }
  std::size_t bytes() const { return slots_.size() * slots_.front()->bytes(); }

 private:
  const ConversationCorpus& corpus_;
  ClipReader reader_;
  SpeechOrder order_;
  SpeechSteps steps_;
  SpeechStep step_;
  std::vector<std::unique_ptr<BatchMemory>> slots_;
};

SpeechBuckets buckets_of(const ConversationConfig& config,
                         const std::vector<SpeechLength>& lengths) {
  SpeechBucketOptions options;
  options.batch_duration = static_cast<double>(config.batch_tokens);
  options.max_samples = config.max_conversations;
  options.buckets = config.buckets;
  return {options, 1, lengths};
}

std::vector<SpeechLength> lengths_of(const std::vector<SpeechPoolItems>& pools) {
  std::vector<SpeechLength> lengths;
  for (const SpeechPoolItems& pool : pools)
    for (const SpeechItem& item : pool.items)
      lengths.push_back(
          {item.samples, item.labels, pool.probability / static_cast<double>(pool.items.size())});
  return lengths;
}

/// The shapes of the corpus, one for each bucket.
std::vector<ConversationShape> shapes_of(const ConversationCorpus& corpus,
                                         const SpeechBuckets& buckets, const SpeechFrames& frames,
                                         std::span<const SpeechLength> lengths) {
  std::vector<ConversationShape> shapes;
  std::vector<std::int64_t> most_clips(static_cast<std::size_t>(buckets.count()), 0);
  std::vector<std::int64_t> longest(most_clips.size(), 0);
  for (int leaf = 0; leaf < corpus.folders(); ++leaf)
    for (const SpeechItem& item : corpus.items(leaf)) {
      const auto bucket = static_cast<std::size_t>(buckets.of(item.samples, item.labels));
      const auto clips = corpus.set(leaf).clips(item.utterance);
      most_clips[bucket] = std::max<std::int64_t>(most_clips[bucket], std::ssize(clips));
      for (const ClipOfFile& clip : clips)
        longest[bucket] = std::max<std::int64_t>(longest[bucket], clip.samples);
    }
  for (const SpeechShape& shape : buckets.shapes(lengths, kRows)) {
    const auto bucket = static_cast<std::size_t>(buckets.of(shape.samples, shape.labels));
    shapes.push_back({shape.utterances, shape.samples,
                      std::max<std::int64_t>(shape.utterances * most_clips[bucket], 1),
                      frames.padded(longest[bucket])});
  }
  return shapes;
}

}  // namespace

struct ConversationBatches::State {
  struct EvalSet {
    std::string name;
    ConversationCorpus corpus;
    std::vector<SpeechRow> rows;
    std::vector<std::size_t> begins;  // first row of each micro-batch, and the end
    std::int64_t targets = 0;
    BatchLimits limits;
    std::unique_ptr<BatchMemory> memory;
    std::unique_ptr<ClipReader> reader;
  };

  ConversationConfig config;
  int rank = 0, ranks = 1;
  std::optional<ConversationCorpus> corpus;
  std::optional<SpeechSampler> sampler;
  SpeechPadding padding;
  std::vector<SpeechSource> sources;
  BatchLimits limits;
  std::vector<std::unique_ptr<EvalSet>> eval;
  std::vector<ConversationShape> eval_shapes;
  TrainingSlots* slots = nullptr;  // owned by `ahead`
  std::unique_ptr<ReadAhead> ahead;

  ConversationCorpusOptions options(const std::string& what) const {
    return {.frames = config.frames,
            .sample_rate = config.sample_rate,
            .max_rows = config.max_tokens > 0 ? config.max_tokens : config.batch_tokens,
            .vocab_size = config.vocab_size,
            .vocab_hash = config.vocab_hash != 0 ? config.vocab_hash
                          : corpus               ? corpus->vocab_hash()
                                                 : 0,
            .what = what};
  }
  void open_training(Communicator& world);
  void open_set(Communicator& world, const SpeechEvalSet& asked);
};

void ConversationBatches::State::open_training(Communicator& world) {
  const std::vector<SpeechLeaf> leaves = leaves_of(config.train);
  corpus = ConversationCorpus::load(world, leaves, options("the training data"));
  const auto pools = corpus->pools(config.train);
  const auto lengths = lengths_of(pools);
  sampler.emplace(SpeechBlend(pools, config.order_seed), buckets_of(config, lengths), config.window,
                  config.order_seed);
  padding = measure_padding(*sampler, kRows);
  sources = sources_of(leaves, sampler->blend(), 1);
  limits = {config.frames, shapes_of(*corpus, sampler->buckets(), config.frames, lengths)};
}

// The longest come first, so that neighbours have similar lengths; the order depends on the set
// alone.
void ConversationBatches::State::open_set(Communicator& world, const SpeechEvalSet& asked) {
  auto set = std::make_unique<EvalSet>();
  set->name = asked.name;
  const std::vector<SpeechLeaf> leaves = leaves_of(asked);
  set->corpus = ConversationCorpus::load(world, leaves,
                                         options(fmt::format("validation set '{}'", asked.name)));
  set->corpus.keep_durations(asked.filter.min_duration, asked.filter.max_duration);
  if (set->corpus.conversations() == 0)
    throw DataError(
        fmt::format("validation set '{}' has no conversation with {} to {} s of audio", asked.name,
                    asked.filter.min_duration, asked.filter.max_duration),
        fmt::format("change min_duration and max_duration of data.validation.{}", asked.name));
  set->corpus.limit(asked.limit);
  for (int leaf = 0; leaf < set->corpus.folders(); ++leaf)
    for (const SpeechItem& item : set->corpus.items(leaf)) {
      set->rows.push_back({item, 0});
      set->targets += item.labels;
    }
  std::stable_sort(set->rows.begin(), set->rows.end(), [](const SpeechRow& a, const SpeechRow& b) {
    return a.item.samples > b.item.samples;
  });
  set->begins = {0};
  for (std::size_t i = 1; i <= set->rows.size(); ++i) {
    const std::size_t begin = set->begins.back();
    const auto n = static_cast<std::int64_t>(i - begin);
    const std::int64_t longest = std::max(set->rows[begin].item.samples, 1);
    const bool full = (n + 1) * longest > config.batch_tokens ||
                      (config.max_conversations > 0 && n == config.max_conversations);
    if (full || i == set->rows.size()) set->begins.push_back(i);
  }
  set->limits.frames = config.frames;
  for (std::size_t b = 0; b + 1 < set->begins.size(); ++b) {
    ConversationShape shape{.rows = static_cast<std::int64_t>(set->begins[b + 1] - set->begins[b])};
    for (std::size_t i = set->begins[b]; i < set->begins[b + 1]; ++i) {
      const SpeechItem& item = set->rows[i].item;
      shape.tokens = std::max<std::int64_t>({shape.tokens, item.samples, 1});
      for (const ClipOfFile& clip : set->corpus.set(item.leaf).clips(item.utterance)) {
        ++shape.clips;
        shape.samples = std::max<std::int64_t>(shape.samples, clip.samples);
      }
    }
    shape.clips = std::max<std::int64_t>(shape.clips, 1);
    shape.samples = config.frames.padded(shape.samples);
    set->limits.shapes.push_back(shape);
  }
  eval_shapes.insert(eval_shapes.end(), set->limits.shapes.begin(), set->limits.shapes.end());
  set->memory = std::make_unique<BatchMemory>(set->limits);
  set->reader = std::make_unique<ClipReader>(set->corpus);
  eval.push_back(std::move(set));
}

std::unique_ptr<ConversationBatches> ConversationBatches::open(Communicator& world, int rank,
                                                               int ranks,
                                                               const ConversationConfig& config) {
  CHOIR_CHECK(rank >= 0 && rank < ranks, "rank {} of {}", rank, ranks);
  auto state = std::make_unique<State>();
  state->config = config;
  state->rank = rank;
  state->ranks = ranks;
  if (!config.train.inputs.empty()) state->open_training(world);
  for (const SpeechEvalSet& set : config.eval) state->open_set(world, set);
  if (!state->corpus && state->eval.empty())
    throw DeckError("there are no conversations", "specify folders in data.train or data.val");
  return std::unique_ptr<ConversationBatches>(new ConversationBatches(std::move(state)));
}

ConversationBatches::ConversationBatches(std::unique_ptr<State> state) : state_(std::move(state)) {}
ConversationBatches::~ConversationBatches() = default;

const ConversationCorpus& ConversationBatches::corpus() const {
  return state_->corpus ? *state_->corpus : state_->eval.front()->corpus;
}
const SpeechSampler& ConversationBatches::sampler() const {
  CHOIR_CHECK(state_->sampler.has_value(), "there is no training data");
  return *state_->sampler;
}
const std::vector<ConversationShape>& ConversationBatches::shapes() const {
  return state_->limits.shapes;
}
const std::vector<ConversationShape>& ConversationBatches::eval_shapes() const {
  return state_->eval_shapes;
}

std::string ConversationBatches::to_string() const {
  const State& s = *state_;
  std::vector<std::string> lines;
  if (s.corpus) {
    lines.push_back(fmt::format(
        "train {}, {}, vocabulary of {}", counted(s.corpus->conversations(), "conversation"),
        counted(s.corpus->clips(), "clip"), format_count(s.corpus->vocab_size())));
    if (s.sources.size() > 1)
      for (const SpeechSource& source : s.sources)
        lines.push_back(fmt::format("blend {:.2f} % '{}': {}", 100 * source.share,
                                    source.leaf.folder,
                                    counted(source.utterances, "conversation")));
    if (!s.corpus->left_out().empty()) lines.push_back(s.corpus->left_out());
    lines.push_back(fmt::format(
        "micro-batches of {} tokens and frames, {:.1f} conversations; padding {:.1f} % (in the "
        "order of the draws {:.1f} %)",
        format_count(s.config.batch_tokens), s.padding.mean_utterances, 100 * s.padding.bucketed,
        100 * s.padding.naive));
  }
  for (const auto& set : s.eval)
    lines.push_back(fmt::format(
        "validation '{}': {}{}", set->name, counted(std::ssize(set->rows), "conversation"),
        set->corpus.left_out().empty() ? "" : "; " + set->corpus.left_out()));
  return join(lines, "\n");
}

std::size_t ConversationBatches::bytes() const {
  std::size_t total = state_->slots != nullptr ? state_->slots->bytes() : 0;
  for (const auto& set : state_->eval) total += set->memory->bytes();
  return total;
}

void ConversationBatches::start_training(const SpeechOrder& order) {
  State& s = *state_;
  CHOIR_CHECK(s.corpus.has_value(), "there is no training data");
  s.slots = nullptr;
  s.ahead.reset();
  auto slots =
      std::make_unique<TrainingSlots>(*s.corpus, *s.sampler, s.limits, order, s.config.slots);
  s.slots = slots.get();
  s.ahead = std::make_unique<ReadAhead>(std::move(slots), s.config.slots > 1, s.config.slots);
}

const ConversationBatch& ConversationBatches::next() {
  CHOIR_CHECK(state_->ahead != nullptr, "start_training was not called");
  return state_->slots->batch(state_->ahead->next());
}

double ConversationBatches::wait_seconds() const {
  return state_->ahead ? state_->ahead->wait_seconds() : 0;
}

int ConversationBatches::eval_sets() const {
  return static_cast<int>(state_->eval.size());
}
const std::string& ConversationBatches::eval_name(int set) const {
  return state_->eval[static_cast<std::size_t>(set)]->name;
}
const ConversationCorpus& ConversationBatches::eval_corpus(int set) const {
  return state_->eval[static_cast<std::size_t>(set)]->corpus;
}
std::int64_t ConversationBatches::eval_conversations(int set) const {
  return std::ssize(state_->eval[static_cast<std::size_t>(set)]->rows);
}
std::int64_t ConversationBatches::eval_calls(int set) const {
  const auto batches = std::ssize(state_->eval[static_cast<std::size_t>(set)]->begins) - 1;
  return (batches + state_->ranks - 1) / state_->ranks;
}

const ConversationBatch& ConversationBatches::eval_batch(int set, std::int64_t call) {
  State::EvalSet& s = *state_->eval[static_cast<std::size_t>(set)];
  const auto j = static_cast<std::size_t>(call * state_->ranks + state_->rank);
  std::span<const SpeechRow> rows;
  if (j + 1 < s.begins.size())
    rows = std::span(s.rows).subspan(s.begins[j], s.begins[j + 1] - s.begins[j]);
  s.memory->fill(rows, s.corpus, *s.reader);
  s.memory->batch.micro_batch = static_cast<std::int64_t>(j);
  s.memory->batch.step_targets = s.targets;
  return s.memory->batch;
}

}  // namespace choir
