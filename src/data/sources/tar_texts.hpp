#pragma once
// The texts in an archive of samples as WebDataset writes them: members of one sample follow one
// another and share their name up to its first dot. The text of a sample is its .txt, or else a
// field of its .json; other members are skipped. Names are only compared and printed: nothing is
// ever written under them, so "../" in a name is harmless.

#include <cstdint>
#include <functional>
#include <string>

#include "src/data/sources/json_rows.hpp"

namespace choir {

/// Calls use(member, row) for each sample with a .txt or a .json, in the order of the archive,
/// which may be packed with gzip or zstd. A member of more than `most` bytes has a fault. Local.
/// Throws DataError that names the archive and the last member if it is damaged or cut off,
/// DeckError in a build without libarchive.
using UseMember = std::function<void(const std::string& member, RowText&& row)>;
void read_tar_texts(const std::string& path, const std::string& field, std::size_t most,
                    const UseMember& use);

}  // namespace choir
