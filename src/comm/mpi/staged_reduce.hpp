#pragma once
// Reductions over MPI in an order of additions that is ours: slices travel to their owner, who adds
// them in the fixed tree of tree_reduce. They serve Summation::tree, and bf16 and f16, for which
// MPI has no type.
#include <cstddef>
#include <string>
#include <vector>

#include "choir/comm/mpi/mpi_api.hpp"

namespace choir {

class StagedReduce {
 public:
  /// Borrows `comm`. Staging memory (about `chunk_bytes`) is allocated by the first call.
  StagedReduce(MPI_Comm comm, std::string name, int rank, int size, std::size_t chunk_bytes);

  // Collective; contracts as in Communicator.
  void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op);
  void reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp op);
  void reduce(void* data, std::size_t count, DType dtype, ReduceOp op, int root);

 private:
  void warm_up();
  /// Elements of one rank's staging slot.
  std::size_t slot_count(DType dtype) const;
  /// Slice p of my data goes to rank p, my slice of everyone arrives; the tree sum replaces my
  /// slice. `slices_` and `lengths_` (bytes) say where.
  void exchange_and_sum(DType dtype, ReduceOp op);

  MPI_Comm comm_;
  std::string name_;
  int rank_, size_;
  std::size_t slot_bytes_;
  std::vector<std::byte> staging_;
  std::vector<std::byte*> slices_;
  std::vector<int> lengths_, offsets_;
  std::vector<const void*> inputs_;
  std::vector<MPI_Request> requests_;
};

}  // namespace choir
