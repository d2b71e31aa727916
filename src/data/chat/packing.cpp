#include "src/data/chat/packing.hpp"

#include <algorithm>

#include "choir/core/error.hpp"

namespace choir {

RowPacker::RowPacker(std::int64_t block, std::int64_t open) : block_(block), most_(open) {
  CHOIR_CHECK(block >= 1 && open >= 1, "rows of {}, {} open", block, open);
}

std::int64_t RowPacker::add(std::int64_t length) {
  CHOIR_CHECK(length >= 1 && length <= block_, "{} inputs for a row of {}", length, block_);
  auto place = std::find_if(open_.begin(), open_.end(),
                            [&](const Open& row) { return row.used + length <= block_; });
  if (place == open_.end()) {
    if (std::ssize(open_) == most_) open_.erase(open_.begin());
    open_.push_back({rows_++, 0});
    place = open_.end() - 1;
  }
  const std::int64_t row = place->row;
  place->used += length;
  if (place->used == block_) open_.erase(place);
  return row;
}

std::vector<PackedRow> pack_rows(std::span<const std::int64_t> lengths, std::int64_t block,
                                 std::int64_t open) {
  RowPacker packer(block, open);
  std::vector<PackedRow> rows;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] > block || lengths[i] < 1)
      throw DataError(
          fmt::format("conversation {} has {} tokens, but a row only {}", i, lengths[i], block),
          "remove conversations that are longer than a row");
    const auto at = static_cast<std::size_t>(packer.add(lengths[i]));
    if (at == rows.size()) rows.push_back({.documents = {}, .begins = {0}});
    rows[at].documents.push_back(static_cast<std::int64_t>(i));
    rows[at].begins.push_back(rows[at].begins.back() + static_cast<std::int32_t>(lengths[i]));
  }
  return rows;
}

PackedTokens packed_tokens(std::span<const std::span<const std::int32_t>> ids,
                           std::span<const std::span<const std::uint8_t>> counted,
                           std::int64_t block) {
  PackedTokens made;
  const auto size = static_cast<std::size_t>(block);
  made.inputs.assign(size, 0);
  made.targets.assign(size, -1);
  made.positions.assign(size, 0);
  made.begins = {0};
  for (std::size_t d = 0; d < ids.size(); ++d) {
    const auto begin = static_cast<std::size_t>(made.begins.back());
    const std::size_t inputs = ids[d].size() - 1;
    CHOIR_CHECK(!ids[d].empty() && begin + inputs <= size, "{} tokens from {} on in a row of {}",
                ids[d].size(), begin, block);
    for (std::size_t i = 0; i < inputs; ++i) {
      made.inputs[begin + i] = ids[d][i];
      if (counted[d][i + 1] != 0) made.targets[begin + i] = ids[d][i + 1];
      made.positions[begin + i] = static_cast<std::int32_t>(i);
    }
    made.begins.push_back(static_cast<std::int32_t>(begin + inputs));
  }
  return made;
}

}  // namespace choir
