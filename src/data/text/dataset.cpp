#include "src/data/text/dataset.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <optional>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/hash.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/data/text/batch_sources.hpp"
#include "src/data/text/prepare_text.hpp"
#include "src/data/text/step_batches.hpp"
#include "src/data/text/streamed_source.hpp"
#include "src/data/text/text_files.hpp"
#include "src/data/text/text_index.hpp"
#include "src/data/text/token_samples.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

using PathList = std::vector<std::string>;

struct NamedPaths {
  std::string name;
  PathList paths;
};

struct Paths {
  std::vector<PathList> train;  ///< paths of each part of a blend
  std::vector<NamedPaths> val;
};

std::uint64_t fnv(std::string_view text, std::uint64_t h = 0xcbf29ce484222325ull) {
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return h;
}

bool is_text(const std::vector<std::string>& paths) {
  const auto count = std::count_if(paths.begin(), paths.end(), [](const std::string& path) {
    return fs::exists(path) && !holds_tokens(path);
  });
  if (count != 0 && count != std::ssize(paths))
    throw DataError("text and token files are mixed in one list of paths",
                    "prepare the text first: choir prepare text");
  return count != 0;
}

/// The name of what is kept of a text: it changes with the files, and with `use` of them.
std::string cache_name(const TextSource& source, const std::vector<std::string>& paths,
                       const DataConfig& config, const std::string& use) {
  std::uint64_t h = fnv(use);
  if (source.has_documents()) h = fnv(config.text_field, h);
  for (const auto& file : source.files()) {
    std::error_code beyond;  // a time after 2262 overflows and is replaced by the smallest one
    const auto time = fs::last_write_time(file.path, beyond).time_since_epoch().count();
    h = fnv(fmt::format("{}:{}:{};", fs::absolute(file.path).string(), file.bytes, time), h);
  }
  const fs::path first = fs::absolute(paths.front()).lexically_normal();
  const std::string name = first.has_stem() ? first.stem() : first.parent_path().stem();
  return fmt::format("{}/{}-{}-{:016x}", config.cache_dir, name, name_of(config.tokenizer), h);
}

std::string cache_folder(const std::vector<std::string>& paths, const DataConfig& config,
                         double fraction, const Vocabulary* vocabulary) {
  return cache_name(TextSource::open(paths, whole_files(config.text_field)), paths, config,
                    fmt::format("{} {}", fraction, vocabulary ? vocabulary->hash() : 0));
}

// Returns the folder of a prepared text; prepares it if needed.
std::string prepared(const std::vector<std::string>& paths, const DataConfig& config,
                     double fraction, const Vocabulary* vocabulary) {
  const std::string folder = cache_folder(paths, config, fraction, vocabulary);
  const auto say = [&](const std::string& text) {
    if (config.say) config.say(text);
  };
  if (fs::exists(folder + "/meta.json")) {
    say(fmt::format("text '{}' is already prepared: {}", paths.front(), folder));
    return folder;
  }
  say(fmt::format("preparing text '{}' for its first use", paths.front()));
  PrepareOptions options;
  options.tokenizer = config.tokenizer;
  options.train_fraction = fraction;
  options.vocabulary = vocabulary;
  options.field = config.text_field;
  if (fs::exists(folder))  // prepare_text makes whole folders only: somebody has been at it
    throw DataError(
        fmt::format("'{}' exists and is not the prepared text '{}'", folder, paths.front()),
        "remove it; it is created again from the text");
  say(prepare_text(paths, folder, options).to_string());
  return folder;
}

std::string vocabulary_beside(const std::vector<std::string>& paths) {
  for (const auto& path : paths) {
    const fs::path folder = fs::is_directory(path) ? fs::path(path) : fs::path(path).parent_path();
    for (const char* name : {"vocab.json", "tokenizer.json"})
      if (fs::exists(folder / name)) return folder / name;
  }
  return {};
}

