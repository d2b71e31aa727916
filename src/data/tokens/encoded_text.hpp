#pragma once
// Encoding of texts to ids by all ranks in parallel. The bytes of all files are cut into parts of
// equal size; each rank encodes every n-th part from the position where it expects the previous
// part to end. A part with a wrong begin is encoded again from the actual end of the previous part,
// so the ids are equal to those of a single rank.
#include <functional>
#include <span>

#include "choir/comm/communicator.hpp"
#include "choir/data/vocabulary/vocabulary.hpp"
#include "src/data/tokens/text_files.hpp"

namespace choir {

using UseIds = std::function<void(std::span<const std::int32_t>)>;

/// Collective over `ranks`, or local if it is nullptr. On rank 0 `use` gets the ids of the files in
/// order; each file is a text of its own. A rank keeps some parts of `part_bytes` in memory. Throws
/// DataError as Vocabulary::encode, and the errors of `use`, on every rank.
void encode_texts(Communicator* ranks, const std::vector<TextFile>& files,
                  const Vocabulary& vocabulary, std::int64_t part_bytes, const UseIds& use);

}  // namespace choir
