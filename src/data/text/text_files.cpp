#include "src/data/text/text_files.hpp"

#include <algorithm>
#include <exception>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/file.hpp"
#include "src/data/vocabulary/utf8.hpp"

namespace choir {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 22;

}  // namespace

void read_text(const TextFile& file, const UseText& use) {
  const PosixFile opened = PosixFile::for_reading(file.path);
  std::string piece;
  std::int64_t read = file.mark;
  while (read < file.bytes) {
    const std::size_t kept = piece.size();
    const auto more = std::min<std::int64_t>(file.bytes - read, kPieceBytes);
    piece.resize(kept + static_cast<std::size_t>(more));
    opened.read_at(piece.data() + kept, static_cast<std::size_t>(more), read);
    const std::int64_t offset = read - static_cast<std::int64_t>(kept);
    read += more;
    piece.erase(0, use(piece, offset, read < file.bytes));
  }
}

void scan_code_points(const TextFile& file, const std::function<void(char32_t)>& use) {
  read_text(file, [&](std::string_view text, std::int64_t offset, bool more_follows) {
    std::size_t at = 0;
    while (at < text.size()) {
      const CodePoint c = first_code_point(text.substr(at));
      if (c.incomplete && more_follows) break;
      if (c.length == 0)
        refuse_utf8(fmt::format("'{}'", file.path), offset + static_cast<std::int64_t>(at));
      use(c.value);
      at += static_cast<std::size_t>(c.length);
    }
    return at;
  });
}

namespace {

/// Bytes of text before a part that usually determine where the previous part ends, unless words
/// are longer.
constexpr std::int64_t kLead = 4096;

/// The result of a part, which ranks exchange; positions are bytes in the concatenation of all
/// units, in which a unit of documents has its estimated size.
struct Outcome {
  std::int64_t begin = 0, end = 0, ids = 0, failed = 0;
};
constexpr std::size_t kNumbers = sizeof(Outcome) / sizeof(std::int64_t);

class EncodedText {
 public:
  EncodedText(Communicator* ranks, const TextSource& source, const Vocabulary& vocabulary,
              std::int64_t part_bytes)
      : ranks_(ranks), source_(source), vocabulary_(vocabulary) {
    begins_.push_back(0);
    for (const TextUnit& unit : source.units())
      begins_.push_back(begins_.back() + std::max<std::int64_t>(unit.bytes_estimate, 1));
    cut_into_parts(part_bytes);
    if (source.has_documents()) end_of_document_ = end_of_document(vocabulary);
  }

  TextCounts run(const UseIds& use) {
    const std::int64_t parts = std::ssize(bounds_) - 1;
    std::int64_t place = 0;  // the ids before it are final
    for (std::int64_t first = 0; first < parts; first += size()) {
      const std::int64_t mine = first + rank();
      if (mine < parts) encode(mine, mine == first ? place : likely_begin(bound(mine)));
      const auto here = static_cast<std::size_t>(std::min<std::int64_t>(size(), parts - first));
      const std::vector<Outcome> all = settle(first, here, place);
      place = all[here - 1].end;
      hand_over(all, here, use);
    }
    return counts_of_all();
  }

 private:
  int rank() const { return ranks_ ? ranks_->rank() : 0; }
  int size() const { return ranks_ ? ranks_->size() : 1; }
  void agreed(const std::function<void()>& action) const {
    if (ranks_)
      together(*ranks_, action);
    else
      action();
  }

  std::int64_t bound(std::int64_t part) const { return bounds_[static_cast<std::size_t>(part)]; }

  /// Parts of plain text have equal sizes; units of documents are not cut, but small ones are
  /// combined.
  void cut_into_parts(std::int64_t part_bytes) {
    bounds_.push_back(0);
    const auto close = [this](std::int64_t at) {
      if (at > bounds_.back()) bounds_.push_back(at);
    };
    for (std::size_t unit = 0; unit + 1 < begins_.size(); ++unit) {
      const std::int64_t end = begins_[unit + 1];
      const bool documents = source_.has_documents(unit);
      if (unit > 0 && source_.has_documents(unit - 1) != documents) close(begins_[unit]);
      if (documents && end - bounds_.back() >= part_bytes) close(end);
      while (!documents && end - bounds_.back() >= part_bytes) close(bounds_.back() + part_bytes);
    }
    close(begins_.back());
  }

