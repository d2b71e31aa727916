#pragma once
// The values of a column of text in one row group of a Parquet file: pages of version 1 and 2 in
// the encodings PLAIN, RLE_DICTIONARY (and its older name PLAIN_DICTIONARY) and
// DELTA_LENGTH_BYTE_ARRAY. The formats are those of apache/parquet-format (Encodings.md).

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "src/data/sources/parquet_footer.hpp"

namespace choir {

/// Calls use(row, value) for each row of the group that is not null; rows count from 0. The bytes
/// of a value are those of the file (they may be no UTF-8) and valid during the call. Local. A page
/// is in memory, and the packed bytes of the group. Throws DataError that names the file and the
/// row group if it is damaged or has another encoding.
using UseValue = std::function<void(std::int64_t row, std::string_view value)>;
void read_parquet_group(const std::string& path, const ParquetColumn& column, std::size_t group,
                        const UseValue& use);

}  // namespace choir
