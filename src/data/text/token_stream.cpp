#include "src/data/text/token_stream.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/hash.hpp"
#include "src/core/hints.hpp"
#include "src/core/json_value.hpp"
#include "src/data/sources/text_rows.hpp"
#include "src/data/text/token_file.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlockBytes = std::size_t{1} << 22;
constexpr std::string_view kTrainPart = "train";

bool has_native_magic(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::array<char, 8> magic{};
  return file.read(magic.data(), magic.size()) && std::memcmp(magic.data(), "CHOIRTOK", 8) == 0;
}

/// The header of llm.c: 256 integers, the first three of them magic, version and count.
struct LlmcHeader {
  static constexpr std::int64_t kBytes = 1024;
  int token_bytes = 0;  ///< 0: not a file of llm.c
  std::int64_t count = 0;
};

LlmcHeader llmc_header(const std::string& path) {
  struct Kind {
    std::int32_t magic, version;
    int token_bytes;
  };
  constexpr std::int32_t kQuestions = 20240522;
  constexpr std::array<Kind, 2> kKinds{{{20240520, 1, 2}, {20240801, 7, 4}}};
  std::ifstream file(path, std::ios::binary);
  std::array<std::int32_t, 3> first{};
  if (!file.read(reinterpret_cast<char*>(first.data()), sizeof first)) return {};
  if (first[0] == kQuestions && first[1] == 1)
    throw DataError(fmt::format("'{}' contains multiple-choice questions of llm.c, not text", path),
                    "name its token files");
  for (const Kind& kind : kKinds) {
    if (first[0] != kind.magic) continue;
    if (first[1] != kind.version)
      throw DataError(fmt::format("'{}' is an llm.c token file of version {}", path, first[1]),
                      fmt::format("only version {} is supported", kind.version));
    return {kind.token_bytes, first[2]};
  }
  return {};
}

/// True for the first bytes of a text: no control characters, and valid UTF-8. Tokens of 16 bits
/// have such bytes alone only if there are a few of them.
bool reads_as_text(std::string_view head) {
  constexpr std::size_t kFewest = 64;
  const auto is_control = [](char c) {
    return static_cast<unsigned char>(c) < 0x20 && c != '\t' && c != '\n' && c != '\r';
  };
  if (head.size() < kFewest || std::any_of(head.begin(), head.end(), is_control)) return false;
  const std::size_t valid = valid_utf8(head);
  return valid == head.size() || first_code_point(head.substr(valid)).incomplete;
}

/// True if three of four words are 0, as in ids of 64 bits: NumPy's default, which numpy.tofile()
/// writes.
bool has_64_bits(const std::vector<std::uint16_t>& words) {
  constexpr std::size_t kFewest = 4 * 32;
  if (words.size() < kFewest) return false;
  bool first_words = false;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (i % 4 == 0) first_words = first_words || words[i] > 0;
    // An id above 65,535 has a second word, of at most 15.
    const std::uint16_t most = i % 4 == 0 ? UINT16_MAX : i % 4 == 1 ? 15 : 0;
    if (words[i] > most) return false;
  }
  return first_words;
}

/// Throws DataError for a file that has other contents than tokens of 16 or 32 bits without a
/// header.
void require_raw_tokens(const std::string& path) {
  constexpr std::int64_t kSeen = 4096;
  constexpr std::size_t kBytesOfKind = 3;  // two bytes may be a token
  const PosixFile file = PosixFile::for_reading(path);
  std::string head(static_cast<std::size_t>(std::min(file.size(), kSeen)), '\0');
  file.read_at(head.data(), head.size(), 0);
  const auto refuse = [&](std::string_view what, std::string_view cure) {
    throw DataError(fmt::format("token file '{}' is {}, not raw token ids", path, what),
                    std::string(cure));
  };
  if (const auto known = known_kind(head, kBytesOfKind)) refuse(known->name, known->cure);
  if (reads_as_text(head))
    refuse("text",
           "give it a name that ends in .txt (.jsonl for JSON lines): texts are tokenised with "
           "data.tokenizer or `choir prepare text`");
  std::vector<std::uint16_t> words(file.size() % 8 == 0 ? head.size() / sizeof(std::uint16_t) : 0);
  std::memcpy(words.data(), head.data(), words.size() * sizeof words[0]);
  if (has_64_bits(words))
    refuse("an array of 64-bit integers",
           fmt::format("ids have 16 or 32 bits; in Python: numpy.fromfile('{}', 'int64')"
                       ".astype('uint32').tofile('NEW.bin')",
                       path));
}

