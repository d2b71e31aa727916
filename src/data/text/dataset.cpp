#include "src/data/text/dataset.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/hash.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/data/text/batch_sources.hpp"
#include "src/data/text/data_files.hpp"
#include "src/data/text/step_batches.hpp"
#include "src/data/text/streamed_source.hpp"
#include "src/data/text/text_index.hpp"
#include "src/data/text/token_samples.hpp"

namespace choir {
struct Dataset::State {
  State(Communicator& communicator, const DataConfig& settings)
      : comm(communicator), config(settings) {}

  Communicator& comm;
  DataConfig config;
  DataFiles files;
  std::int64_t vocab_size = 0;
  struct EvalSet {
    std::string name;
    std::optional<EvalSampler> sampler;
    std::int64_t windows = 0;  ///< that are evaluated
    std::int64_t all_windows = 0;
    std::unique_ptr<BatchSource> source;
  };
  std::optional<TokenBlend> blend;               ///< of token files
  std::shared_ptr<const StreamedText> streamed;  ///< of training on the fly
  std::int64_t streamed_windows = 0;             ///< in an epoch
  std::vector<EvalSet> eval_sets;
  std::unique_ptr<ResidentTokens> resident;   // with data.preload = "device" on a GPU
  const TokenReader* train_reader = nullptr;  // owned by the prefetcher
  std::unique_ptr<Prefetcher> prefetcher;
  std::unique_ptr<StepBatches> steps;  // with separate documents, in place of the prefetcher
  std::unique_ptr<BatchBuffer> eval_buffer;
  std::size_t eval_bytes = 0;