  std::size_t unit_at(std::int64_t place) const {
    const auto behind = std::upper_bound(begins_.begin(), begins_.end() - 1, place);
    return static_cast<std::size_t>(behind - begins_.begin()) - 1;
  }

  void encode_documents(std::size_t unit, std::vector<std::int32_t>& ids) {
    source_.read(
        unit,
        [&](std::string_view text, std::int64_t row) {
          append_ids(vocabulary_, source_, unit, row, text, ids);
          ids.insert(ids.end(), end_of_document_.begin(), end_of_document_.end());
          ++counts_.documents;
        },
        counts_.damaged);
  }

  /// Encodes bytes of a plain file. Returns the position up to which the ids are final.
  std::int64_t encode_file(const TextFile& file, std::int64_t from, std::int64_t to,
                           std::vector<std::int32_t>& ids) const {
    std::string text(static_cast<std::size_t>(to - from), '\0');
    PosixFile::for_reading(file.path).read_at(text.data(), text.size(), from);
    const std::size_t used =
        vocabulary_.encode_part(text, to < file.bytes, fmt::format("'{}'", file.path), from, ids);
    return from + static_cast<std::int64_t>(used);
  }

  /// Encodes a part. A failure counts only if `begin` turns out to be right.
  void encode(std::int64_t part, std::int64_t begin) {
    const std::int64_t end = bound(part + 1);
    mine_ = {.begin = begin, .end = begin};
    ids_.clear();
    failure_ = nullptr;
    try {
      for (std::size_t u = unit_at(begin); u + 1 < begins_.size() && begins_[u] < end; ++u) {
        if (source_.has_documents(u)) {
          encode_documents(u, ids_);
          mine_.end = begins_[u + 1];
          continue;
        }
        const TextFile& file = source_.file_of(u);
        const std::int64_t from = std::max(begin - begins_[u], file.mark);
        const std::int64_t to = std::min(end - begins_[u], file.bytes);
        if (from < to) mine_.end = begins_[u] + encode_file(file, from, to, ids_);
      }
    } catch (...) {
      failure_ = std::current_exception();
    }
    mine_.ids = std::ssize(ids_);
    mine_.failed = failure_ ? 1 : 0;
  }

  std::int64_t likely_begin(std::int64_t place) const {
    const std::size_t u = unit_at(place);
    const TextFile& file = source_.file_of(u);
    const std::int64_t at = place - begins_[u], from = std::max(at - kLead, file.mark);
    if (at <= file.mark) return place;
    std::vector<std::int32_t> ids;
    try {
      return begins_[u] + encode_file(file, whole_character(file, from), at, ids);
    } catch (const DataError&) {
      return place;  // the rank with the previous part reports the error
    }
  }

  /// Returns the first byte at or after `from` that can begin a character.
  static std::int64_t whole_character(const TextFile& file, std::int64_t from) {
    constexpr std::int64_t kLongest = 4;
    char bytes[kLongest] = {};
    const std::int64_t count = std::min(kLongest, file.bytes - from);
    PosixFile::for_reading(file.path).read_at(bytes, static_cast<std::size_t>(count), from);
    for (std::int64_t i = 0; i < count; ++i)
      if ((static_cast<unsigned char>(bytes[i]) & 0xC0u) != 0x80u) return from + i;
    return from;
  }

  std::vector<Outcome> exchange() const {
    std::vector<Outcome> all(static_cast<std::size_t>(size()));
    all[static_cast<std::size_t>(rank())] = mine_;
    if (size() > 1) ranks_->all_gather(all.data(), kNumbers, DType::i64);
    return all;
  }