/// 4 if the raw tokens of a file have 32 bits, as the ids of vocabularies above 65,536 must. Their
/// upper halves are tiny, which every second token of 16 bits is not. Files with tiny ids alone
/// have 16 bits.
int raw_token_bytes(const std::string& path) {
  constexpr std::size_t kSeen = 4096, kFewest = 64;
  constexpr std::uint16_t kMostUpper = 15;  // ids below 2^20
  const PosixFile file = PosixFile::for_reading(path);
  if (file.size() % 4 != 0) return 2;
  std::vector<std::uint16_t> words(2 * std::min(kSeen, static_cast<std::size_t>(file.size()) / 4));
  if (words.size() < 2 * kFewest) return 2;
  file.read_at(words.data(), words.size() * sizeof words[0], 0);
  bool large = false;
  for (std::size_t i = 0; i < words.size(); i += 2) {
    if (words[i + 1] > kMostUpper) return 2;
    large = large || words[i] > kMostUpper;
  }
  return large ? 4 : 2;
}

bool is_megatron_prefix(const std::string& path) {
  return !fs::exists(path) && fs::is_regular_file(path + ".bin") &&
         fs::is_regular_file(path + ".idx");
}

std::string index_beside(const std::string& bin) {
  return fs::path(bin).replace_extension(".idx");
}

[[noreturn]] void refuse_lone_index(const std::string& path) {
  const fs::path tokens = fs::path(path).replace_extension(".bin");
  throw DataError(fmt::format("'{}' is the index of a Megatron pair and holds no tokens", path),
                  fs::exists(tokens) ? fmt::format("name '{}' beside it", tokens.string())
                                     : fmt::format("the tokens are in '{}', which is missing: copy "
                                                   "it into this folder and name it",
                                                   tokens.string()));
}

/// Advice on tokens that do not exist: on Megatron's blends ("0.3 data/a 0.7 data/b", in a list or
/// in one text), on patterns, and on misspelt names.
std::string advice_on_tokens(const std::string& path) {
  const std::string first = path.substr(0, path.find(' '));
  double weight = 0;
  const char* end = first.data() + first.size();
  const bool number = std::from_chars(first.data(), end, weight).ptr == end && !first.empty();
  // A folder may be called "2026".
  if (number && (first.size() < path.size() || first.find('.') != std::string::npos))
    return fmt::format(
        "a blend with weights, which Megatron writes as '{} PATH ...', is a list in data.input_cfg "
        "in place of data.train: 'data.input_cfg=[{{\"folder\": \"PATH\", \"weight\": {}}}, ...]'",
        first, first);
  if (path.find('$') != std::string::npos)
    return "variables of the environment are not replaced in a deck: write the path, or give it on "
           "the command line, where the shell replaces them (\"data.train=$HOME/...\")";
  if (path.find_first_of("*?{[") != std::string::npos)
    return fmt::format(
        "patterns are not expanded: name the folder '{}', of which the files with the word 'train' "
        "in their names are trained on and those with 'val' are for validation, or each file",
        fs::path(path).has_parent_path() ? fs::path(path).parent_path().string() : ".");
  if (fs::is_regular_file(path + ".idx")) refuse_lone_index(path + ".idx");
  return advice_on_path(path, "'choir prepare text' makes token files");
}

bool is_token_name(const fs::path& path) {
  return path.extension() == ".tok" || path.extension() == ".bin";
}

std::vector<std::string> token_files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_regular_file() && is_token_name(entry.path())) names.push_back(entry.path());
  std::sort(names.begin(), names.end());
  return names;
}

/// True if `part` is a word of the file's name, or begins its first word: "train_0001.bin",
/// "fineweb_train_000001.bin", "tiny_shakespeare_val.bin".
bool is_of_part(const std::string& path, std::string_view part) {
  const std::string name = fs::path(path).stem();
  if (name.starts_with(part)) return true;
  const auto separates = [](char c) { return c == '_' || c == '-' || c == '.'; };
  for (std::size_t at = name.find(part); at != std::string::npos; at = name.find(part, at + 1)) {
    const std::size_t end = at + part.size();
    if (separates(name[at - 1]) && (end == name.size() || separates(name[end]))) return true;
  }
  return false;
}

