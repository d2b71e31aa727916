#include "src/data/vocabulary/byte_level_bpe.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <numeric>

#include "choir/core/error.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {
namespace {

constexpr char32_t kFirstOfOthers = 0x100;
constexpr std::size_t kOthers = 68;

bool stands_for_itself(unsigned byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

std::array<char32_t, 256> make_alphabet() {
  std::array<char32_t, 256> alphabet{};
  char32_t next = kFirstOfOthers;
  for (unsigned byte = 0; byte < 256; ++byte)
    alphabet[byte] = stands_for_itself(byte) ? byte : next++;
  return alphabet;
}

std::array<int, kFirstOfOthers + kOthers> make_bytes() {
  std::array<int, kFirstOfOthers + kOthers> bytes;
  bytes.fill(-1);
  for (int byte = 0; byte < 256; ++byte)
    bytes[byte_alphabet()[static_cast<std::size_t>(byte)]] = byte;
  return bytes;
}

}  // namespace

const std::array<char32_t, 256>& byte_alphabet() {
  static const std::array<char32_t, 256> alphabet = make_alphabet();
  return alphabet;
}

const std::array<unsigned char, 256>& bytes_by_character() {
  static const std::array<unsigned char, 256> sorted = [] {
    std::array<unsigned char, 256> bytes;
    std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(0));
    std::sort(bytes.begin(), bytes.end(), [](unsigned char a, unsigned char b) {
      return byte_alphabet()[a] < byte_alphabet()[b];
    });
    return bytes;
  }();
  return sorted;
}

std::string bytes_as_characters(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes)
    append_utf8(text, byte_alphabet()[static_cast<unsigned char>(byte)]);
  return text;
}

std::optional<std::string> characters_as_bytes(std::string_view text) {
  static const auto bytes_of = make_bytes();
  std::string bytes;
  while (!text.empty()) {
    const CodePoint c = first_code_point(text);
    if (c.length == 0 || c.value >= bytes_of.size() || bytes_of[c.value] < 0) return std::nullopt;
    bytes += static_cast<char>(bytes_of[c.value]);
    text.remove_prefix(static_cast<std::size_t>(c.length));
  }
  return bytes;
}

namespace {

constexpr std::size_t kSlots = std::size_t{1} << 16;
constexpr std::size_t kMostCached = kSlots / 4 * 3;
// Longer pieces rarely repeat, and a file that is one long word must not fill the cache.
constexpr std::size_t kLongestPiece = 256;
constexpr std::uint64_t kMultiplier = 0x9E3779B97F4A7C15u;

std::uint64_t mixed(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * kMultiplier;
  return hash ^ (hash >> 32);
}

std::uint64_t piece_hash(std::string_view piece) {
  std::uint64_t hash = piece.size();
  std::uint64_t eight = 0;
  const char* at = piece.data();
  std::size_t left = piece.size();
  for (; left >= sizeof eight; left -= sizeof eight, at += sizeof eight) {
    std::memcpy(&eight, at, sizeof eight);
    hash = mixed(hash, eight);
  }
  eight = 0;
  for (std::size_t i = 0; i < left; ++i) eight = eight << 8 | static_cast<unsigned char>(at[i]);
  return mixed(hash, eight);
}

std::size_t words_of(std::size_t bytes) {
  return (bytes + sizeof(std::int32_t) - 1) / sizeof(std::int32_t);
}

std::uint64_t next_number() {
  static std::atomic<std::uint64_t> numbers{0};
  return ++numbers;
}

}  // namespace

PieceCache::PieceCache() : slots_(kSlots) {}

void PieceCache::clear() {
  std::fill(slots_.begin(), slots_.end(), Slot{});
  stored_.clear();
  used_ = 0;
}

