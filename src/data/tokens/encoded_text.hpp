#pragma once
// Texts to ids by all ranks at once. The bytes of all files are cut into parts of equal size; each
// rank encodes every n-th of them from where it takes the part before to end, and what was taken
// wrongly is encoded again from where that part did end. So the ids are those that one rank makes.
#include <functional>
#include <span>

#include "choir/comm/communicator.hpp"
#include "choir/data/vocabulary/vocabulary.hpp"
#include "src/data/tokens/text_files.hpp"

namespace choir {

using UseIds = std::function<void(std::span<const std::int32_t>)>;

/// Collective over `ranks`, or local where it is nullptr. On rank 0 `use` gets the ids of the files
/// in their order; a file is a text of its own. A rank has some parts of `part_bytes` in memory.
/// Throws DataError as Vocabulary::encode, and what `use` throws, on every rank.
void encode_texts(Communicator* ranks, const std::vector<TextFile>& files,
                  const Vocabulary& vocabulary, std::int64_t part_bytes, const UseIds& use);

}  // namespace choir