std::vector<std::string> of_split(const std::vector<std::string>& names, Split split) {
  const bool split_by_name = std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return is_of_part(name, kTrainPart) || is_validation_file(name);
  });
  if (!split_by_name) return names;
  std::vector<std::string> chosen;
  for (const auto& name : names)
    if (split == Split::train ? is_of_part(name, kTrainPart) : is_validation_file(name))
      chosen.push_back(name);
  return chosen;
}

// Checks the number of shards against the meta.json of a prepared folder, so that a missing one is
// noticed.
void check_shards(const std::string& folder, Split split, std::size_t found) {
  const std::string path = folder + "/meta.json";
  if (!std::ifstream(path)) return;
  const auto meta = read_json(read_whole_file(path, kMostSettingsMiB), path);
  const char* key = split == Split::train ? "train_shards" : "val_shards";
  if (!meta.is_object() || !meta.contains(key) || !meta[key].is_number_unsigned()) return;
  const auto expected = meta[key].get<std::size_t>();
  if (expected == found) return;
  throw DataError(fmt::format("folder '{}' has {} {} token files, its meta.json says {}", folder,
                              found, split == Split::train ? "train" : "val", expected),
                  "copy the missing files or prepare the data again");
}

std::int32_t token_at(const char* packed, std::size_t i, int token_bytes) {
  if (token_bytes == 4) {
    std::int32_t id;
    std::memcpy(&id, packed + 4 * i, 4);
    return id;
  }
  std::uint16_t id;
  std::memcpy(&id, packed + 2 * i, 2);
  return id;
}

}  // namespace

bool is_validation_file(const std::string& path) {
  return is_of_part(path, "val") || is_of_part(path, "valid") || is_of_part(path, "validation");
}

bool holds_tokens(const std::string& path) {
  if (is_megatron_prefix(path)) return true;
  if (fs::is_directory(path)) return !token_files_in(path).empty();
  return is_token_name(path) || fs::path(path).extension() == ".idx" || has_native_magic(path);
}

TokenStream TokenStream::open(const std::vector<std::string>& paths, TokenFormat format,
                              Split split) {
  const char* role = split == Split::train ? "training" : "validation";
  if (paths.empty())
    throw DataError(fmt::format("no {} data given", role), "name files or folders in the deck");
  TokenStream stream;
  for (const auto& path : paths) {
    if (!fs::is_directory(path)) {
      stream.add(path, format);
      continue;
    }
    const auto names = of_split(token_files_in(path), split);
    check_shards(path, split, names.size());
    if (names.empty())
      throw DataError(fmt::format("folder '{}' has no token files for {}", path, role),
                      fmt::format("expected *.tok or *.bin with the word '{}' in the name if any "
                                  "file of the folder has 'train' or 'val'; 'choir prepare text' "
                                  "makes them",
                                  split == Split::train ? kTrainPart : "val"));
    for (const auto& name : names) stream.add(name, format);
  }
  return stream;
}

TokenStream TokenStream::of_files(std::vector<TokenFile> files, int item_bytes) {
  CHOIR_CHECK(item_bytes == 2 || item_bytes == 4, "items of {} bytes", item_bytes);
  TokenStream stream;
  stream.token_bytes_ = item_bytes;
  for (TokenFile& file : files) {
    file.first = stream.count();
    stream.files_.push_back(std::move(file));
  }
  return stream;
}

void TokenStream::append(const TokenStream& other) {
  if (other.files_.empty()) return;
  const std::string& path = other.files_.front().path;
  if (vocab_hash_ != 0 && other.vocab_hash_ != 0 && vocab_hash_ != other.vocab_hash_)
    throw DataError(fmt::format("'{}' was made with vocabulary {:016x}, '{}' with {:016x}", path,
                                other.vocab_hash_, files_.front().path, vocab_hash_),
                    "prepare all texts of a blend with one vocabulary");
  agree_width(path, other.token_bytes_);
  if (vocab_hash_ == 0) vocab_hash_ = other.vocab_hash_;
  vocab_size_ = std::max(vocab_size_, other.vocab_size_);
  for (TokenFile file : other.files_) {
    file.first = count();
    files_.push_back(std::move(file));
  }
}