PathList joined(const std::vector<PathList>& parts) {
  PathList all;
  for (const PathList& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::vector<PathList> parts_of(const DataConfig& config) {
  if (config.blend.empty()) return {config.train};
  std::vector<PathList> parts;
  for (const std::string& path : config.blend) parts.push_back({path});
  return parts;
}

std::vector<NamedPaths> named_sets(const DataConfig& config) {
  std::vector<NamedPaths> sets;
  if (!config.val.empty()) sets.push_back({config.validation.empty() ? "" : "val", config.val});
  for (const auto& [name, paths] : config.validation) {
    if (name == "val" && !config.val.empty())
      throw DeckError("two validation sets are called 'val'",
                      "data.val has this name: give the set in data.validation another name");
    if (paths.empty() || std::find(paths.begin(), paths.end(), "") != paths.end())
      throw DeckError(fmt::format("data.validation.{} names no file", name),
                      "FOLDER[,FOLDER...], for example \"data/a/val.tok\"");
    sets.push_back({name, paths});
  }
  return sets;
}

// Prepares the training texts. The texts of a blend share one vocabulary of characters: all texts
// together are prepared first, so that the next start finds the vocabulary and reads no text.
void prepare_training(const DataConfig& config, double fraction, std::vector<PathList>& parts) {
  if (!is_text(joined(parts))) return;
  std::optional<Vocabulary> shared;
  if (!config.tokenizer_file.empty())
    shared = Vocabulary::load(config.tokenizer_file);
  else if (parts.size() > 1 && config.tokenizer == VocabularyKind::character)
    shared = Vocabulary::load_beside_tokens(
        vocabulary_beside({prepared(joined(parts), config, 1.0, nullptr)}));
  for (PathList& part : parts)
    part = {prepared(part, config, fraction, shared ? &*shared : nullptr)};
}

Paths without_text(const DataConfig& config) {
  Paths paths{parts_of(config), named_sets(config)};
  prepare_training(config, paths.val.empty() ? config.train_fraction : 1.0, paths.train);
  for (NamedPaths& set : paths.val) {
    if (!is_text(set.paths)) continue;
    const PathList all = joined(paths.train);
    const std::string vocabulary = vocabulary_beside(all);
    if (vocabulary.empty())
      throw DataError(fmt::format("validation text '{}' needs the vocabulary of the training data, "
                                  "and there is none beside '{}'",
                                  set.paths.front(), all.front()),
                      "prepare both with 'choir prepare text'");
    const Vocabulary trained = Vocabulary::load_beside_tokens(vocabulary);
    set.paths = {prepared(set.paths, config, 0.0, &trained)};
  }
  return paths;
}

// Returns the folders among `paths` that contain validation files.
std::vector<std::string> with_validation(const std::vector<std::string>& paths) {
  std::vector<std::string> folders;
  for (const auto& path : paths) {
    if (!fs::is_directory(path)) continue;
    for (const auto& entry : fs::directory_iterator(path)) {
      const bool tokens = entry.path().extension() == ".tok" || entry.path().extension() == ".bin";
      if (!tokens || !entry.path().filename().string().starts_with("val")) continue;
      folders.push_back(path);
      break;
    }
  }
  return folders;
}

nlohmann::json serialised(const std::vector<NamedPaths>& sets, TokenFormat format) {
  auto all = nlohmann::json::array();
  for (const NamedPaths& set : sets)
    all.push_back(nlohmann::json::array(
        {set.name, TokenStream::open(set.paths, format, Split::val).serialise()}));
  return all;
}

std::string scan_splits(const DataConfig& config) {
  Paths paths = without_text(config);
  const PathList all = joined(paths.train);
  if (paths.val.empty())
    if (const PathList kept = with_validation(all); !kept.empty()) paths.val = {{"", kept}};
  TokenStream train;
  auto lengths = nlohmann::json::array();
  for (const PathList& part : paths.train) {
    const TokenStream stream = TokenStream::open(part, config.format, Split::train);
    lengths.push_back(stream.count());
    train.append(stream);
  }
  const auto val = serialised(paths.val, config.format);
  const std::string vocabulary = vocabulary_beside(all);
  const std::string json =
      vocabulary.empty() ? "" : Vocabulary::load_beside_tokens(vocabulary).to_json();
  const auto bytes = nlohmann::json::to_cbor(
      nlohmann::json::array({train.serialise(), lengths, val, json, vocabulary}));
  return {bytes.begin(), bytes.end()};
}

void share(Communicator& comm, std::string& text) {
  std::uint64_t length = text.size();
  comm.broadcast(&length, sizeof length, 0);
  text.resize(length);
  comm.broadcast(text.data(), length, 0);
}

void check_vocabularies(const DataFiles& files, const DataConfig& config) {
  const TokenStream& train = files.train;
  const std::string name =
      train.files().empty() ? config.train.front() : train.files().front().path;
  const std::uint64_t hash = files.vocabulary ? files.vocabulary->hash() : train.vocab_hash();
  const auto require = [&](std::uint64_t other, const std::string& whose) {
    if (hash == 0 || other == 0 || hash == other) return;
    throw DataError(fmt::format("the vocabulary of '{}' ({:016x}) is not that of {} ({:016x})",
                                name, hash, whose, other),
                    "data must be prepared with the vocabulary that the model was trained with");
  };
  require(train.vocab_hash(), "its token files");
  for (const EvalFiles& set : files.val)
    require(set.stream.vocab_hash(), set.name.empty()
                                         ? "the validation data"
                                         : fmt::format("validation set '{}'", set.name));
  require(config.vocab_hash, "the checkpoint");
  const std::int64_t needed = files.vocabulary ? files.vocabulary->size() : train.vocab_size();
  if (config.vocab_size > 0 && config.vocab_size < needed)
    throw DataError(fmt::format("model.vocab_size is {}, the data '{}' needs {}", config.vocab_size,
                                name, needed),
                    fmt::format("set model.vocab_size to {} or more", needed));
}

void verify(Communicator& comm, const DataConfig& config, const TokenStream& stream) {
  const std::int64_t vocab = config.vocab_size > 0 ? config.vocab_size : stream.vocab_size();
  together(comm, [&] {
    for (std::size_t i = 0; i < stream.files().size(); ++i) {
      const bool mine = static_cast<int>(i % static_cast<std::size_t>(comm.size())) == comm.rank();
      const std::int64_t bytes = stream.files()[i].count * stream.token_bytes();
      if (mine && bytes <= config.verify_bytes) stream.verify(i, vocab);
    }
  });
}

/// The vocabulary and the validation sets of training on the fly; the training stream is empty.
std::string scan_streamed(const DataConfig& config) {
  for (const std::string& path : config.train)
    if (holds_tokens(path))
      throw DataError(fmt::format("'{}' is no text, which data.on_the_fly requires", path),
                      "prepared tokens need no data.on_the_fly");
  const Vocabulary vocabulary =
      config.tokenizer_file.empty() ? Vocabulary::bytes() : Vocabulary::load(config.tokenizer_file);
  std::vector<NamedPaths> sets = named_sets(config);
  for (NamedPaths& set : sets)
    if (is_text(set.paths)) set.paths = {prepared(set.paths, config, 0.0, &vocabulary)};
  const auto bytes = nlohmann::json::to_cbor(
      nlohmann::json::array({serialised(sets, config.format), vocabulary.to_json()}));
  return {bytes.begin(), bytes.end()};
}

DataFiles find_streamed_files(Communicator& comm, const DataConfig& config) {
  std::string scanned;
  together(comm, [&] {
    if (comm.rank() == 0) scanned = scan_streamed(config);
  });
  share(comm, scanned);
  const auto parts = nlohmann::json::from_cbor(scanned);
  DataFiles files;
  for (const auto& set : parts[0])
    files.val.push_back(
        {set[0].get<std::string>(), TokenStream::deserialise(set[1].get<std::string>())});
  files.vocabulary =
      Vocabulary::from_json(parts[1].get<std::string>(),
                            config.tokenizer_file.empty() ? "the bytes" : config.tokenizer_file);
  together(comm, [&] { check_vocabularies(files, config); });
  for (const EvalFiles& set : files.val) verify(comm, config, set.stream);
  return files;
}

/// Collective. The texts to train on and their index.
std::shared_ptr<const StreamedText> open_streamed_text(Communicator& comm, const DataConfig& config,
                                                       const Vocabulary& vocabulary) {
  std::optional<TextSource> source;
  IndexOptions options{.file = {}, .threads = config.text_threads};
  together(comm, [&] {
    source = TextSource::open(config.train, {.field = config.text_field});
    if (comm.rank() == 0)
      options.file =
          cache_name(*source, config.train, config, fmt::format("index {}", vocabulary.hash())) +
          ".index";
    if (comm.rank() == 0 && config.say && !fs::exists(options.file))
      config.say(fmt::format("counting the tokens of '{}' once, in {}", config.train.front(),
                             counted(std::ssize(source->units()), "unit")));
  });
  require_equal(comm, source->digest(), "the list of text files");
  TextIndex index = index_texts(comm, *source, vocabulary, options);
  if (const std::string damage = index.damaged.to_string(); !damage.empty() && config.say)
    config.say(damage);
  return std::make_shared<const StreamedText>(
      StreamedText{std::move(*source), vocabulary, std::move(index)});
}

}  // namespace

DataFiles find_data_files(Communicator& comm, const DataConfig& config) {
  std::string scanned;
  together(comm, [&] {
    if (comm.rank() == 0) scanned = scan_splits(config);
  });
  share(comm, scanned);
  const auto parts = nlohmann::json::from_cbor(scanned);
  DataFiles files;
  files.train = TokenStream::deserialise(parts[0].get<std::string>());
  files.lengths = parts[1].get<std::vector<std::int64_t>>();
  for (const auto& set : parts[2])
    files.val.push_back(
        {set[0].get<std::string>(), TokenStream::deserialise(set[1].get<std::string>())});
  if (const auto json = parts[3].get<std::string>(); !json.empty())
    files.vocabulary = Vocabulary::from_json(json, parts[4].get<std::string>());
  together(comm, [&] { check_vocabularies(files, config); });
  verify(comm, config, files.train);
  for (const EvalFiles& set : files.val) verify(comm, config, set.stream);
  return files;
}

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
    std::int64_t windows = 0;
    std::unique_ptr<BatchSource> source;
  };
  std::optional<TokenBlend> blend;               ///< of token files
  std::shared_ptr<const StreamedText> streamed;  ///< of training on the fly
  std::int64_t streamed_windows = 0;             ///< in an epoch
  std::vector<EvalSet> eval_sets;
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
  std::string document_text() const;
  void open_files();
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
  if (config.on_the_fly)
    open_texts();
  else
    open_token_files();
  find_document_ends();
  for (const EvalFiles& set : files.val) {
    EvalSet& made = eval_sets.emplace_back();
    made.name = set.name;
    made.sampler = eval_sampler(set, config);
    made.windows = made.sampler->windows();
    if (config.eval_windows > 0) made.windows = std::min(made.windows, config.eval_windows);
  }
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

