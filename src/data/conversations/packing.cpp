#include "choir/data/conversations/packing.hpp"

#include <algorithm>

#include "choir/core/error.hpp"

namespace choir {

std::vector<PackedRow> pack_rows(std::span<const std::int64_t> lengths, std::int64_t block,
                                 std::int64_t open) {
  CHOIR_CHECK(block >= 1 && open >= 1, "rows of {}, {} open", block, open);
  std::vector<PackedRow> rows;
  std::vector<std::size_t> opened;  // oldest first
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] > block || lengths[i] < 1)
      throw DataError(fmt::format("conversation {} has {} tokens, a row {}", i, lengths[i], block),
                      "leave out what is longer than a row");
    auto place = std::find_if(opened.begin(), opened.end(), [&](std::size_t row) {
      return rows[row].begins.back() + lengths[i] <= block;
    });
    if (place == opened.end()) {
      if (std::ssize(opened) == open) opened.erase(opened.begin());
      opened.push_back(rows.size());
      rows.push_back({.documents = {}, .begins = {0}});
      place = opened.end() - 1;
    }
    PackedRow& row = rows[*place];
    row.documents.push_back(static_cast<std::int64_t>(i));
    row.begins.push_back(row.begins.back() + static_cast<std::int32_t>(lengths[i]));
    if (row.begins.back() == block) opened.erase(place);
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
