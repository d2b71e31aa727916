#pragma once
// Packs several short conversations into one row of a block, for attention within each conversation
// (block-diagonal). Pure functions.

#include <cstdint>
#include <span>
#include <vector>

namespace choir {

struct PackedRow {
  std::vector<std::int64_t> documents;  ///< indices of the packed documents, in order
  std::vector<std::int32_t> begins;     ///< first position of each document, and the end
};

/// Assigns documents that arrive one by one to rows: each goes to the oldest open row with room for
/// it. At most `open` rows are open at a time.
class RowPacker {
 public:
  explicit RowPacker(std::int64_t block, std::int64_t open = 64);
  /// The row of the next document, of 1 to `block` inputs. Rows are numbered as they are opened.
  std::int64_t add(std::int64_t length);
  /// All rows with a smaller number are finished.
  std::int64_t finished() const { return open_.empty() ? rows_ : open_.front().row; }

 private:
  struct Open {
    std::int64_t row, used;
  };
  std::int64_t block_, most_, rows_ = 0;
  std::vector<Open> open_;  // oldest first
};

/// First fit in the given order, as in RowPacker. The order is that of training, so the result
/// depends on the seed alone. `lengths` are numbers of inputs. Throws DataError for a length above
/// `block`.
std::vector<PackedRow> pack_rows(std::span<const std::int64_t> lengths, std::int64_t block,
                                 std::int64_t open = 64);

/// Inputs, targets and positions of one row. The target of the last token of a document is ignored:
/// no document predicts the first token of the next one. Positions restart with every document.
struct PackedTokens {
  std::vector<std::int32_t> inputs, targets, positions;  ///< [block]
  std::vector<std::int32_t> begins;                      ///< as in PackedRow
};
/// `ids` holds n + 1 ids of each document for n inputs; `counted` marks the targets.
PackedTokens packed_tokens(std::span<const std::span<const std::int32_t>> ids,
                           std::span<const std::span<const std::uint8_t>> counted,
                           std::int64_t block);

}  // namespace choir
