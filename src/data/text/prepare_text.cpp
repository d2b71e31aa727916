#include "src/data/text/prepare_text.hpp"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/core/json_value.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/data/text/text_files.hpp"
#include "src/data/text/token_file.hpp"
#include "src/data/vocabulary/bpe_training.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {

Vocabulary train_text_bpe(Communicator& ranks, const std::vector<std::string>& paths,
                          std::int64_t vocab_size, const std::string& field) {
  constexpr std::int64_t kLeast = 257, kMost = std::int64_t{1} << 24;
  BpeTraining training;
  WordCounts counts;
  together(ranks, [&] {
    if (vocab_size < kLeast || vocab_size > kMost)
      throw DeckError(
          fmt::format("a vocabulary of {}", vocab_size),
          fmt::format("--vocab-size from {} (the bytes and <|endoftext|>) to {}", kLeast, kMost));
    training.vocab_size = static_cast<std::int32_t>(vocab_size);
    const PreTokenizer splitter({training.splitter});
    const TextSource source = TextSource::open(paths, whole_files(field));
    const auto size = static_cast<std::size_t>(ranks.size());
    DamagedRows damaged;  // the encoding that follows reports them
    for (auto u = static_cast<std::size_t>(ranks.rank()); u < source.units().size(); u += size) {
      const std::string name = source.place_of(u);
      if (source.has_documents(u))
        source.read(
            u,
            [&](std::string_view text, std::int64_t) {
              count_words(splitter, text, false, name, 0, counts);
            },
            damaged);
      else
        read_text(source.file_of(u),
                  [&](std::string_view text, std::int64_t offset, bool more_follows) {
                    return count_words(splitter, text, more_follows, name, offset, counts);
                  });
    }
  });
  counts = sum_word_counts(ranks, counts);
  std::optional<Vocabulary> vocabulary;
  together(ranks, [&] {
    const TrainedBpe bpe = train_bpe(counts, training);
    if (std::ssize(bpe.entries) < vocab_size)
      throw DeckError(fmt::format("the text has repeated pairs for {} tokens, not for {}",
                                  std::ssize(bpe.entries), vocab_size),
                      fmt::format("--vocab-size {}, or more text", std::ssize(bpe.entries)));
    vocabulary = Vocabulary::from_json(tokenizer_json_of(bpe, training), "the trained tokenizer");
  });
  return *vocabulary;
}

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kCodePoints = 0x110000;
constexpr std::size_t kShownBytes = 240;

/// True if the number of tokens of a text is unknown before it is encoded.
bool is_of_pieces(const Vocabulary& vocabulary) {
  return vocabulary.kind() == VocabularyKind::bpe ||
         vocabulary.kind() == VocabularyKind::sentencepiece;
}

struct Scan {
  std::vector<char32_t> characters;
  std::int64_t code_points = 0, bytes = 0;
  TextCounts counts;
};

/// A line end follows each document, because these vocabularies have no token for its end.
Scan scan_source(const TextSource& source) {
  Scan result;
  std::vector<bool> seen(kCodePoints, false);
  const auto use = [&](char32_t c) {
    seen[static_cast<std::size_t>(c)] = true;
    ++result.code_points;
  };
  const auto use_document = [&](std::string_view text, std::int64_t) {
    ++result.counts.documents;
    result.bytes += std::ssize(text) + 1;
    while (!text.empty()) {
      const CodePoint c = first_code_point(text);
      use(c.value);
      text.remove_prefix(static_cast<std::size_t>(c.length));
    }
    use(U'\n');
  };
  for (std::size_t unit = 0; unit < source.units().size(); ++unit) {
    if (source.has_documents(unit)) {
      source.read(unit, use_document, result.counts.damaged);
    } else {
      scan_code_points(source.file_of(unit), use);
      result.bytes += source.file_of(unit).bytes - source.file_of(unit).mark;
    }
  }
  for (std::size_t c = 0; c < kCodePoints; ++c)
    if (seen[c]) result.characters.push_back(static_cast<char32_t>(c));
  return result;
}

// Cuts a sequence of tokens into shards: training first, then validation.
class ShardWriter {
 public:
  ShardWriter(std::string folder, const Vocabulary& vocabulary, std::int64_t train_tokens,
              std::int64_t per_shard)
      : folder_(std::move(folder)),
        vocabulary_(vocabulary),
        train_tokens_(train_tokens),
        per_shard_(per_shard) {}