std::size_t PieceCache::find(std::uint64_t hash, std::string_view piece) const {
  std::size_t at = hash & (kSlots - 1);
  while (true) {
    const Slot& slot = slots_[at];
    if (slot.bytes == 0 ||
        (slot.hash == hash && slot.bytes == piece.size() &&
         std::memcmp(stored_.data() + slot.offset, piece.data(), piece.size()) == 0))
      return at;
    at = (at + 1) & (kSlots - 1);
  }
}

void PieceCache::insert(std::size_t slot, std::uint64_t hash, std::string_view piece,
                        std::span<const std::int32_t> ids) {
  const std::size_t offset = stored_.size(), words = words_of(piece.size());
  stored_.resize(offset + words);
  std::memcpy(stored_.data() + offset, piece.data(), piece.size());
  stored_.insert(stored_.end(), ids.begin(), ids.end());
  slots_[slot] = {hash, static_cast<std::uint32_t>(offset),
                  static_cast<std::uint16_t>(piece.size()), static_cast<std::uint16_t>(ids.size())};
  ++used_;
}

PieceEncoder::PieceEncoder(const std::array<std::int32_t, 256>& byte_ids,
                           std::span<const BpeMerge> merges,
                           std::unordered_map<std::string, std::int32_t> whole)
    : byte_ids_(byte_ids), whole_(std::move(whole)), number_(next_number()) {
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(2 * merges.size(), 2));
  shift_ = 64 - std::countr_zero(slots);
  pairs_.resize(slots);
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const BpeMerge& merge = merges[rank];
    const std::uint64_t key = key_of(merge.left, merge.right);
    Pair& pair = pairs_[slot_of(key)];
    CHOIR_CHECK(pair.key == kNone, "the merge of {} and {} is there twice", merge.left,
                merge.right);
    pair = {key, static_cast<std::int32_t>(rank), merge.result};
  }
}

PieceEncoder::PieceEncoder(CharacterSymbols characters, std::span<const BpeMerge> merges)
    : PieceEncoder(characters.byte_ids, merges) {
  characters_ = std::move(characters);
}

bool CharacterSymbols::has_bytes(std::string_view character) const {
  return std::ranges::all_of(character,
                             [&](char c) { return byte_ids[static_cast<unsigned char>(c)] >= 0; });
}

std::size_t PieceEncoder::slot_of(std::uint64_t key) const {
  std::size_t at = (key * kMultiplier) >> shift_;
  while (pairs_[at].key != kNone && pairs_[at].key != key) at = (at + 1) & (pairs_.size() - 1);
  return at;
}

const PieceEncoder::Pair* PieceEncoder::pair_of(std::int32_t left, std::int32_t right) const {
  const Pair& pair = pairs_[slot_of(key_of(left, right))];
  return pair.key == kNone ? nullptr : &pair;
}

void PieceEncoder::encode(std::string_view piece, PieceCache& cache,
                          std::vector<std::int32_t>& ids) const {
  if (cache.owner_ != number_) {
    cache.clear();
    cache.owner_ = number_;
  }
  if (piece.empty() || piece.size() > kLongestPiece) return merge(piece, cache, ids);
  const std::uint64_t hash = piece_hash(piece);
  std::size_t at = cache.find(hash, piece);
  if (const PieceCache::Slot& slot = cache.slots_[at]; slot.bytes != 0) {
    const std::int32_t* begin = cache.stored_.data() + slot.offset + words_of(slot.bytes);
    if (slot.ids == 1) {
      ids.push_back(*begin);
    } else {
      ids.insert(ids.end(), begin, begin + slot.ids);
    }
    return;
  }
  const std::size_t before = ids.size();
  merge(piece, cache, ids);
  if (cache.used_ == kMostCached) {
    cache.clear();
    at = cache.find(hash, piece);
  }
  cache.insert(at, hash, piece, std::span(ids).subspan(before));
}