  /// Repeats the encoding until each part begins where the previous one ended.
  std::vector<Outcome> settle(std::int64_t first, std::size_t count, std::int64_t place) {
    for (;;) {
      const std::vector<Outcome> all = exchange();
      std::int64_t expected = place;
      std::size_t right = 0;
      while (right < count && all[right].begin == expected && all[right].failed == 0)
        expected = all[right++].end;
      if (right == count) return all;
      const bool mine = static_cast<std::size_t>(rank()) == right;
      if (all[right].begin == expected)
        agreed([&] {
          if (mine) std::rethrow_exception(failure_);
        });
      if (mine) encode(first + rank(), expected);
    }
  }

  void hand_over(const std::vector<Outcome>& all, std::size_t count, const UseIds& use) {
    constexpr int kTag = 0;
    const auto bytes = [&](std::size_t r) {
      return static_cast<std::size_t>(all[r].ids) * sizeof(std::int32_t);
    };
    const auto me = static_cast<std::size_t>(rank());
    if (me > 0 && me < count && mine_.ids > 0) ranks_->send(ids_.data(), bytes(me), 0, kTag);
    std::exception_ptr failure;
    for (std::size_t r = 0; rank() == 0 && r < count; ++r) {
      if (r > 0) ids_.resize(static_cast<std::size_t>(all[r].ids));
      if (r > 0 && all[r].ids > 0)
        ranks_->receive(ids_.data(), bytes(r), static_cast<int>(r), kTag);
      try {
        if (!failure) use(ids_);
      } catch (...) {
        failure = std::current_exception();  // receive what the others send nevertheless
      }
    }
    agreed([&] {
      if (failure) std::rethrow_exception(failure);
    });
  }

  TextCounts counts_of_all() {
    if (size() == 1) return counts_;
    ranks_->all_reduce(&counts_.documents, 1, DType::i64, ReduceOp::sum);
    const std::vector<std::string> all = gather_texts(*ranks_, counts_.damaged.serialise());
    TextCounts sum{counts_.documents, {}};
    for (const std::string& of_rank : all) sum.damaged.add(DamagedRows::deserialise(of_rank));
    return sum;
  }

  Communicator* ranks_;
  const TextSource& source_;
  const Vocabulary& vocabulary_;
  std::vector<std::int32_t> end_of_document_;
  std::vector<std::int64_t> begins_;  // first byte of each unit, and the end of the last
  std::vector<std::int64_t> bounds_;  // first byte of each part, and the end of the last
  TextCounts counts_;                 // of this rank
  Outcome mine_;
  std::vector<std::int32_t> ids_;
  std::exception_ptr failure_;
};

}  // namespace

TextSourceOptions whole_files(const std::string& field) {
  return {.field = field, .plain_span = INT64_MAX};
}

std::vector<std::int32_t> end_of_document(const Vocabulary& vocabulary) {
  if (const auto id = vocabulary.end_of_text()) return {*id};
  return vocabulary.encode("\n", "the line end that follows each document");
}

void append_ids(const Vocabulary& vocabulary, const TextSource& source, std::size_t unit,
                std::int64_t row, std::string_view text, std::vector<std::int32_t>& ids) {
  const std::size_t before = ids.size();
  try {
    vocabulary.encode_part(text, false, "the text", 0, ids);
  } catch (const DataError& error) {
    // The place is looked up only now, because it may have to count lines.
    ids.resize(before);
    throw DataError(fmt::format("{}: {}", source.place_of(unit, row), error.what()), error.hint());
  }
}

TextCounts encode_texts(Communicator* ranks, const TextSource& source, const Vocabulary& vocabulary,
                        std::int64_t part_bytes, const UseIds& use) {
  for (std::size_t unit = 0; unit < source.units().size(); ++unit)
    CHOIR_CHECK(
        source.has_documents(unit) || source.units()[unit].end == source.file_of(unit).bytes,
        "unit {} is a part of a plain file", unit);
  return EncodedText(ranks, source, vocabulary, part_bytes).run(use);
}

}  // namespace choir
