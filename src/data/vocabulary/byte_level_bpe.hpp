#pragma once
// Byte-pair encoding over bytes or characters, and the alphabet in which vocabularies over bytes
// write them. Of all neighbouring pairs in a piece, the pair that comes first in the list of merges
// becomes one symbol (the leftmost occurrence first); this is repeated until no pair is in the
// list.
//
// The alphabet is that of GPT-2 and its successors, so that every entry of a vocabulary is a string
// without blanks. Printable bytes of Latin-1 are written as themselves; the other bytes, in order,
// as U+0100 and the following characters (a blank is U+0120, a line end U+010A).

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace choir {

/// The character of each byte.
const std::array<char32_t, 256>& byte_alphabet();
/// The bytes in the order of their characters, which is the order of ids in a new vocabulary.
const std::array<unsigned char, 256>& bytes_by_character();

std::string bytes_as_characters(std::string_view bytes);
/// std::nullopt if a character represents no byte. `text` must be UTF-8.
std::optional<std::string> characters_as_bytes(std::string_view text);

struct BpeMerge {
  std::int32_t left = 0, right = 0, result = 0;
  bool operator==(const BpeMerge&) const = default;
};

/// Cache of pieces with their ids, and the working memory of merging. Text repeats its words, so
/// most pieces are found here. Only one thread at a time may use it. The cache is emptied when it
/// is full or when another vocabulary uses it.
class PieceCache {
 public:
  PieceCache();

 private:
  friend class PieceEncoder;
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t offset = 0;  ///< in stored_: the bytes of the piece, then its ids
    std::uint16_t bytes = 0;   ///< 0: the slot is free
    std::uint16_t ids = 0;
  };
  struct Symbol {
    std::int32_t id, previous, next;
  };
  struct Candidate {
    std::int32_t rank, at, result;
  };

  void clear();
  /// The slot of the piece, or the free slot in which it can be inserted.
  std::size_t find(std::uint64_t hash, std::string_view piece) const;
  void insert(std::size_t slot, std::uint64_t hash, std::string_view piece,
              std::span<const std::int32_t> ids);

  std::vector<Slot> slots_;
  std::vector<std::int32_t> stored_;
  std::size_t used_ = 0;
  std::uint64_t owner_ = 0;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

/// The first symbols of a piece in a vocabulary over characters.
struct CharacterSymbols {
  std::unordered_map<char32_t, std::int32_t> ids;
  /// Symbols of the bytes of a character without an id; -1: none.
  std::array<std::int32_t, 256> byte_ids{};
  std::optional<std::int32_t> unknown;  ///< the symbol of a character that has no other
  bool joins_unknown = false;           ///< unknown neighbours are one symbol

  /// True if each byte of the character has a symbol.
  bool has_bytes(std::string_view character) const;
};

class PieceEncoder {
 public:
  /// `byte_ids` has -1 for bytes without an id. `merges` are listed by priority, each pair once. A
  /// piece that is in `whole` gets that id without any merging.
  PieceEncoder(const std::array<std::int32_t, 256>& byte_ids, std::span<const BpeMerge> merges,
               std::unordered_map<std::string, std::int32_t> whole = {});
  PieceEncoder(CharacterSymbols characters, std::span<const BpeMerge> merges);

  /// Appends the ids of `piece`. Throws DataError for a byte or a character that has no symbol.
  void encode(std::string_view piece, PieceCache& cache, std::vector<std::int32_t>& ids) const;

 private:
  struct Pair {
    std::uint64_t key = kNone;
    std::int32_t rank = -1, result = -1;
  };
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};
  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
           static_cast<std::uint32_t>(right);
  }
  std::size_t slot_of(std::uint64_t key) const;
  const Pair* pair_of(std::int32_t left, std::int32_t right) const;
  void start_with_bytes(std::string_view piece, std::vector<PieceCache::Symbol>& symbols) const;
  void start_with_characters(std::string_view piece,
                             std::vector<PieceCache::Symbol>& symbols) const;
  void merge(std::string_view piece, PieceCache& cache, std::vector<std::int32_t>& ids) const;

  std::array<std::int32_t, 256> byte_ids_{};
  std::optional<CharacterSymbols> characters_;  // std::nullopt: the symbols are bytes
  std::vector<Pair> pairs_;                     // open addressing; a power of two
  int shift_ = 0;
  std::unordered_map<std::string, std::int32_t> whole_;
  std::uint64_t number_;  // unique among the vocabularies of this process
};

}  // namespace choir
