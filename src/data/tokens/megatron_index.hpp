#pragma once
// The .idx file beside a Megatron-LM .bin file: "MMIDIDX\0\0", u64 version 1, u8 type code, u64
// sequences, u64 documents, i32 lengths[sequences], i64 byte pointers[sequences], i64 first
// sequences[documents].
#include <string>

namespace choir {

/// Local. Bytes per token (2 or 4). Throws DataError when the index is damaged, of a type that is
/// no token type, or does not account for exactly the bytes of the .bin file.
int read_megatron_index(const std::string& index_path, const std::string& bin_path);

}  // namespace choir
