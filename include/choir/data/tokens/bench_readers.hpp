#pragma once
// How fast the readers get a file that is in the page cache, against plain pread.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/data/tokens/token_reader.hpp"

namespace choir {

struct ReaderSpeed {
  std::string reader;   ///< "pread" (the ceiling), "own", "collective", "scatter", "node"
  double seconds = 0;   ///< median over the rounds of the slowest rank's time
  double gb_per_s = 0;  ///< 1e9 bytes of the file per second, all ranks together
  double ratio = 0;  ///< median over the rounds of pread's seconds / this one's in the same round
  std::vector<double> rounds;    ///< seconds of each, the slowest rank's
  std::int64_t block_bytes = 0;  ///< of one read
  std::int64_t reads = 0;        ///< of all ranks, in a round
  std::int64_t wrong = 0;        ///< blocks that were not what pread got, all ranks
};

/// Collective over `comm`. Rank 0 writes `bytes` of random tokens into a new file in `folder`, and
/// removes it at the end. Every rank reads its contiguous 1/ranks of the file in blocks of
/// `block_bytes` into memory that is used again, with every reader in turn, `rounds` times; a round
/// before these is checked. The floor is one copy of the file out of the page cache by all cores.
/// Throws StorageError, DataError.
std::vector<ReaderSpeed> bench_readers(Communicator& comm, const std::string& folder,
                                       std::int64_t bytes, int rounds,
                                       const ReaderOptions& options = {},
                                       std::int64_t block_bytes = std::int64_t{1} << 26);

}  // namespace choir
