#include "src/data/text/data_files.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <utility>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/hash.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/data/text/prepare_text.hpp"
#include "src/data/text/text_files.hpp"
#include "src/data/text/text_index.hpp"

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

std::string cache_folder(const TextSource& source, const std::vector<std::string>& paths,
                         const DataConfig& config, double fraction, const Vocabulary* vocabulary) {
  return cache_name(source, paths, config,
                    fmt::format("{} {}", fraction, vocabulary ? vocabulary->hash() : 0));
}

// Returns the folder of a prepared text; prepares it if needed.
std::string prepared(const std::vector<std::string>& paths, const DataConfig& config,
                     double fraction, const Vocabulary* vocabulary) {
  const TextSource source = TextSource::open(paths, whole_files(config.text_field));
  const std::string folder = cache_folder(source, paths, config, fraction, vocabulary);
  const auto say = [&](const std::string& text) {
    if (config.say) config.say(text);
  };
  if (fs::exists(folder + "/meta.json")) {
    for (const std::string& one : source.notes()) say(one);
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
    for (const char* name : {"vocab.json", "tokenizer.json", "meta.pkl"})
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
    shared = vocabulary_beside_tokens(
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
    const Vocabulary trained = vocabulary_beside_tokens(vocabulary);
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
      if (!tokens || !is_validation_file(entry.path())) continue;
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
  const std::string json = vocabulary.empty() ? "" : vocabulary_beside_tokens(vocabulary).to_json();
  const auto bytes = nlohmann::json::to_cbor(
      nlohmann::json::array({train.serialise(), lengths, val, json, vocabulary}));
  return {bytes.begin(), bytes.end()};
}

void share_text(Communicator& comm, std::string& text) {
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

/// The named validation sets, with their texts prepared with the vocabulary of the checkpoint,
/// which is nullptr only if no set is text (names_text()).
std::string scan_validation(const DataConfig& config, const Vocabulary* trained) {
  std::vector<NamedPaths> sets = named_sets(config);
  for (NamedPaths& set : sets) {
    if (is_text(set.paths)) set.paths = {prepared(set.paths, config, 0.0, trained)};
  }
  const auto bytes = nlohmann::json::to_cbor(serialised(sets, config.format));
  return {bytes.begin(), bytes.end()};
}

void require_vocabulary_of_checkpoint(const EvalFiles& set, std::uint64_t trained) {
  const std::uint64_t hash = set.stream.vocab_hash();
  if (hash == 0 || trained == 0 || hash == trained) return;
  throw DataError(fmt::format("the vocabulary of '{}' ({:016x}) is not that of the checkpoint "
                              "({:016x})",
                              set.stream.files().front().path, hash, trained),
                  "data must be prepared with the vocabulary that the model was trained with");
}

}  // namespace

bool names_text(Communicator& comm, const DataConfig& config) {
  std::int32_t found = 0;
  together(comm, [&] {
    if (comm.rank() != 0) return;
    for (const NamedPaths& set : named_sets(config)) found |= is_text(set.paths) ? 1 : 0;
  });
  comm.broadcast(&found, sizeof found, 0);
  return found != 0;
}

DataFiles find_validation_files(Communicator& comm, const DataConfig& config) {
  DataFiles files;
  if (!config.trained_vocabulary.empty())
    files.vocabulary = Vocabulary::from_json(config.trained_vocabulary, "the checkpoint");
  std::string scanned;
  together(comm, [&] {
    if (comm.rank() == 0)
      scanned = scan_validation(config, files.vocabulary ? &*files.vocabulary : nullptr);
  });
  share_text(comm, scanned);
  for (const auto& set : nlohmann::json::from_cbor(scanned))
    files.val.push_back(
        {set[0].get<std::string>(), TokenStream::deserialise(set[1].get<std::string>())});
  together(comm, [&] {
    for (const EvalFiles& set : files.val) require_vocabulary_of_checkpoint(set, config.vocab_hash);
  });
  for (const EvalFiles& set : files.val) verify(comm, config, set.stream);
  return files;
}

DataFiles find_data_files(Communicator& comm, const DataConfig& config) {
  std::string scanned;
  together(comm, [&] {
    if (comm.rank() == 0) scanned = scan_splits(config);
  });
  share_text(comm, scanned);
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

DataFiles find_streamed_files(Communicator& comm, const DataConfig& config) {
  std::string scanned;
  together(comm, [&] {
    if (comm.rank() == 0) scanned = scan_streamed(config);
  });
  share_text(comm, scanned);
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
    if (comm.rank() == 0 && config.say)
      for (const std::string& one : source->notes()) config.say(one);
  });
  require_equal(comm, source->digest(), "the list of text files");
  TextIndex index = index_texts(comm, *source, vocabulary, options);
  if (const std::string damage = index.damaged.to_string(); !damage.empty() && config.say)
    config.say(damage);
  return std::make_shared<const StreamedText>(
      StreamedText{std::move(*source), vocabulary, std::move(index)});
}

}  // namespace choir