void TokenStream::add(const std::string& path, TokenFormat format) {
  if (is_megatron_prefix(path)) return add(path + ".bin", TokenFormat::megatron);
  if (path == "YOUR-TOKENS")
    throw DataError(
        "the deck of an imported model names no data yet",
        "add 'data.train=[\"FOLDER\"]' with a folder of `choir prepare text` to train, or "
        "'data.val=[\"FOLDER\"]' to evaluate");
  if (!fs::exists(path) && path.starts_with('[') && path.ends_with(']'))
    throw DataError(fmt::format("'{}' does not exist", path),
                    fmt::format("the texts of a list have quotes, which a shell takes away: "
                                "'data.train=[\"{}\"]'; or without brackets: data.train={}",
                                path.substr(1, path.size() - 2), path.substr(1, path.size() - 2)));
  if (!fs::exists(path))
    throw DataError(fmt::format("{} '{}' does not exist",
                                path.ends_with(".txt") ? "text file" : "token file", path),
                    advice_on_tokens(path));
  if (fs::path(path).extension() == ".idx") refuse_lone_index(path);
  if (format == TokenFormat::automatic) {
    const bool raw = fs::path(path).extension() == ".bin" && !has_native_magic(path);
    format = !raw                             ? TokenFormat::native
             : fs::exists(index_beside(path)) ? TokenFormat::megatron
                                              : TokenFormat::nanogpt;
  }
  if (format == TokenFormat::native) return add_native(path);
  if (format == TokenFormat::nanogpt)
    if (const LlmcHeader llmc = llmc_header(path); llmc.token_bytes != 0) {
      add_raw(path, llmc.token_bytes, LlmcHeader::kBytes);
      if (files_.back().count != llmc.count)
        throw DataError(fmt::format("token file '{}' has {} tokens, its header says {}", path,
                                    files_.back().count, llmc.count),
                        "it is truncated or damaged");
      return;
    }
  if (format == TokenFormat::nanogpt) {
    require_raw_tokens(path);
    return add_raw(path, raw_token_bytes(path));
  }
  add_raw(path, read_megatron_index(index_beside(path), path));
  files_.back().index = index_beside(path);
}

void TokenStream::agree_width(const std::string& path, int token_bytes) {
  if (token_bytes_ != 0 && token_bytes_ != token_bytes)
    throw DataError(fmt::format("'{}' has {} bytes per token, '{}' has {}", path, token_bytes,
                                files_.front().path, token_bytes_),
                    "files of one stream must agree; prepare them with one vocabulary");
  token_bytes_ = token_bytes;
}

void TokenStream::add_native(const std::string& path) {
  const TokenFileHeader header = read_token_file_header(path);
  if (vocab_hash_ != 0 && header.vocab_hash != vocab_hash_)
    throw DataError(fmt::format("'{}' was made with vocabulary {:016x}, '{}' with {:016x}", path,
                                header.vocab_hash, files_.front().path, vocab_hash_),
                    "prepare all files of one stream with one vocabulary");
  agree_width(path, header.token_bytes);
  vocab_hash_ = header.vocab_hash;
  vocab_size_ = std::max<std::int64_t>(vocab_size_, header.vocab_size);
  files_.push_back({path, kTokenFileHeaderBytes, count(), static_cast<std::int64_t>(header.count),
                    header.payload_crc, true});
}

void TokenStream::add_raw(const std::string& path, int token_bytes, std::int64_t header_bytes) {
  const std::int64_t size = PosixFile::for_reading(path).size() - header_bytes;
  if (size <= 0) throw DataError(fmt::format("token file '{}' is empty", path));
  if (size % token_bytes != 0)
    throw DataError(
        fmt::format("token file '{}' has {} bytes, not a multiple of {}", path, size, token_bytes),
        "it is truncated, or not a file of raw tokens");
  agree_width(path, token_bytes);
  files_.push_back({path, header_bytes, count(), size / token_bytes, 0, false});
}

