#pragma once
// The encoding of the texts of a source to ids by all ranks in parallel. Rows are documents, which
// the ranks divide by units. Of plain text, the bytes of all files are cut into parts of equal
// size; each rank encodes every n-th part from the position where it expects the previous part to
// end. A part with a wrong begin is encoded again from the actual end of the previous part, so the
// ids are equal to those of a single rank.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "src/data/sources/text_source.hpp"
#include "src/data/vocabulary/vocabulary.hpp"

namespace choir {

/// Calls use(piece, offset, more_follows) over one file. `use` returns the number of bytes that it
/// consumed; the rest is passed again at the front of the next piece (it must consume all of the
/// last piece).
using UseText = std::function<std::size_t(std::string_view, std::int64_t, bool)>;
void read_text(const TextFile& file, const UseText& use);

/// Calls use(code point) for every code point of the file. Throws DataError with the file and the
/// byte offset if the text is not UTF-8.
void scan_code_points(const TextFile& file, const std::function<void(char32_t)>& use);

using UseIds = std::function<void(std::span<const std::int32_t>)>;

/// The ids behind each document: the token that ends a text, or those of a line end in a vocabulary
/// without one. Throws DataError for a vocabulary that has neither.
std::vector<std::int32_t> end_of_document(const Vocabulary& vocabulary);

/// Appends the ids of a document. Throws DataError with the place of the row for a text that cannot
/// be encoded.
void append_ids(const Vocabulary& vocabulary, const TextSource& source, std::size_t unit,
                std::int64_t row, std::string_view text, std::vector<std::int32_t>& ids);

/// The options of a source whose plain files are whole units, as encode_texts() expects them.
TextSourceOptions whole_files(const std::string& field);

/// The documents that were encoded, and the rows that were left out.
struct TextCounts {
  std::int64_t documents = 0;
  DamagedRows damaged;
};

/// Collective over `ranks`, or local if it is nullptr. On rank 0 `use` gets the ids of the units in
/// order, and the counts are those of all ranks. A plain file is a text of its own; each document
/// is followed by end_of_document(). A rank keeps some parts of `part_bytes` in memory, or the ids
/// of some units. Throws DataError as Vocabulary::encode and TextSource::read, and the errors of
/// `use`, on every rank.
TextCounts encode_texts(Communicator* ranks, const TextSource& source, const Vocabulary& vocabulary,
                        std::int64_t part_bytes, const UseIds& use);

}  // namespace choir