  void append(std::span<const std::int32_t> ids) {
    while (!ids.empty()) {
      if (!shard_) open();
      std::int64_t here = std::min<std::int64_t>(std::ssize(ids), per_shard_ - shard_->count());
      if (written_ < train_tokens_) here = std::min(here, train_tokens_ - written_);
      shard_->append(ids.first(static_cast<std::size_t>(here)));
      ids = ids.subspan(static_cast<std::size_t>(here));
      written_ += here;
      if (shard_->count() == per_shard_ || written_ == train_tokens_) close();
    }
  }
  void close() {
    if (shard_) shard_->finish();
    shard_.reset();
  }
  std::int64_t written() const { return written_; }
  std::int64_t train_shards() const { return train_shards_; }
  std::int64_t val_shards() const { return val_shards_; }

 private:
  void open() {
    const bool train = written_ < train_tokens_;
    const std::int64_t index = train ? train_shards_++ : val_shards_++;
    shard_.emplace(fmt::format("{}/{}_{:05}.tok", folder_, train ? "train" : "val", index),
                   vocabulary_.size(), vocabulary_.hash());
  }

  std::string folder_;
  const Vocabulary& vocabulary_;
  std::int64_t train_tokens_, per_shard_;
  std::int64_t written_ = 0, train_shards_ = 0, val_shards_ = 0;
  std::optional<TokenFileWriter> shard_;
};

/// A temporary file of ids. The split into training and validation depends on the number of ids,
/// which is known only when all are encoded.
class Spool {
 public:
  explicit Spool(const std::string& folder)
      : path_(folder + "/ids"), file_(PosixFile::for_writing(path_)) {}

  void append(std::span<const std::int32_t> ids) {
    file_.write_at(ids.data(), ids.size_bytes(), bytes_of(count_));
    count_ += std::ssize(ids);
  }
  std::int64_t count() const { return count_; }
  void move_to(ShardWriter& writer) const {
    constexpr std::int64_t kAtOnce = std::int64_t{1} << 20;
    const PosixFile file = PosixFile::for_reading(path_);
    std::vector<std::int32_t> ids;
    for (std::int64_t at = 0; at < count_; at += kAtOnce) {
      ids.resize(static_cast<std::size_t>(std::min(kAtOnce, count_ - at)));
      file.read_at(ids.data(), ids.size() * sizeof ids[0], bytes_of(at));
      writer.append(ids);
    }
    writer.close();
    fs::remove(path_);
  }

 private:
  static std::int64_t bytes_of(std::int64_t ids) {
    return ids * static_cast<std::int64_t>(sizeof(std::int32_t));
  }

  std::string path_;
  PosixFile file_;
  std::int64_t count_ = 0;
};

void write_meta(const PrepareSummary& summary, const std::string& request,
                const std::string& folder) {
  nlohmann::ordered_json meta;
  meta["format"] = "choir-text";
  meta["version"] = 1;
  meta["tokenizer"] = name_of(summary.vocabulary->kind());
  meta["vocab_size"] = summary.vocabulary->size();
  meta["vocab_hash"] = fmt::format("{:016x}", summary.vocabulary->hash());
  meta["text_files"] = summary.files;
  meta["text_bytes"] = summary.text_bytes;
  if (summary.has_documents) {
    meta["documents"] = summary.documents;
    meta["damaged_rows"] = summary.damaged.count();
  }
  for (const auto& [key, value] : {std::pair{"train_tokens", summary.train_tokens},
                                   std::pair{"val_tokens", summary.val_tokens},
                                   std::pair{"train_shards", summary.train_shards},
                                   std::pair{"val_shards", summary.val_shards}})
    meta[key] = static_cast<std::uint64_t>(value);
  if (!request.empty()) meta["prepared_with"] = nlohmann::ordered_json::parse(request);
  const std::string text = dumped(meta, 1) + "\n";
  PosixFile file = PosixFile::for_writing(folder + "/meta.json");
  file.write_at(text.data(), text.size(), 0);
  file.sync();
}

constexpr const char* kPartial = ".partial-";
constexpr const char* kOld = ".old-";

// The mark of a folder names its owner: a process and its host, on which other processes can check
// whether it still runs.
std::string own_mark() {
  return fmt::format("{}-{}", host_name(), ::getpid());
}

