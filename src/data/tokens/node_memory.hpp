#pragma once
// Memory that the ranks of a node share: each owns a part and sees all parts.
#include <cstddef>
#include <vector>

#include "choir/comm/mpi_api.hpp"

namespace choir {

class NodeMemory {
 public:
  /// Collective over `node`, whose ranks must share memory; takes it over. Parts may differ in
  /// size; they lie back to back when `contiguous`, else each begins on a page near its rank.
  NodeMemory(MPI_Comm node, std::size_t bytes, bool contiguous);
  ~NodeMemory();
  NodeMemory(const NodeMemory&) = delete;
  NodeMemory& operator=(const NodeMemory&) = delete;

  MPI_Comm node() const { return node_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(parts_.size()); }
  char* part(int rank) const { return parts_[static_cast<std::size_t>(rank)]; }
  /// Before and after the synchronisation that separates writing from reading.
  void fence() const { MPI_Win_sync(window_); }

 private:
  MPI_Comm node_;
  MPI_Win window_ = MPI_WIN_NULL;
  int rank_ = 0;
  std::vector<char*> parts_;
};

}  // namespace choir
