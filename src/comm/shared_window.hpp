#pragma once
// One MPI shared-memory window of a node: a block of each rank, all of them addressable by all.
#include <vector>

#include "choir/comm/mpi_api.hpp"

namespace choir {

class SharedWindow {
 public:
  /// Collective; every rank gives the same size. Blocks are zeroed by their owners (first touch
  /// places them in the owner's memory) and mapped by everybody. CommError on all ranks when there
  /// is no room.
  SharedWindow(MPI_Comm comm, const std::string& name, std::size_t bytes);
  /// Collective, except while an exception unwinds: then nothing is freed.
  ~SharedWindow();
  SharedWindow(const SharedWindow&) = delete;
  SharedWindow& operator=(const SharedWindow&) = delete;

  std::byte* block(int rank) const { return blocks_[static_cast<std::size_t>(rank)]; }
  std::size_t bytes() const { return bytes_; }
  /// Leaves the window behind instead of freeing it: a peer is missing.
  void abandon() { abandoned_ = true; }

 private:
  void refuse_when_short(MPI_Comm comm, const std::string& name, std::size_t padded) const;
  std::size_t bytes_;
  MPI_Win window_ = MPI_WIN_NULL;
  std::vector<std::byte*> blocks_;
  bool abandoned_ = false;
  int unwinding_;
};

}  // namespace choir
