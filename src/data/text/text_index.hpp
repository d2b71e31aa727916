#pragma once
// Training without a prepared copy: the ids of a unit of a text source, and the index of a source,
// which holds the number of ids of each unit. With it the place of every sample is known before
// anything is encoded, so that the order of the samples is a pure function of (seed, epoch).

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "src/data/sources/text_source.hpp"
#include "src/data/vocabulary/vocabulary.hpp"

namespace choir {

/// The ids of a unit: each document with end_of_document() behind it. A span of plain text is a
/// text of its own.
struct UnitIds {
  std::vector<std::int32_t> ids;
  std::int64_t documents = 0;
  DamagedRows damaged;
};
/// Local; threads may share the arguments. `stopped` is asked after each row; an encoding that is
/// stopped is incomplete. Throws DataError as TextSource::read and append_ids().
UnitIds encode_unit(const TextSource& source, std::size_t unit, const Vocabulary& vocabulary,
                    const std::function<bool()>& stopped = {});

struct TextIndex {
  struct Unit {
    std::int64_t tokens = 0;
    std::uint32_t crc = 0;  ///< crc32c of the ids
  };
  std::vector<Unit> units;
  std::int64_t documents = 0;
  DamagedRows damaged;

  std::int64_t tokens() const;
  /// A digest of the ids in the order of the units.
  std::uint32_t crc() const;
  std::string serialise() const;
  static TextIndex deserialise(std::string_view bytes);
};

struct IndexOptions {
  std::string file;  ///< where the index is kept; "": nowhere
  int threads = 1;   ///< of each rank
};

/// Collective over `ranks`. Reads the index from options.file, or encodes all units once, divided
/// among the ranks and their threads, and writes the file. The result is the same for any number of
/// ranks and threads. Throws on all ranks: DataError as encode_unit(), or if no row has a text;
/// StorageError if the file cannot be written.
TextIndex index_texts(Communicator& ranks, const TextSource& source, const Vocabulary& vocabulary,
                      const IndexOptions& options);

}  // namespace choir