  bool shares() const { return config.peers != nullptr && config.peers->size() > 1; }
  bool reads() const { return !shares() || config.peers->rank() == 0; }
  /// Wraps `source` so that the ranks that read share its batches with the others.
  std::unique_ptr<BatchSource> shared(const std::string& name, std::unique_ptr<BatchSource> source,
                                      const MicroBatchOrder& order) const {
    if (!shares()) return source;
    return std::make_unique<SharedSource>(*config.peers, name, std::move(source), shape(), order);
  }
  RowShape shape() const {
    return {config.rows, config.block_size, vocab_size, config.documents, config.document_end};
  }
  /// True if the validation sets are named, and nothing else has to be opened.
  bool opens_sets_only() const {
    const bool named = !config.val.empty() || !config.validation.empty();
    return config.evaluates && (named || config.on_the_fly);
  }
  std::string document_text() const;
  std::string windows_text() const;
  void open_files();
  void open_sets();
  void open_token_files();
  void open_texts();
  void open_in_turn();
  void find_document_ends();
  void open_evaluation();
  void open_eval_set(std::size_t index, const MicroBatchOrder& order);
};

namespace {

constexpr std::int64_t kSyntheticEvalBatches = 8;

/// Checksum of segments spread over the stream, enough to distinguish texts without reading all of
/// them.
std::uint32_t sampled_crc(const TokenStream& tokens) {
  constexpr std::int64_t kStretches = 32, kLength = 128;
  std::array<std::int32_t, kLength> read;
  std::uint32_t crc = 0;
  for (std::int64_t i = 0; i < kStretches; ++i) {
    const std::int64_t first =
        std::max<std::int64_t>(0, tokens.count() - kLength) * i / (kStretches - 1);
    const std::int64_t count = std::min(kLength, tokens.count() - first);
    tokens.read(first, count, read.data());
    crc = crc32c(read.data(), static_cast<std::size_t>(count) * sizeof read[0], crc);
  }
  return crc;
}

void check_settings(const DataConfig& config) {
  CHOIR_CHECK(config.block_size >= 1 && config.rows >= 1, "block size {}, {} rows",
              config.block_size, config.rows);
  if (config.synthetic && config.vocab_size < 1)
    throw DeckError("synthetic data needs model.vocab_size", "give the number of entries");
}

EvalSampler eval_sampler(const EvalFiles& set, const DataConfig& config) {
  const auto limit = config.validation_limits.find(set.name);
  const std::int64_t all = set.stream.count();
  try {
    return {limit == config.validation_limits.end() ? all : std::min(all, limit->second),
            config.block_size};
  } catch (const DataError& error) {
    if (set.name.empty()) throw;
    throw DataError(fmt::format("validation set '{}': {}", set.name, error.what()), error.hint());
  }
}

}  // namespace

void Dataset::State::open_files() {
  // A checkpoint without a vocabulary has that of the training data, which have to be opened.
  if (opens_sets_only() && (!config.trained_vocabulary.empty() || !names_text(comm, config)))
    open_sets();
  else if (config.on_the_fly)
    open_texts();
  else
    open_token_files();
  find_document_ends();
  for (const EvalFiles& set : files.val) {
    EvalSet& made = eval_sets.emplace_back();
    made.name = set.name;
    made.sampler = eval_sampler(set, config);
    made.windows = made.all_windows = made.sampler->windows();
    const auto own = config.validation_windows.find(set.name);
    const std::int64_t most =
        own == config.validation_windows.end() ? config.eval_windows : own->second;
    if (most > 0) made.windows = std::min(made.windows, most);
  }
}

void Dataset::State::open_sets() {
  files = find_validation_files(comm, config);
  vocab_size = config.vocab_size;
}

void Dataset::State::open_texts() {
  files = find_streamed_files(comm, config);
  vocab_size = config.vocab_size > 0 ? config.vocab_size : files.vocabulary->size();
  streamed = open_streamed_text(comm, config, *files.vocabulary);
  together(comm, [&] {
    streamed_windows = UnitOrder(tokens_of_units(streamed->index), config.block_size, config.seed)
                           .windows_per_epoch();
  });
}

void Dataset::State::open_token_files() {
  files = find_data_files(comm, config);
  const std::int64_t of_data =
      files.vocabulary ? files.vocabulary->size() : files.train.vocab_size();
  vocab_size = config.vocab_size > 0 ? config.vocab_size : of_data;
  together(comm, [&] {
    if (vocab_size == 0)
      throw DeckError(fmt::format("'{}' does not say how large its vocabulary is",
                                  files.train.files().front().path),
                      "set model.vocab_size (GPT-2: 50257)");
  });
  together(comm, [&] {
    const bool blends = !config.blend.empty();
    const std::vector<std::string> names = !config.blend_names.empty() ? config.blend_names
                                           : blends
                                               ? config.blend
                                               : std::vector<std::string>{config.train.front()};
    blend.emplace(blends ? config.pools(files.lengths) : std::vector<TokenPool>{{{0}, 1}}, names,
                  files.lengths, config.block_size, config.seed);
  });
}

// Called by the ranks of `comm` together. The indices are checked by rank 0 alone.
void Dataset::State::find_document_ends() {
  std::int32_t& token = config.document_end;
  if (!config.documents) return;
  if (token < 0 && files.vocabulary) token = files.vocabulary->end_of_text().value_or(-1);
  together(comm, [&] {
    if (token >= vocab_size)
      throw DeckError(
          fmt::format("data.document_end is {}, the vocabulary has {} entries", token, vocab_size),
          fmt::format("an id below {}", vocab_size));
    if (streamed && token < 0)
      throw DeckError(
          "data.documents = \"separate\", but data.tokenizer has no token that ends a text",
          "use a tokenizer with such a token, or set data.documents = \"ignore\"");
    if (comm.rank() != 0 || !reads()) return;
    require_document_ends(files.train, token);
    for (const EvalFiles& set : files.val) require_document_ends(set.stream, token);
  });
}

void Dataset::State::open_eval_set(std::size_t index, const MicroBatchOrder& order) {
  EvalSet& set = eval_sets[index];
  if (config.synthetic) {
    set.source = std::make_unique<SyntheticSource>(config.seed, "data.synthetic.val", shape(),
                                                   order, set.windows);
    return;
  }
  const std::string name = index == 0 ? "data.val" : fmt::format("data.val.{}", index);
  std::unique_ptr<BatchSource> from_files;
  if (reads()) {
    auto source = std::make_unique<StreamSource>(
        comm, name, files.val[index].stream, config.reader, shape(),
        [this, index](std::int64_t window) {
          const EvalSet& of = eval_sets[index];
          return window < of.windows ? of.sampler->window(window) : TokenWindow{};
        },
        order);
    eval_bytes += source->reader().bytes();
    from_files = std::move(source);
  }
  set.source = shared(name, std::move(from_files), order);
}

void Dataset::State::open_evaluation() {
  if (eval_sets.empty()) return;
  eval_buffer = std::make_unique<BatchBuffer>(config.rows, config.block_size, config.documents);
  for (std::size_t i = 0; i < eval_sets.size(); ++i)
    open_eval_set(i, {0, comm.size(), comm.rank(), 1});
}

// Opens the files on the ranks that read first, so that the others find them prepared and verified.
void Dataset::State::open_in_turn() {
  if (!shares()) return open_files();
  if (!reads()) config.verify_bytes = 0;
  for (const bool turn : {true, false})
    together(*config.peers, [&] {
      if (reads() == turn) open_files();
    });
}

std::unique_ptr<Dataset> Dataset::open(Communicator& comm, const DataConfig& config) {
  check_settings(config);
  auto state = std::make_unique<State>(comm, config);
  if (config.synthetic) {
    state->vocab_size = config.vocab_size;
    state->config.document_end = std::max(config.document_end, 0);
    state->eval_sets.emplace_back().windows =
        config.eval_windows > 0 ? config.eval_windows : kSyntheticEvalBatches * config.rows;
  } else {
    state->open_in_turn();
  }
  state->open_evaluation();
  return std::unique_ptr<Dataset>(new Dataset(std::move(state)));
}

Dataset::Dataset(std::unique_ptr<State> state) : state_(std::move(state)) {}
Dataset::~Dataset() = default;

std::int64_t Dataset::vocab_size() const {
  return state_->vocab_size;
}
std::uint64_t Dataset::vocab_hash() const {
  return state_->files.vocabulary ? state_->files.vocabulary->hash()
                                  : state_->files.train.vocab_hash();
}
const Vocabulary* Dataset::vocabulary() const {
  return state_->files.vocabulary ? &*state_->files.vocabulary : nullptr;
}
std::int64_t Dataset::train_tokens() const {
  if (state_->streamed) return state_->streamed->index.tokens();
  return state_->files.train.count();
}
std::int64_t Dataset::val_tokens() const {
  std::int64_t tokens = 0;
  for (const EvalFiles& set : state_->files.val) tokens += set.stream.count();
  return tokens;
}
std::int64_t Dataset::windows_per_epoch() const {
  if (state_->streamed) return state_->streamed_windows;
  return state_->blend ? state_->blend->windows_per_epoch() : 0;
}
bool Dataset::has_validation() const {
  return !state_->eval_sets.empty();
}

std::string Dataset::State::document_text() const {
  const bool indexed = std::ranges::any_of(
      files.train.files(), [](const TokenFile& file) { return !file.index.empty(); });
  const std::string token =
      config.document_end < 0 ? "" : fmt::format("with token {}", config.document_end);
  return fmt::format("documents are separate; they end {}{}{}", token,
                     indexed && !token.empty() ? ", and " : "",
                     indexed ? "where the index of a file says so" : "");
}

std::string Dataset::State::windows_text() const {
  std::int64_t windows = 0, all = 0;
  for (const EvalSet& set : eval_sets) windows += set.windows, all += set.all_windows;
  if (windows == all) return counted(windows, "window");
  return fmt::format("{} of {}", format_count(windows), counted(all, "window"));
}

std::string Dataset::evaluated_part() const {
  const bool whole = std::ranges::all_of(
      state_->eval_sets, [](const State::EvalSet& set) { return set.windows >= set.all_windows; });
  if (whole) return {};
  return fmt::format(
      "an evaluation reads the first {} (eval.batches; eval.batches=all reads the whole "
      "validation data)",
      state_->windows_text());
}

namespace {

/// Names the file that a link leads to; "" for a path that is no link.
std::string link_text(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code failed;
  if (!fs::is_symlink(path, failed)) return {};
  const fs::path file = fs::relative(fs::canonical(path, failed), failed);
  return failed ? std::string() : fmt::format("\n'{}' is a link to {}", path, file.string());
}

}  // namespace

std::string Dataset::to_string() const {
  const State& s = *state_;
  if (s.config.synthetic)
    return fmt::format("random tokens, vocabulary of {}", format_count(s.vocab_size));
  const ReaderOptions& reader = s.config.reader;
  std::size_t val_files = 0;
  std::int64_t val_windows = 0;
  for (const EvalFiles& set : s.files.val) val_files += set.stream.files().size();
  for (const State::EvalSet& set : s.eval_sets) val_windows += set.all_windows;
  std::string text = fmt::format(
      "train {} in {}, {} an epoch; validation {} in {}, {}\nvocabulary of {}{}; reader {}{}",
      counted(train_tokens(), "token"),
      s.streamed ? counted(s.streamed->source.units().size(), "unit")
                 : counted(s.files.train.files().size(), "file"),
      counted(windows_per_epoch(), "window"), counted(val_tokens(), "token"),
      counted(val_files, "file"), counted(val_windows, "window"), format_count(s.vocab_size),
      s.files.vocabulary ? fmt::format(" ({})", name_of(s.files.vocabulary->kind())) : "",
      name_of(reader.kind), preload_text(reader.preload));
  for (const std::string& path : s.config.train) text += link_text(path);
  if (s.streamed)
    text += fmt::format("\nencoded on the fly by {} a rank; {}",
                        counted(s.config.text_threads, "thread"),
                        counted(s.streamed->index.documents, "document"));
  if (s.config.documents) text += "\n" + s.document_text();
  if (const std::string blend = s.blend ? s.blend->to_string() : ""; !blend.empty())
    text += "\n" + blend;
  for (std::size_t i = 0; s.eval_sets.size() > 1 && i < s.eval_sets.size(); ++i)
    text += fmt::format("\nvalidation '{}': {}, {}", s.eval_sets[i].name,
                        counted(s.files.val[i].stream.count(), "token"),
                        counted(s.eval_sets[i].all_windows, "window"));
  if (const std::string part = evaluated_part(); !part.empty()) text += "\n" + part;
  return text;
}

std::string Dataset::contents() const {
  if (state_->config.synthetic) return {};
  const DataFiles& files = state_->files;
  std::string text =
      fmt::format("train {} tokens {:08x}", train_tokens(),
                  state_->streamed ? state_->streamed->index.crc() : sampled_crc(files.train));
  if (files.val.empty()) text += ", validation 0 tokens 00000000";
  for (const EvalFiles& set : files.val)
    text += fmt::format(", validation{} {} tokens {:08x}",
                        set.name.empty() ? "" : fmt::format(" '{}'", set.name), set.stream.count(),
                        sampled_crc(set.stream));
  return text + fmt::format(", vocabulary {:016x}{}", vocab_hash(),
                            state_->streamed ? ", on the fly" : state_->blend->contents());
}

std::vector<std::pair<std::string, std::string>> Dataset::hints() const {
  if (state_->train_reader == nullptr) return {};
  return state_->train_reader->hints();
}

std::size_t Dataset::bytes() const {
  std::size_t total = state_->eval_bytes;
  if (state_->eval_buffer)
    total += (state_->config.documents ? 4 : 2) * state_->eval_buffer->batch.inputs.bytes();
  if (state_->steps) total += state_->steps->bytes();
  if (state_->prefetcher) total += state_->prefetcher->bytes();
  if (state_->train_reader != nullptr) total += state_->train_reader->bytes();
  return total;
}

std::size_t Dataset::resident_bytes(bool host_visible) const {
  const State& s = *state_;
  if (s.config.reader.preload != Preload::device || s.config.synthetic || s.streamed) return 0;
  const TokenStream& stream = s.files.train;
  if (!host_visible) return ResidentTokens::bytes_of(stream, s.config.block_size);
  return s.reads() ? static_cast<std::size_t>(stream.count() * stream.token_bytes()) : 0;
}

void Dataset::make_resident(Device& device) {
  State& s = *state_;
  if (resident_bytes(device.host_visible()) == 0 || device.host_visible()) return;
  if (s.config.documents)
    throw DeckError(
        "data.preload = \"device\" keeps tokens where only the GPU reads them, but "
        "data.documents = \"separate\" looks for the ends of documents on the host",
        "set data.preload to \"host\", or data.documents to \"ignore\"");
  s.resident =
      std::make_unique<ResidentTokens>(s.comm, s.files.train, s.config.reader, s.shape(), device);
}

void Dataset::start_training(const MicroBatchOrder& order) {
  State& s = *state_;
  CHOIR_CHECK(order.per_rank >= 1 && order.stride >= 1 &&
                  order.rank_offset + (order.per_rank - 1) * order.stride < order.per_step,
              "{} micro-batches, each {} after the one before, from {} on, of {} a step",
              order.per_rank, order.stride, order.rank_offset, order.per_step);
  s.train_reader = nullptr;
  s.prefetcher.reset();
  s.steps.reset();
  std::unique_ptr<BatchSource> source;
  if (s.config.synthetic) {
    source =
        std::make_unique<SyntheticSource>(s.config.seed, "data.synthetic", s.shape(), order, 0);
  } else if (s.resident) {
    source = std::make_unique<ResidentSource>(
        *s.resident, s.shape(), [&s](std::int64_t sample) { return s.blend->window(sample); },
        order);
  } else {
    if (s.reads() && s.streamed) {
      source = std::make_unique<StreamedSource>(s.comm, "data.train", s.streamed, s.shape(),
                                                s.config.seed, order, s.config.text_threads);
    } else if (s.reads()) {
      auto from_files = std::make_unique<StreamSource>(
          s.comm, "data.train", s.files.train, s.config.reader, s.shape(),
          [&s](std::int64_t sample) { return s.blend->window(sample); }, order);
      s.train_reader = &from_files->reader();
      source = std::move(from_files);
    }
    source = s.shared("data.train", std::move(source), order);
  }
  const bool ahead = s.config.slots > 1 && !s.resident &&
                     (s.config.synthetic || may_read_in_thread(s.config.reader.kind));
  if (s.config.documents)
    s.steps = std::make_unique<StepBatches>(s.comm, std::move(source), order.per_rank, ahead,
                                            s.config.slots - 1, s.config.window);
  else
    s.prefetcher = std::make_unique<Prefetcher>(std::move(source), ahead, s.config.slots);
}

const Batch& Dataset::next() {
  CHOIR_CHECK(state_->prefetcher || state_->steps, "start_training was not called");
  return state_->steps ? state_->steps->next() : state_->prefetcher->next();
}

const DocumentCounts& Dataset::step_contents(std::int64_t step) {
  CHOIR_CHECK(state_->steps != nullptr, "the documents of the data are not separate");
  return state_->steps->contents(step);
}

double Dataset::wait_seconds() const {
  if (state_->steps) return state_->steps->wait_seconds();
  return state_->prefetcher ? state_->prefetcher->wait_seconds() : 0;
}

std::int64_t Dataset::eval_calls(int set) const {
  if (set >= eval_sets()) return 0;
  const std::int64_t a_call = state_->config.rows * state_->comm.size();
  return (state_->eval_sets[static_cast<std::size_t>(set)].windows + a_call - 1) / a_call;
}

const Batch& Dataset::eval_batch(std::int64_t call, int set) {
  State& s = *state_;
  CHOIR_CHECK(set < eval_sets(), "there is no validation set {}", set);
  s.eval_sets[static_cast<std::size_t>(set)].source->fill(call, s.eval_buffer->batch);
  return s.eval_buffer->batch;
}

int Dataset::eval_sets() const {
  return static_cast<int>(state_->eval_sets.size());
}
const std::string& Dataset::eval_name(int set) const {
  return state_->eval_sets.at(static_cast<std::size_t>(set)).name;
}

}  // namespace choir
