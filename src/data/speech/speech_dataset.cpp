#include "src/data/speech/speech_dataset.hpp"

#include <algorithm>
#include <optional>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/quantities.hpp"
#include "src/data/read_ahead.hpp"
#include "src/data/speech/speech_reader.hpp"
#include "src/data/text/token_samples.hpp"

namespace choir {

SpeechBatchBuffer::SpeechBatchBuffer(std::span<const SpeechShape> shapes,
                                     const SpeechFrames& frames, bool whole)
    : frames_(frames) {
  if (whole) whole_.assign(shapes.begin(), shapes.end());
  std::int64_t most = 1, audio = frames.multiple(), labels = 1;
  for (const SpeechShape& shape : shapes) {
    most = std::max(most, shape.utterances);
    audio = std::max(audio, shape.utterances * shape.samples);
    labels = std::max(labels, shape.utterances * std::max<std::int64_t>(shape.labels, 1));
  }
  const auto n = static_cast<std::size_t>(most);
  audio_.resize(static_cast<std::size_t>(audio));
  audio_lengths_.resize(n);
  frame_lengths_.resize(n * static_cast<std::size_t>(frames.stages + 1));
  ids_.resize(n);
  labels_.resize(static_cast<std::size_t>(labels));
  label_lengths_.resize(n);
  rows.reserve(n);
}

std::size_t SpeechBatchBuffer::bytes() const {
  return audio_.size() * 2 + ids_.size() * 8 +
         4 * (audio_lengths_.size() + frame_lengths_.size() + labels_.size() +
              label_lengths_.size());
}

SpeechShape SpeechBatchBuffer::shape_of(std::span<const SpeechRow> of) const {
  SpeechShape shape{std::max<std::int64_t>(std::ssize(of), 1), 0, 1};
  for (const SpeechRow& row : of) {
    shape.samples = std::max<std::int64_t>(shape.samples, row.item.samples);
    shape.labels = std::max<std::int64_t>(shape.labels, row.item.labels);
  }
  shape.samples = frames_.padded(shape.samples);
  const auto holds = [&](const SpeechShape& s) {
    return s.utterances >= shape.utterances && s.samples >= shape.samples &&
           s.labels >= shape.labels;
  };
  const auto found = std::find_if(whole_.begin(), whole_.end(), holds);
  return found == whole_.end() ? shape : *found;
}

void SpeechBatchBuffer::lay_out(std::span<const SpeechRow> from, const SpeechCorpus& corpus) {
  rows.assign(from.begin(), from.end());
  batch.rows = rows;
  const auto [b, s, most] = shape_of(rows);
  batch.samples = batch.targets = 0;
  for (const SpeechRow& row : rows) {
    batch.samples += row.item.samples;
    batch.targets += row.item.labels;
  }
  CHOIR_CHECK(
      b <= std::ssize(ids_) && b * s <= std::ssize(audio_) && b * most <= std::ssize(labels_),
      "{} utterances, {} samples, {} labels in memory for {}, {}, {}", b, b * s, b * most,
      ids_.size(), audio_.size(), labels_.size());
  batch.audio = {audio_.data(), DType::u16, {b, s}};
  batch.audio_lengths = {audio_lengths_.data(), DType::i32, {b}};
  batch.frame_lengths = {frame_lengths_.data(), DType::i32, {frames_.stages + 1, b}};
  batch.sample_ids = {ids_.data(), DType::i64, {b}};
  batch.labels = {labels_.data(), DType::i32, {b, most}};
  batch.label_lengths = {label_lengths_.data(), DType::i32, {b}};
  for (std::int64_t r = std::ssize(rows); r < b; ++r) {
    ids_[static_cast<std::size_t>(r)] = 0;
    set_lengths(r, 0, 0);
  }
  std::fill_n(labels_.begin(), b * most, kIgnoredTarget);
  for (std::int64_t r = 0; r < std::ssize(rows); ++r) {
    const SpeechRow& row = rows[static_cast<std::size_t>(r)];
    set_lengths(r, row.item.samples, row.item.labels);
    ids_[static_cast<std::size_t>(r)] = row.epoch * corpus.utterances() + corpus.number(row.item);
    const auto ids = corpus.labels(row.item);
    std::copy(ids.begin(), ids.end(), labels_.begin() + r * most);
  }
}

void SpeechBatchBuffer::set_lengths(std::int64_t row, std::int64_t samples, std::int64_t labels) {
  audio_lengths_[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(samples);
  label_lengths_[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(labels);
  for (int stage = 0; stage <= frames_.stages; ++stage)
    frame_lengths_[static_cast<std::size_t>(stage * batch.sample_ids.shape[0] + row)] =
        static_cast<std::int32_t>(frames_.after(stage, samples));
}

void SpeechBatchBuffer::empty_row(std::int64_t row) {
  const std::int64_t s = batch.audio.shape[1], u = batch.labels.shape[1];
  const SpeechItem& item = rows[static_cast<std::size_t>(row)].item;
  batch.samples -= item.samples;
  batch.targets -= item.labels;
  set_lengths(row, 0, 0);
  std::fill_n(audio_.begin() + row * s, s, 0);
  std::fill_n(labels_.begin() + row * u, u, kIgnoredTarget);
}

namespace {

// This rank's micro-batches, step after step. It owns the slots, so that they outlive an unfinished
// read.
class TrainingSlots : public SlotSource {
 public:
  TrainingSlots(Communicator& comm, const SpeechCorpus& corpus, const SpeechSampler& sampler,
                const SpeechDataConfig& config, const SpeechOrder& order,
                std::span<const SpeechShape> shapes, SpeechDamage& damage,
                const ResidentAudio* resident)
      : order_(order),
        steps_(sampler, order.from, order.micro_batches),
        reader_(comm, "data.speech", corpus, config, shapes, damage, resident) {
    for (int i = 0; i < config.slots; ++i)
      slots_.push_back(
          std::make_unique<SpeechBatchBuffer>(shapes, config.frames, config.batching.whole));
  }
  void fill(std::int64_t call, int slot) override {
    const std::int64_t place = call % order_.places;
    if (place == 0) steps_.next(step_);
    SpeechBatchBuffer& to = *slots_[static_cast<std::size_t>(slot)];
    const std::int64_t j = order_.first + place * order_.stride;
    reader_.read(j < order_.micro_batches ? step_.micro_batch(j) : std::span<const SpeechRow>(),
                 to);
    to.after = step_.after;
    to.batch.after = &to.after;
    to.batch.step = call / order_.places;
    to.batch.micro_batch = j;
    to.batch.step_targets = step_.targets;
  }
  void abandon() override { reader_.abandon(); }
  const SpeechBatch& batch(int slot) const { return slots_[static_cast<std::size_t>(slot)]->batch; }
  std::size_t bytes() const {
    const TokenReader* reader = reader_.reader();
    return slots_.size() * slots_.front()->bytes() + (reader != nullptr ? reader->bytes() : 0);
  }
  const TokenReader* reader() const { return reader_.reader(); }

 private:
  SpeechOrder order_;
  SpeechSteps steps_;
  SpeechStep step_;
  SpeechRowReader reader_;
  std::vector<std::unique_ptr<SpeechBatchBuffer>> slots_;
};

SpeechCorpusOptions training_options(const SpeechDataConfig& config) {
  SpeechCorpusOptions options;
  options.labels = config.labels;
  options.own_labels = config.own_labels;
  options.make_labels = config.make_labels;
  options.sample_rate = config.sample_rate;
  options.tokenizer_hash = config.tokenizer_hash;
  options.frames = config.frames;
  options.filter = config.filter;
  options.on_bad = config.on_bad;
  options.bad_cap = config.bad_cap;
  options.verify_bytes = config.verify_bytes;
  return options;
}

}  // namespace

struct SpeechDataset::State {
  State(Communicator& communicator, const SpeechDataConfig& settings)
      : comm(communicator),
        config(settings),
        leaves(settings.train.inputs.empty() ? std::vector<SpeechLeaf>{}
                                             : leaves_of(settings.train)) {
    if (!leaves.empty())
      corpus = SpeechCorpus::load(comm, config.peers, leaves, training_options(config));
  }

  Communicator& comm;
  SpeechDataConfig config;
  std::vector<SpeechLeaf> leaves;
  std::optional<SpeechCorpus> corpus;  // absent if there are only validation sets
  std::vector<SpeechSource> sources;
  std::optional<SpeechSampler> sampler;
  std::vector<SpeechShape> shapes, eval_shapes;
  SpeechPadding padding;
  std::vector<std::unique_ptr<SpeechEvaluation>> evaluations;
  SpeechDamage damage;
  std::unique_ptr<ResidentAudio> resident;  // with data.preload = "device" on a GPU
  TrainingSlots* slots = nullptr;           // owned by `ahead`
  std::unique_ptr<ReadAhead> ahead;

  void make_sampler();
  void check() const;
  const SpeechCorpus& any_corpus() const {
    return corpus ? *corpus : evaluations.front()->corpus();
  }
  SpeechEvaluation& evaluation(int set) const {
    return *evaluations[static_cast<std::size_t>(set)];
  }
};

void SpeechDataset::State::make_sampler() {
  if (!corpus) return;
  std::vector<std::int64_t> sizes;
  for (int leaf = 0; leaf < corpus->folders(); ++leaf)
    sizes.push_back(std::ssize(corpus->items(leaf)));
  std::vector<SpeechPoolItems> drawn;
  std::vector<SpeechLength> lengths;
  for (const SpeechPool& pool : pools_of(config.train, sizes)) {
    SpeechPoolItems& items = drawn.emplace_back();
    items.probability = pool.probability;
    for (const int leaf : pool.leaves)
      items.items.insert(items.items.end(), corpus->items(leaf).begin(), corpus->items(leaf).end());
    const double weight = pool.probability / static_cast<double>(items.items.size());
    for (const SpeechItem& item : items.items)
      lengths.push_back({item.samples, item.labels, weight});
  }
  SpeechBuckets buckets(config.batching, corpus->sample_rate(), lengths);
  shapes = buckets.shapes(lengths, config.frames);
  sampler.emplace(SpeechBlend(std::move(drawn), config.order_seed), std::move(buckets),
                  config.window, config.order_seed);
  padding = measure_padding(*sampler, config.frames);
  sources = sources_of(leaves, sampler->blend(), corpus->sample_rate());
}

void SpeechDataset::State::check() const {
  if (config.window < 1)
    throw DeckError(fmt::format("data.window is {}", config.window), "1 or more utterances");
  if (corpus && config.vocab_size > 0 && config.vocab_size < corpus->vocab_size())
    throw DataError(fmt::format("model.vocab_size is {}, the labels '{}' need {}",
                                config.vocab_size, config.labels, corpus->vocab_size()),
                    fmt::format("set model.vocab_size to {}", corpus->vocab_size()));
}

SpeechOrder SpeechOrder::of_rank(SpeechCursor from, std::int64_t micro_batches, int rank,
                                 int ranks) {
  const std::int64_t places = (micro_batches + ranks - 1) / ranks;
  return {std::move(from), micro_batches, rank * places, places, 1};
}

std::unique_ptr<SpeechDataset> SpeechDataset::open(Communicator& comm,
                                                   const SpeechDataConfig& config) {
  auto state = std::make_unique<State>(comm, config);
  together(comm, [&] {
    state->check();
    state->make_sampler();
  });
  for (const SpeechEvalSet& set : config.eval) {
    state->evaluations.push_back(std::make_unique<SpeechEvaluation>(
        comm, config, set, state->corpus ? state->corpus->sample_rate() : config.sample_rate,
        state->corpus ? state->corpus->tokenizer_hash() : config.tokenizer_hash));
    const auto& of_set = state->evaluations.back()->shapes();
    state->eval_shapes.insert(state->eval_shapes.end(), of_set.begin(), of_set.end());
  }
  return std::unique_ptr<SpeechDataset>(new SpeechDataset(std::move(state)));
}

SpeechDataset::SpeechDataset(std::unique_ptr<State> state) : state_(std::move(state)) {}
SpeechDataset::~SpeechDataset() = default;

std::int64_t SpeechDataset::vocab_size() const {
  return state_->config.vocab_size > 0 ? state_->config.vocab_size
                                       : state_->any_corpus().vocab_size();
}
std::uint64_t SpeechDataset::tokenizer_hash() const {
  return state_->any_corpus().tokenizer_hash();
}
int SpeechDataset::sample_rate() const {
  return state_->any_corpus().sample_rate();
}
std::int64_t SpeechDataset::utterances() const {
  return sift().kept();
}
double SpeechDataset::hours() const {
  return sift().hours();
}
const SpeechSift& SpeechDataset::sift() const {
  return state_->any_corpus().sift();
}
const SpeechSampler& SpeechDataset::sampler() const {
  return *state_->sampler;
}
const SpeechPadding& SpeechDataset::padding() const {
  return state_->padding;
}
const std::vector<SpeechSource>& SpeechDataset::sources() const {
  return state_->sources;
}
const std::vector<SpeechShape>& SpeechDataset::shapes() const {
  return state_->shapes;
}
const std::vector<SpeechShape>& SpeechDataset::eval_shapes() const {
  return state_->eval_shapes;
}

std::string SpeechDataset::to_string() const {
  const State& s = *state_;
  CHOIR_CHECK(s.corpus, "there is no training data to describe");
  std::string text = "train " + sift().to_string();
  text += "\n" + choir::to_string(s.sources);
  text += fmt::format("\n{} up to {}", counted(s.sampler->buckets().count(), "bucket"),
                      s.sampler->buckets().to_string());
  text +=
      fmt::format("\n{:.1f} utterances a micro-batch, padding {:.1f} % ({:.1f} % without buckets)",
                  s.padding.mean_utterances, 100 * s.padding.bucketed, 100 * s.padding.naive);
  for (const auto& set : s.evaluations) {
    text += fmt::format("\nvalidation '{}': {}", set->name(), set->corpus().sift().to_string());
    for (const SpeechLeaf& leaf : set->leaves())
      if (!leaf.tags.empty())
        text += fmt::format("\nvalidation '{}': '{}' has the tags {}", set->name(), leaf.folder,
                            tags_text(leaf.tags));
  }
  return text + fmt::format("\n{} Hz, vocabulary of {}, reader {}{}", sample_rate(),
                            format_count(vocab_size()), name_of(s.config.reader.kind),
                            preload_text(s.config.reader.preload));
}

std::vector<std::pair<std::string, std::string>> SpeechDataset::hints() const {
  if (state_->slots == nullptr || state_->slots->reader() == nullptr) return {};
  return state_->slots->reader()->hints();
}

std::size_t SpeechDataset::bytes() const {
  std::size_t total = state_->slots != nullptr ? state_->slots->bytes() : 0;
  for (const auto& set : state_->evaluations) total += set->bytes();
  return total;
}

std::size_t SpeechDataset::resident_bytes(bool host_visible) const {
  const State& s = *state_;
  if (s.config.reader.preload != Preload::device || !s.corpus) return 0;
  const bool reads = s.config.peers == nullptr || s.config.peers->rank() == 0;
  return host_visible && !reads ? 0 : ResidentAudio::bytes_of(*s.corpus);
}

void SpeechDataset::make_resident(Device& device) {
  State& s = *state_;
  if (resident_bytes(device.host_visible()) == 0 || device.host_visible()) return;
  s.resident = std::make_unique<ResidentAudio>(s.comm, *s.corpus, s.config, s.damage, device);
}

void SpeechDataset::start_training(const SpeechOrder& order) {
  State& s = *state_;
  CHOIR_CHECK(s.corpus && order.places >= 1 && order.first >= 0 && order.micro_batches >= 1 &&
                  order.stride >= 1,
              "{} places from {} on of {} micro-batches", order.places, order.first,
              order.micro_batches);
  s.slots = nullptr;
  s.ahead.reset();
  auto slots = std::make_unique<TrainingSlots>(s.comm, *s.corpus, *s.sampler, s.config, order,
                                               s.shapes, s.damage, s.resident.get());
  s.slots = slots.get();
  const bool ahead = s.config.slots > 1 && may_read_in_thread(s.config.reader.kind);
  s.ahead = std::make_unique<ReadAhead>(std::move(slots), ahead, s.config.slots);
}

const SpeechBatch& SpeechDataset::next() {
  CHOIR_CHECK(state_->ahead != nullptr, "start_training was not called");
  return state_->slots->batch(state_->ahead->next());
}

double SpeechDataset::wait_seconds() const {
  return state_->ahead ? state_->ahead->wait_seconds() : 0;
}

std::vector<std::string> SpeechDataset::take_warnings() {
  std::vector<std::string> lines = state_->damage.take_lines();
  for (const auto& set : state_->evaluations)
    for (auto& line : set->damage().take_lines()) lines.push_back(std::move(line));
  return lines;
}

int SpeechDataset::eval_sets() const {
  return static_cast<int>(state_->evaluations.size());
}
const std::string& SpeechDataset::eval_name(int set) const {
  return state_->evaluation(set).name();
}
const SpeechSift& SpeechDataset::eval_sift(int set) const {
  return state_->evaluation(set).corpus().sift();
}
std::int64_t SpeechDataset::eval_utterances(int set) const {
  return state_->evaluation(set).utterances();
}
std::int64_t SpeechDataset::eval_calls(int set) const {
  return state_->evaluation(set).calls();
}
const SpeechBatch& SpeechDataset::eval_batch(int set, std::int64_t call) {
  return state_->evaluation(set).batch(call);
}
const std::string& SpeechDataset::eval_text(int set, const SpeechRow& row) const {
  return state_->evaluation(set).corpus().text(row.item);
}
bool SpeechDataset::eval_has_labels(int set, const SpeechRow& row) const {
  return state_->evaluation(set).corpus().has_labels(row.item);
}
UnwritableTexts SpeechDataset::eval_unwritable(int set, const Vocabulary& vocabulary) const {
  UnwritableTexts unwritable(vocabulary);
  const SpeechCorpus& corpus = state_->evaluation(set).corpus();
  for (int leaf = 0; leaf < corpus.folders(); ++leaf)
    for (const SpeechItem& item : corpus.items(leaf))
      if (!corpus.has_labels(item)) unwritable.add(corpus.text(item));
  return unwritable;
}
std::string SpeechDataset::eval_place(int set, std::int32_t leaf, std::int32_t utterance) const {
  return state_->evaluation(set).corpus().catalog(leaf).name(utterance);
}
const std::vector<SpeechLeaf>& SpeechDataset::eval_leaves(int set) const {
  return state_->evaluation(set).leaves();
}

}  // namespace choir