// True if the mark names a process of this host that has ended.
bool is_dead(const std::string& mark) {
  const std::string host = host_name() + "-";
  if (!mark.starts_with(host)) return false;
  pid_t process = 0;
  const char* end = mark.data() + mark.size();
  const auto [stop, error] = std::from_chars(mark.data() + host.size(), end, process);
  if (error != std::errc() || stop != end || process <= 0) return false;
  return process == ::getpid() || (::kill(process, 0) != 0 && errno == ESRCH);
}

// The unfinished folder, which is removed unless commit() renames it.
class Workplace {
 public:
  explicit Workplace(std::string out) : out_(std::move(out)) {
    while (out_.size() > 1 && out_.back() == '/') out_.pop_back();
    work_ = out_ + kPartial + own_mark();
    if (fs::exists(out_) && !fs::is_directory(out_))
      throw DataError(fmt::format("'{}' exists and is not a folder", out_), "name another --out");
    if (fs::exists(out_) && !fs::is_empty(out_) && !fs::exists(out_ + "/meta.json"))
      throw DataError(fmt::format("folder '{}' contains files other than prepared data", out_),
                      "name an empty or a new folder");
    clear_leftovers();
    std::error_code failure;
    fs::create_directories(work_, failure);
    if (failure)
      throw StorageError(fmt::format("cannot create '{}': {}", work_, failure.message()),
                         "check the permissions and the free space");
  }
  ~Workplace() {
    std::error_code ignored;
    fs::remove_all(work_, ignored);
  }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;

  const std::string& path() const { return work_; }
  const std::string& final_path() const { return out_; }

  void commit() {
    sync_directory(work_);
    const std::string old = out_ + kOld + own_mark();
    std::error_code failure;
    if (fs::exists(out_)) fs::rename(out_, old, failure);
    if (!failure) fs::rename(work_, out_, failure);
    if (failure)
      throw StorageError(
          fmt::format("cannot rename '{}' to '{}': {}", work_, out_, failure.message()));
    fs::remove_all(old, failure);
    sync_directory(fs::path(out_).parent_path());
  }

 private:
  /// Removes the folders that killed runs left beside the output. A run that was killed between the
  /// two renames of commit() left the older folder under another name, which is restored.
  void clear_leftovers() const {
    const fs::path whole = fs::absolute(out_);
    const std::string name = whole.filename().string();
    std::error_code ignored;
    std::vector<fs::path> partial, old;
    for (const auto& entry : fs::directory_iterator(whole.parent_path(), ignored)) {
      const std::string found = entry.path().filename().string();
      for (auto [mark, list] : {std::pair(kPartial, &partial), std::pair(kOld, &old)})
        if (found.starts_with(name + mark) &&
            is_dead(found.substr(name.size() + std::strlen(mark))))
          list->push_back(entry.path());
    }
    for (const fs::path& path : old)
      if (!fs::exists(whole)) fs::rename(path, whole, ignored);
    for (const auto* list : {&partial, &old})
      for (const fs::path& path : *list) fs::remove_all(path, ignored);
  }

  std::string out_, work_;
};

}  // namespace

std::string PrepareSummary::to_string() const {
  std::string shown;
  for (std::int32_t id = 0; id < vocabulary->size(); ++id) {
    const VocabularyKind kind = vocabulary->kind();
    if (kind == VocabularyKind::byte || is_of_pieces(*vocabulary) || shown.size() > kShownBytes)
      break;
    const std::string character = vocabulary->piece(id);
    if (static_cast<unsigned char>(character.front()) >= ' ') shown += character;
  }
  std::string speed, rows;
  if (has_documents) rows = fmt::format("documents   {}\n", format_count(documents));
  for (const std::string& one : notes) rows += fmt::format("note        {}\n", one);
  if (damaged.count() > 0) rows += fmt::format("damaged     {}\n", damaged.to_string());
  if (encoding_seconds > 0)
    speed =
        fmt::format("speed       {:.1f} MB/s of text to tokens on {} rank{}\n",
                    static_cast<double>(text_bytes) / 1e6 / encoding_seconds, ranks, plural(ranks));
  return fmt::format(
      "text        {} file{}, {}\n{}{}vocabulary  {} ({} entries, hash {:016x}) {}\n"
      "train       {} tokens in {} file{}\nval         {} tokens in {} file{}\nwritten to  {}\n"
      "in a deck   data.train = [\"{}\"]",
      files, plural(files), format_bytes(static_cast<double>(text_bytes)), rows, speed,
      name_of(vocabulary->kind()), vocabulary->size(), vocabulary->hash(), shown,
      format_count(train_tokens), train_shards, plural(train_shards), format_count(val_tokens),
      val_shards, plural(val_shards), folder, folder);
}