void PieceEncoder::start_with_bytes(std::string_view piece,
                                    std::vector<PieceCache::Symbol>& symbols) const {
  for (const char c : piece) {
    const auto byte = static_cast<unsigned char>(c);
    const auto at = static_cast<std::int32_t>(symbols.size());
    if (byte_ids_[byte] < 0)
      throw DataError(fmt::format("byte 0x{:02X} is not in the vocabulary", byte),
                      "use a tokenizer whose vocabulary has all 256 bytes");
    symbols.push_back({byte_ids_[byte], at - 1, at + 1});
  }
}

// An unknown character waits for the next one, which may be joined to it. As in the library
// tokenizers, the bytes of a character do not end this wait.
void PieceEncoder::start_with_characters(std::string_view piece,
                                         std::vector<PieceCache::Symbol>& symbols) const {
  const auto push = [&](std::int32_t id) {
    const auto at = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({id, at - 1, at + 1});
  };
  bool waits = false;
  for (std::size_t at = 0; at < piece.size();) {
    const CodePoint c = first_code_point(piece.substr(at));
    const std::string_view character = piece.substr(at, static_cast<std::size_t>(c.length));
    at += character.size();
    if (const auto found = characters_->ids.find(c.value); found != characters_->ids.end()) {
      if (waits) push(*characters_->unknown);
      waits = false;
      push(found->second);
    } else if (characters_->has_bytes(character)) {
      for (const char byte : character) push(byte_ids_[static_cast<unsigned char>(byte)]);
    } else if (characters_->unknown) {
      if (waits && !characters_->joins_unknown) push(*characters_->unknown);
      waits = true;
    } else {
      throw DataError(fmt::format("'{}' is not in the vocabulary", character),
                      "use a tokenizer that has a token for unknown characters");
    }
  }
  if (waits) push(*characters_->unknown);
}

// Symbols form a linked list and possible merges a heap, so that a piece of length n takes O(n log
// n) steps. A candidate is outdated if the rank of its current pair differs.
void PieceEncoder::merge(std::string_view piece, PieceCache& cache,
                         std::vector<std::int32_t>& ids) const {
  if (!whole_.empty())
    if (const auto found = whole_.find(std::string(piece)); found != whole_.end()) {
      ids.push_back(found->second);
      return;
    }
  CHOIR_CHECK(piece.size() < std::size_t{1} << 31, "a piece of {} bytes", piece.size());
  auto& symbols = cache.symbols_;
  auto& heap = cache.heap_;
  symbols.clear();
  heap.clear();
  if (characters_)
    start_with_characters(piece, symbols);
  else
    start_with_bytes(piece, symbols);
  if (symbols.empty()) return;
  symbols.back().next = -1;

  const auto later = [](const PieceCache::Candidate& a, const PieceCache::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  const auto symbol = [&](std::int32_t at) -> PieceCache::Symbol& {
    return symbols[static_cast<std::size_t>(at)];
  };
  const auto pair_at = [&](std::int32_t at) {
    return symbol(at).next < 0 ? nullptr : pair_of(symbol(at).id, symbol(symbol(at).next).id);
  };
  const auto consider = [&](std::int32_t at) {
    if (const Pair* pair = pair_at(at)) {
      heap.push_back({pair->rank, at, pair->result});
      std::push_heap(heap.begin(), heap.end(), later);
    }
  };
  for (std::int32_t at = 0; symbol(at).next >= 0; ++at) consider(at);
  constexpr std::int32_t kGone = -1;
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const PieceCache::Candidate best = heap.back();
    heap.pop_back();
    if (symbol(best.at).id == kGone) continue;
    if (const Pair* pair = pair_at(best.at); pair == nullptr || pair->rank != best.rank) continue;
    PieceCache::Symbol& left = symbol(best.at);
    PieceCache::Symbol& right = symbol(left.next);
    left.id = best.result;
    right.id = kGone;
    left.next = right.next;
    if (left.next >= 0) symbol(left.next).previous = best.at;
    if (left.previous >= 0) consider(left.previous);
    consider(best.at);
  }
  for (std::int32_t at = 0; at >= 0; at = symbol(at).next) ids.push_back(symbol(at).id);
}

}  // namespace choir