std::size_t TokenStream::file_of(std::int64_t token) const {
  CHOIR_CHECK(token >= 0 && token < count(), "token {} of a stream of {}", token, count());
  const auto after = std::upper_bound(
      files_.begin(), files_.end(), token,
      [](std::int64_t position, const TokenFile& file) { return position < file.first; });
  return static_cast<std::size_t>(after - files_.begin()) - 1;
}

std::string TokenStream::place_of(std::int64_t token) const {
  const TokenFile& file = files_[file_of(token)];
  return fmt::format("file '{}', token {}", file.path, token - file.first);
}

void TokenStream::read(std::int64_t first, std::int64_t length, std::int32_t* to) const {
  CHOIR_CHECK(first >= 0 && length >= 0 && first + length <= count(),
              "tokens [{}, {}) of a stream of {}", first, first + length, count());
  std::vector<char> packed;
  while (length > 0) {
    const TokenFile& file = files_[file_of(first)];
    const std::int64_t here = std::min(length, file.first + file.count - first);
    packed.resize(static_cast<std::size_t>(here * token_bytes_));
    PosixFile::for_reading(file.path).read_at(
        packed.data(), packed.size(), file.payload_offset + (first - file.first) * token_bytes_);
    for (std::size_t i = 0; i < static_cast<std::size_t>(here); ++i)
      *to++ = token_at(packed.data(), i, token_bytes_);
    first += here;
    length -= here;
  }
}

void TokenStream::verify(std::size_t index, std::int64_t vocab_size) const {
  const TokenFile& file = files_.at(index);
  const PosixFile opened = PosixFile::for_reading(file.path);
  std::vector<char> block(kBlockBytes);
  std::uint32_t crc = 0;
  std::int64_t outside = -1;  // first token outside the vocabulary
  std::int32_t outside_id = 0;
  const std::int64_t bytes = file.count * token_bytes_;
  for (std::int64_t done = 0; done < bytes; done += std::ssize(block)) {
    const auto here = static_cast<std::size_t>(std::min(bytes - done, std::ssize(block)));
    opened.read_at(block.data(), here, file.payload_offset + done);
    if (file.has_crc) crc = crc32c(block.data(), here, crc);
    const std::size_t tokens = here / static_cast<std::size_t>(token_bytes_);
    for (std::size_t i = 0; vocab_size > 0 && outside < 0 && i < tokens; ++i) {
      outside_id = token_at(block.data(), i, token_bytes_);
      if (outside_id >= 0 && outside_id < vocab_size) continue;
      outside = done / token_bytes_ + static_cast<std::int64_t>(i);
    }
  }
  if (file.has_crc && crc != file.payload_crc)
    throw DataError(fmt::format("token file '{}' is corrupt: crc32c {:08x}, its header says {:08x}",
                                file.path, crc, file.payload_crc),
                    "copy it again or prepare the data again");
  if (outside >= 0)
    throw DataError(fmt::format("token file '{}': token {} is {}, the vocabulary has {} entries",
                                file.path, outside, outside_id, vocab_size),
                    "wrong vocabulary, or not a file of raw tokens");
}

std::string TokenStream::serialise() const {
  auto table = nlohmann::json::array();
  for (const auto& file : files_)
    table.push_back(nlohmann::json::array({file.path, file.payload_offset, file.first, file.count,
                                           file.payload_crc, file.has_crc, file.index}));
  const auto bytes = nlohmann::json::to_cbor(
      nlohmann::json::array({table, token_bytes_, vocab_size_, vocab_hash_}));
  return {bytes.begin(), bytes.end()};
}

TokenStream TokenStream::deserialise(std::string_view bytes) {
  const auto all = nlohmann::json::from_cbor(bytes.begin(), bytes.end());
  TokenStream stream;
  for (const auto& row : all[0])
    stream.files_.push_back({row[0].get<std::string>(), row[1].get<std::int64_t>(),
                             row[2].get<std::int64_t>(), row[3].get<std::int64_t>(),
                             row[4].get<std::uint32_t>(), row[5].get<bool>(),
                             row[6].get<std::string>()});
  stream.token_bytes_ = all[1].get<int>();
  stream.vocab_size_ = all[2].get<std::int64_t>();
  stream.vocab_hash_ = all[3].get<std::uint64_t>();
  return stream;
}

}  // namespace choir