namespace {

void check(const PrepareOptions& options) {
  if (!(options.train_fraction >= 0 && options.train_fraction <= 1))
    throw DeckError(fmt::format("train fraction {} outside [0, 1]", options.train_fraction));
  if (options.tokens_per_shard < 1)
    throw DeckError(fmt::format("{} tokens per shard", options.tokens_per_shard), "at least 1");
}

PrepareSummary summary_of(const TextSource& source, const Vocabulary& vocabulary,
                          const TextCounts& counts) {
  PrepareSummary summary;
  summary.vocabulary = vocabulary;
  summary.files = std::ssize(source.files());
  for (const auto& file : source.files()) summary.text_bytes += file.bytes;
  summary.has_documents = source.has_documents();
  summary.documents = counts.documents;
  summary.damaged = counts.damaged;
  summary.notes = source.notes();
  return summary;
}

/// The names of the fields of the first row, if it is an object of JSON lines: "id, content".
std::string fields_of_first_row(const std::string& path) {
  constexpr std::size_t kLongest = 1 << 20;
  std::ifstream file(path, std::ios::binary);
  std::string line;
  for (char c = 0; file.get(c) && c != '\n' && line.size() < kLongest;) line += c;
  const nlohmann::json row = json_unless_broken(line);
  if (!row.is_object()) return {};
  std::string names;
  for (const auto& [name, value] : row.items()) names += (names.empty() ? "" : ", ") + name;
  return names;
}

/// The number of tokens must not be 0: a wrong name of the field would otherwise go unnoticed.
void require_some(const TextSource& source, const TextCounts& counts, std::int64_t tokens) {
  if (tokens > 0) return;
  const std::string damage = counts.damaged.to_string();
  const std::string& path = source.files().front().path;
  const std::string fields = fields_of_first_row(path);
  throw DataError(
      fmt::format("no row of '{}' has a text{}{}", path, damage.empty() ? "" : ": ", damage),
      "name the field or the column of the text with --text-field (data.text_field in a deck)" +
          (fields.empty() ? "" : "; the first row has the fields " + fields));
}

void divide(PrepareSummary& summary, std::int64_t total, const std::string& path,
            double train_fraction) {
  summary.train_tokens = static_cast<std::int64_t>(static_cast<double>(total) * train_fraction);
  summary.val_tokens = total - summary.train_tokens;
  if (train_fraction > 0 && summary.train_tokens == 0)
    throw DeckError(
        fmt::format("none of the {} tokens of '{}' is left for training: the training fraction "
                    "is {:.3g}",
                    total, path, train_fraction),
        fmt::format("in a deck: data.val_fraction of at most {:.4g}; for `choir prepare text`: a "
                    "greater --train-fraction",
                    1.0 - 1.0 / static_cast<double>(std::max<std::int64_t>(total, 2))));
}

/// Writes the shards with `write`, then the other files, and commits the folder.
void finish(PrepareSummary& summary, Workplace& workplace, const PrepareOptions& options,
            const std::function<void(ShardWriter&)>& write) {
  ShardWriter writer(workplace.path(), *summary.vocabulary, summary.train_tokens,
                     options.tokens_per_shard);
  write(writer);
  if (writer.written() != summary.train_tokens + summary.val_tokens)
    throw DataError(
        fmt::format("the text changed while it was read: it has {} tokens, and had {} before",
                    writer.written(), summary.train_tokens + summary.val_tokens));
  summary.train_shards = writer.train_shards();
  summary.val_shards = writer.val_shards();
  const bool has_file = summary.vocabulary->kind() == VocabularyKind::bpe;
  summary.vocabulary->save(workplace.path() + (has_file ? "/tokenizer.json" : "/vocab.json"));
  write_meta(summary, options.request, workplace.path());
  workplace.commit();
  summary.folder = workplace.final_path();
}

/// Prepares with a vocabulary of bytes or characters, whose number of tokens is known before
/// encoding.
PrepareSummary prepare_characters(const TextSource& source, const std::string& out_dir,
                                  const PrepareOptions& options) {
  const Scan text = scan_source(source);
  require_some(source, text.counts, text.bytes);
  PrepareSummary summary = summary_of(source,
                                      options.vocabulary != nullptr ? *options.vocabulary
                                      : options.tokenizer == VocabularyKind::byte
                                          ? Vocabulary::bytes()
                                          : Vocabulary::characters(text.characters),
                                      text.counts);
  const bool bytes = summary.vocabulary->kind() == VocabularyKind::byte;
  divide(summary, bytes ? text.bytes : text.code_points, source.files().front().path,
         options.train_fraction);
  Workplace workplace(out_dir);
  finish(summary, workplace, options, [&](ShardWriter& writer) {
    encode_texts(nullptr, source, *summary.vocabulary, options.part_bytes,
                 [&](std::span<const std::int32_t> ids) { writer.append(ids); });
    writer.close();
  });
  return summary;
}

}  // namespace

