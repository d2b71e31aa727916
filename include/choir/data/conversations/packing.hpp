#pragma once
// Several short conversations in one row of a block: which go together, and where each begins, for
// attention that does not look across (block-diagonal). Pure functions.
#include <cstdint>
#include <span>
#include <vector>

namespace choir {

struct PackedRow {
  std::vector<std::int64_t> documents;  ///< indices of what was packed, in order
  std::vector<std::int32_t> begins;     ///< of each document in the row, and the end of the last
};

/// Rows for documents that come one by one: each goes to the oldest open row with room for it; at
/// most `open` rows are kept open.
class RowPacker {
 public:
  explicit RowPacker(std::int64_t block, std::int64_t open = 64);
  /// The row of the next document, of 1 to `block` inputs. Rows are numbered as they are opened.
  std::int64_t add(std::int64_t length);
  /// Rows before this one are finished.
  std::int64_t finished() const { return open_.empty() ? rows_ : open_.front().row; }

 private:
  struct Open {
    std::int64_t row, used;
  };
  std::int64_t block_, most_, rows_ = 0;
  std::vector<Open> open_;  // oldest first
};

/// First fit in the given order (the order of training, so that it stays a function of the seed):
/// as RowPacker does. `lengths` are of inputs. Throws DataError for one longer than `block`.
std::vector<PackedRow> pack_rows(std::span<const std::int64_t> lengths, std::int64_t block,
                                 std::int64_t open = 64);

/// Inputs, targets and positions of one row. The target of the last token of a document is ignored:
/// no document predicts the next one's first token. Positions begin anew with every document.
struct PackedTokens {
  std::vector<std::int32_t> inputs, targets, positions;  ///< [block]
  std::vector<std::int32_t> begins;                      ///< as PackedRow's
};
/// `ids` of each document with its last token, of which n + 1 make n inputs; `counted` of each id.
PackedTokens packed_tokens(std::span<const std::span<const std::int32_t>> ids,
                           std::span<const std::span<const std::uint8_t>> counted,
                           std::int64_t block);

}  // namespace choir
