#pragma once
// The file conversations.chat: conversations as ids. It is in a folder with the tokenizer's file
// and, if there are clips, packed audio in the folder audio/. `choir prepare chat` writes it, and
// training keeps it in memory.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

/// A clip is an utterance of the packed audio beside the file.
struct ClipOfFile {
  std::int32_t utterance = 0;
  std::int32_t samples = 0;
  friend bool operator==(const ClipOfFile&, const ClipOfFile&) = default;
};

/// The conversations of a file. Its layout, little-endian:
///   byte  0  "CHOIRCHT"                8  u32 version (1)     12  u32 endianness mark 0x01020304
///        16  u64 conversations        24  u64 tokens          32  u64 clips
///        40  u64 vocabulary hash      48  u32 vocabulary size 52  i32 id that ends an answer
///        56  u32 crc32c of what follows byte 64               60  u32 crc32c of bytes 0..59
///        64  i64 first token of each conversation, and the end; i64 first clip of each, and the
///        end;
///            i32 for each token: 2 (id + 1) + 1 where it is a target (id -1: a clip); {i32
///            utterance, i32 samples} for each clip
class ConversationSet {
 public:
  ConversationSet() = default;
  ConversationSet(std::int64_t vocab_size, std::uint64_t vocab_hash, std::int32_t end_of_turn);

  void add(std::span<const std::int32_t> ids, std::span<const std::uint8_t> counted,
           std::span<const ClipOfFile> clips);

  std::int64_t size() const { return std::ssize(first_token_) - 1; }
  std::int64_t tokens() const { return std::ssize(words_); }
  std::int64_t tokens(std::int64_t i) const {
    return first_token_[at(i) + 1] - first_token_[at(i)];
  }
  std::int64_t counted(std::int64_t i) const;  ///< targets
  std::int64_t clips() const { return std::ssize(clips_); }
  std::span<const ClipOfFile> clips(std::int64_t i) const;
  /// Appends the ids and their marks (1: target).
  void read(std::int64_t i, std::vector<std::int32_t>& ids,
            std::vector<std::uint8_t>& counted) const;
  std::int64_t vocab_size() const { return vocab_size_; }
  std::uint64_t vocab_hash() const { return vocab_hash_; }
  std::int32_t end_of_turn() const { return end_of_turn_; }
  /// A hash of the contents of the file.
  std::uint64_t hash() const;

  /// The bytes of the file, to write and to send.
  std::string serialise() const;
  /// Throws DataError if the file is of another kind, truncated or damaged, or has ids outside the
  /// vocabulary or clips that do not match their placeholders. `source` names it.
  static ConversationSet deserialise(std::string_view bytes, const std::string& source);

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  void check(const std::string& source) const;

  std::int64_t vocab_size_ = 0;
  std::uint64_t vocab_hash_ = 0;
  std::int32_t end_of_turn_ = 0;
  std::vector<std::int64_t> first_token_{0}, first_clip_{0};
  std::vector<std::int32_t> words_;
  std::vector<ClipOfFile> clips_;
};

inline constexpr const char* kConversationFile = "conversations.chat";
/// Local. True if `path` is a folder with conversations.chat, or such a file.
bool holds_conversations(const std::string& path);
/// Local. Throws DataError.
ConversationSet open_conversations(const std::string& path);

}  // namespace choir
