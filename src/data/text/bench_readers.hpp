#pragma once
// Benchmark of the token readers on a file in the page cache, compared with plain pread.

#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "src/data/text/token_reader.hpp"

namespace choir {

struct ReaderSpeed {
  std::string reader;            ///< "pread" (the ceiling), "own", "collective", "scatter", "node"
  double seconds = 0;            ///< median over the rounds of the time of the slowest rank
  double gb_per_s = 0;           ///< 1e9 bytes of the file per second, all ranks together
  double ratio = 0;              ///< median over the rounds of pread's time / this reader's time
  std::vector<double> rounds;    ///< seconds of each round on the slowest rank
  std::int64_t block_bytes = 0;  ///< bytes of one read
  std::int64_t reads = 0;        ///< reads of all ranks in a round
  std::int64_t wrong = 0;        ///< blocks that differ from those of pread, on all ranks
};

/// Collective over `comm`. Rank 0 writes `bytes` of random tokens into a new file in `folder` and
/// removes it at the end. Every rank reads its contiguous 1/ranks of the file in blocks of
/// `block_bytes` into reused memory, with every reader in turn, `rounds` times; a preceding round
/// is checked for correctness. The lower bound of the time is one copy of the file out of the page
/// cache by all cores. Throws StorageError, DataError.
std::vector<ReaderSpeed> bench_readers(Communicator& comm, const std::string& folder,
                                       std::int64_t bytes, int rounds,
                                       const ReaderOptions& options = {},
                                       std::int64_t block_bytes = std::int64_t{1} << 26);

}  // namespace choir
