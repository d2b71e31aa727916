#include "src/data/chat/conversation_file.hpp"

#include <array>
#include <cstring>
#include <filesystem>

#include "choir/core/error.hpp"
#include "src/core/file.hpp"
#include "src/core/hash.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

constexpr std::array<char, 8> kMagic{'C', 'H', 'O', 'I', 'R', 'C', 'H', 'T'};
constexpr std::uint32_t kEndiannessMark = 0x01020304u;
constexpr const char* kAgain = "prepare it again with 'choir prepare chat'";

struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = 1, endianness = kEndiannessMark;
  std::uint64_t conversations = 0, tokens = 0, clips = 0, vocab_hash = 0;
  std::uint32_t vocab_size = 0;
  std::int32_t end_of_turn = 0;
  std::uint32_t payload_crc = 0, header_crc = 0;

  std::uint32_t checksum() const { return crc32c(this, offsetof(Header, header_crc)); }
};
static_assert(sizeof(Header) == 64);

template <class T>
void put(std::string& bytes, const std::vector<T>& values) {
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <class T>
void take(std::string_view& bytes, std::size_t count, std::vector<T>& values) {
  values.resize(count);
  std::memcpy(values.data(), bytes.data(), count * sizeof(T));
  bytes.remove_prefix(count * sizeof(T));
}

[[noreturn]] void refuse_file(const std::string& source, const std::string& what) {
  throw DataError(fmt::format("conversations '{}' {}", source, what), kAgain);
}

Header checked_header(std::string_view bytes, const std::string& source) {
  Header header;
  if (bytes.size() < sizeof header) refuse_file(source, "are truncated");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMagic)
    refuse_file(source, "are of another kind: the file does not begin with CHOIRCHT");
  if (header.version != 1 || header.endianness != kEndiannessMark)
    refuse_file(source, fmt::format("have version {} or another byte order", header.version));
  if (header.checksum() != header.header_crc) refuse_file(source, "have a corrupt header");
  const std::uint64_t size = bytes.size();
  if (header.conversations > size || header.tokens > size || header.clips > size ||
      size !=
          sizeof header + 16 * (header.conversations + 1) + 4 * header.tokens + 8 * header.clips)
    refuse_file(source,
                fmt::format("have {} bytes, which does not match {} conversations of {} tokens",
                            size, header.conversations, header.tokens));
  bytes.remove_prefix(sizeof header);
  if (crc32c(bytes.data(), bytes.size()) != header.payload_crc)
    refuse_file(source, "are damaged: the checksum does not match");
  return header;
}

std::string file_of(const std::string& path) {
  return fs::is_directory(path) ? path + "/" + kConversationFile : path;
}

}  // namespace

ConversationSet::ConversationSet(std::int64_t vocab_size, std::uint64_t vocab_hash,
                                 std::int32_t end_of_turn)
    : vocab_size_(vocab_size), vocab_hash_(vocab_hash), end_of_turn_(end_of_turn) {
  CHOIR_CHECK(vocab_size > 0 && vocab_size < (std::int64_t{1} << 30), "vocabulary of {}",
              vocab_size);
}

void ConversationSet::add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> counted,
                          std::span<const ClipOfFile> clips) {
  CHOIR_CHECK(ids.size() == counted.size(), "{} ids, {} marks", ids.size(), counted.size());
  for (std::size_t i = 0; i < ids.size(); ++i)
    words_.push_back(2 * (ids[i] + 1) + (counted[i] != 0 ? 1 : 0));
  clips_.insert(clips_.end(), clips.begin(), clips.end());
  first_token_.push_back(std::ssize(words_));
  first_clip_.push_back(std::ssize(clips_));
}

std::int64_t ConversationSet::counted(std::int64_t i) const {
  std::int64_t count = 0;
  // The first token is never predicted.
  for (std::int64_t k = first_token_[at(i)] + 1; k < first_token_[at(i) + 1]; ++k)
    count += words_[at(k)] & 1;
  return count;
}

std::span<const ClipOfFile> ConversationSet::clips(std::int64_t i) const {
  return std::span(clips_).subspan(at(first_clip_[at(i)]),
                                   at(first_clip_[at(i) + 1] - first_clip_[at(i)]));
}