std::string Dataset::to_string() const {
  const State& s = *state_;
  if (s.config.synthetic)
    return fmt::format("random tokens, vocabulary of {}", format_count(s.vocab_size));
  const ReaderOptions& reader = s.config.reader;
  std::int64_t windows = 0;
  std::size_t val_files = 0;
  for (const State::EvalSet& set : s.eval_sets) windows += set.windows;
  for (const EvalFiles& set : s.files.val) val_files += set.stream.files().size();
  std::string text = fmt::format(
      "train {} in {}, {} an epoch; validation {} in {}, {}\nvocabulary of {}{}; reader {}{}",
      counted(train_tokens(), "token"),
      s.streamed ? counted(s.streamed->source.units().size(), "unit")
                 : counted(s.files.train.files().size(), "file"),
      counted(windows_per_epoch(), "window"), counted(val_tokens(), "token"),
      counted(val_files, "file"), counted(windows, "window"), format_count(s.vocab_size),
      s.files.vocabulary ? fmt::format(" ({})", name_of(s.files.vocabulary->kind())) : "",
      name_of(reader.kind), reader.preload == Preload::none ? "" : ", preloaded");
  if (s.streamed)
    text += fmt::format("\nencoded on the fly by {} a rank; {}",
                        counted(s.config.text_threads, "thread"),
                        counted(s.streamed->index.documents, "document"));
  if (s.config.documents) text += "\n" + s.document_text();
  if (const std::string blend = s.blend ? s.blend->to_string() : ""; !blend.empty())
    text += "\n" + blend;
  if (s.eval_sets.size() < 2) return text;
  for (std::size_t i = 0; i < s.eval_sets.size(); ++i)
    text += fmt::format("\nvalidation '{}': {}, {}", s.eval_sets[i].name,
                        counted(s.files.val[i].stream.count(), "token"),
                        counted(s.eval_sets[i].windows, "window"));
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
  const bool ahead =
      s.config.slots > 1 && (s.config.synthetic || may_read_in_thread(s.config.reader.kind));
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
