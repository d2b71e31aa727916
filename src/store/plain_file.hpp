#pragma once
// The pieces of all ranks in one file without layout, checksum or protocol: the baseline of saves
// and loads.
#include <cstdint>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "choir/store/bench_checkpoint.hpp"
#include "choir/store/stored_tensor.hpp"

namespace choir {

std::int64_t bytes_of(const StoredTensor& tensor, const StoredPiece& piece);
/// Collective: the maximum of every time over the ranks.
AccessRound slowest_of(Communicator& world, const AccessRound& mine);

class PlainFile {
 public:
  /// The pieces of this rank begin at `first`; each access has at most `transfer_bytes`.
  PlainFile(Communicator& world, std::string path, const std::vector<StoredTensor>& tensors,
            std::int64_t first, std::int64_t transfer_bytes)
      : world_(world),
        path_(std::move(path)),
        tensors_(tensors),
        first_(first),
        transfer_bytes_(transfer_bytes) {}

  /// Collective, like read(); measured from a barrier on. Throws StorageError on every rank. The
  /// write ends with fsync and asks the system to drop the cached pages.
  AccessRound write() const;
  AccessRound read() const;

 private:
  template <class Action>
  void over_transfers(const Action& action) const;

  Communicator& world_;
  std::string path_;
  const std::vector<StoredTensor>& tensors_;
  std::int64_t first_, transfer_bytes_;
};

}  // namespace choir