void ConversationSet::read(std::int64_t i, std::vector<std::int32_t>& ids,
                           std::vector<std::uint8_t>& counted) const {
  for (std::int64_t k = first_token_[at(i)]; k < first_token_[at(i) + 1]; ++k) {
    ids.push_back((words_[at(k)] >> 1) - 1);
    counted.push_back(static_cast<std::uint8_t>(words_[at(k)] & 1));
  }
}

std::uint64_t ConversationSet::hash() const {
  std::uint64_t h = vocab_hash_;
  const auto add = [&h](const auto& values) {
    const std::uint64_t crc = crc32c(values.data(), values.size() * sizeof values[0]);
    h = (h ^ crc ^ (static_cast<std::uint64_t>(values.size()) << 32)) * 0x100000001b3ull;
  };
  add(first_token_);
  add(words_);
  add(clips_);
  return h;
}

std::string ConversationSet::serialise() const {
  Header header;
  header.conversations = static_cast<std::uint64_t>(size());
  header.tokens = words_.size();
  header.clips = clips_.size();
  header.vocab_hash = vocab_hash_;
  header.vocab_size = static_cast<std::uint32_t>(vocab_size_);
  header.end_of_turn = end_of_turn_;
  std::string bytes(sizeof header, '\0');
  put(bytes, first_token_);
  put(bytes, first_clip_);
  put(bytes, words_);
  put(bytes, clips_);
  header.payload_crc = crc32c(bytes.data() + sizeof header, bytes.size() - sizeof header);
  header.header_crc = header.checksum();
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

ConversationSet ConversationSet::deserialise(std::string_view bytes, const std::string& source) {
  const Header header = checked_header(bytes, source);
  if (header.vocab_size == 0 || header.vocab_size >= (1u << 30))
    refuse_file(source, fmt::format("have a vocabulary of {}", header.vocab_size));
  ConversationSet set(header.vocab_size, header.vocab_hash, header.end_of_turn);
  bytes.remove_prefix(sizeof header);
  take(bytes, header.conversations + 1, set.first_token_);
  take(bytes, header.conversations + 1, set.first_clip_);
  take(bytes, header.tokens, set.words_);
  take(bytes, header.clips, set.clips_);
  set.check(source);
  return set;
}

void ConversationSet::check(const std::string& source) const {
  for (const auto& [begins, end] : {std::pair(&first_token_, std::ssize(words_)),
                                    std::pair(&first_clip_, std::ssize(clips_))}) {
    if (begins->front() != 0 || begins->back() != end)
      refuse_file(source, "have offsets that do not match the data");
    for (std::size_t i = 1; i < begins->size(); ++i)
      if ((*begins)[i] < (*begins)[i - 1]) refuse_file(source, "have decreasing offsets");
  }
  for (std::int64_t i = 0; i < size(); ++i) {
    std::int64_t placeholders = 0;
    for (std::int64_t k = first_token_[at(i)]; k < first_token_[at(i) + 1]; ++k) {
      const std::int32_t word = words_[at(k)], id = (word >> 1) - 1;
      if (word < 0 || id >= vocab_size_)
        refuse_file(source,
                    fmt::format("have id {} in conversation {}, outside the vocabulary of {}", id,
                                i, vocab_size_));
      if (id < 0 && (word & 1) != 0) refuse_file(source, "count a clip as a target");
      placeholders += id < 0;
    }
    if (placeholders != std::ssize(clips(i)))
      refuse_file(source, fmt::format("have {} clips and {} placeholders in conversation {}",
                                      clips(i).size(), placeholders, i));
    for (const ClipOfFile& clip : clips(i))
      if (clip.utterance < 0 || clip.samples < 1)
        refuse_file(source, fmt::format("have a clip of {} samples", clip.samples));
  }
}

bool holds_conversations(const std::string& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return fs::exists(path + "/" + kConversationFile, ignored);
  return path.ends_with(".chat") && fs::exists(path, ignored);
}

ConversationSet open_conversations(const std::string& path) {
  const std::string file = file_of(path);
  if (!fs::exists(file))
    throw DataError(fmt::format("there are no conversations '{}'", file),
                    "'choir prepare chat' writes them");
  return ConversationSet::deserialise(read_whole_file(file, kMostBinaryMiB), file);
}

}  // namespace choir