void require_same_request(const std::string& out_dir, const std::string& request) {
  constexpr std::size_t kMostMib = 16;
  const std::string path = out_dir + "/meta.json";
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return;
  const nlohmann::json meta = json_unless_broken(read_capped_file(path, kMostMib).text);
  const auto member = [](const nlohmann::json& object, const char* name) {
    return object.is_object() && object.contains(name) ? object[name] : nlohmann::json();
  };
  const nlohmann::json old = member(meta, "prepared_with");
  const nlohmann::json wanted = nlohmann::json::parse(request);
  if (old == wanted) return;
  std::string differences;
  for (const auto& [name, value] : wanted.items())
    if (old.is_object() && member(old, name.c_str()) != value)
      differences += (differences.empty() ? "" : ", ") + name;
  const nlohmann::json files = member(meta, "text_files"), tokenizer = member(meta, "tokenizer");
  const bool counted = files.is_number_integer() && tokenizer.is_string();
  throw DataError(
      fmt::format("'{}' already holds other prepared data{}{}", out_dir,
                  counted ? fmt::format(": {}, tokenizer {}",
                                        choir::counted(files.get<std::int64_t>(), "text file"),
                                        tokenizer.get<std::string>())
                          : "",
                  differences.empty() ? "" : fmt::format("; another request in: {}", differences)),
      "name another --out, because runs that were trained on these data need them; --overwrite "
      "replaces them");
}

PrepareSummary prepare_text(const std::vector<std::string>& paths, const std::string& out_dir,
                            const PrepareOptions& options, Communicator* ranks) {
  const bool writes = ranks == nullptr || ranks->rank() == 0;
  const bool by_pieces = options.vocabulary != nullptr && is_of_pieces(*options.vocabulary);
  PrepareSummary summary;
  std::optional<TextSource> source;
  std::optional<Workplace> workplace;
  std::optional<Spool> spool;
  const auto agreed = [&](const std::function<void()>& action) {
    ranks ? together(*ranks, action) : action();
  };
  agreed([&] {
    check(options);
    source = TextSource::open(paths, whole_files(options.field));
    if (!writes) return;
    if (!by_pieces) {
      summary = prepare_characters(*source, out_dir, options);
    } else {
      workplace.emplace(out_dir);
      spool.emplace(workplace->path());
    }
  });
  if (!by_pieces) return summary;
  if (ranks) require_equal(*ranks, source->digest(), "the list of text files");
  const double began = now_seconds();
  const TextCounts counts =
      encode_texts(ranks, *source, *options.vocabulary, options.part_bytes,
                   [&](std::span<const std::int32_t> ids) { spool->append(ids); });
  const double seconds = now_seconds() - began;
  agreed([&] {
    if (!writes) return;
    require_some(*source, counts, spool->count());
    summary = summary_of(*source, *options.vocabulary, counts);
    summary.encoding_seconds = seconds;
    summary.ranks = ranks ? ranks->size() : 1;
    divide(summary, spool->count(), source->files().front().path, options.train_fraction);
    finish(summary, *workplace, options, [&](ShardWriter& writer) { spool->move_to(writer); });
  });
  return summary;
}

}  // namespace choir
