#pragma once
// Sums over MPI with a defined order of additions.
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "choir/comm/chunks.hpp"
#include "choir/comm/mpi/mpi_api.hpp"

namespace choir {

/// The sum of one chunk: slices are sent to their owner, which adds them in the fixed tree of
/// tree_reduce. It serves Summation::tree, bf16 and f16 (for which MPI has no type) and all
/// reduce-scatters, which MPI would add root by root at a third of the speed.
/// Collective: all ranks begin the same chunks with the same tags. Each step posts messages; the
/// next step follows when all of them are done. Memory is borrowed until the end.
class SliceSum {
 public:
  /// Borrows `comm`. Chunks and the staging memory have about `chunk_bytes`.
  SliceSum(MPI_Comm comm, std::string name, int rank, int size, std::size_t chunk_bytes);

  /// Elements of one block of a chunk; in a scattered sum a chunk has one block per rank.
  std::size_t elements_of_block(DType dtype) const { return slot_bytes_ / size_of(dtype); }
  std::size_t elements_of_whole(DType dtype) const { return elements_of_block(dtype) * ranks(); }
  /// Maximum number of requests of a step.
  std::size_t most_requests() const { return 2 * (ranks() - 1); }

  /// Sums `piece` of each of the blocks of `count` elements; each rank receives its own block.
  void begin_scattered(std::byte* blocks, std::size_t count, const Chunk& piece, DType dtype,
                       ReduceOp op, int tag);
  /// Sums `piece` of `data` for all ranks. The messages use `tag` and `tag` + 1.
  void begin_whole(std::byte* data, const Chunk& piece, DType dtype, ReduceOp op, int tag);
  /// Posts the messages of the next step into the first elements of `requests` and returns their
  /// number; 0 at the end.
  std::size_t proceed(std::span<MPI_Request> requests);

 private:
  enum class Step { send_parts, add, send_sums, end };
  struct Slice {
    std::byte* data = nullptr;
    int bytes = 0;
  };

  std::size_t ranks() const { return slices_.size(); }
  void begin(DType dtype, ReduceOp op, int tag, bool whole);
  void add();
  std::size_t post_parts(std::span<MPI_Request> requests);
  std::size_t post_sums(std::span<MPI_Request> requests);
  void receive(void* data, int bytes, int from, int tag, MPI_Request& request) const;
  void send(const Slice& slice, int to, int tag, MPI_Request& request) const;

  MPI_Comm comm_;
  std::string name_;
  int rank_;
  std::size_t slot_bytes_;
  std::vector<Slice> slices_;  ///< slices of this rank's data, by owner
  std::vector<std::byte> staging_;
  std::vector<const void*> inputs_;
  DType dtype_ = DType::f32;
  ReduceOp op_ = ReduceOp::sum;
  int tag_ = 0;
  bool whole_ = false;
  Step step_ = Step::end;
};

}  // namespace choir
