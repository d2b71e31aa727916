#pragma once
// The communicators on which every collective is tested, and small exact numbers to test them with.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/comm/node/node_communicator.hpp"

namespace choir::test {

/// "mpi"; "mpi_tiny": chunks of a few bytes; "node": buffers in the window, "node_outside": the
/// same communicator with memory of its own. "two_level": pairs of ranks are treated as nodes;
/// "two_level_uneven": the last rank is alone on its node; "two_level_tiny": every other rank is on
/// the same node, and messages have a few bytes.
inline std::unique_ptr<Communicator> make_kind(const std::string& kind) {
  if (kind == "mpi") return make_mpi_communicator(MPI_COMM_WORLD, kind);
  if (kind == "mpi_tiny")
    return make_mpi_communicator(
        MPI_COMM_WORLD, kind,
        {.reduce_chunk_bytes = 24, .message_bytes = 16, .max_chunk_bytes = 16});
  NodeOptions options;
  options.timeout_seconds = 60;
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (kind == "two_level")
    return make_two_level_communicator(MPI_COMM_WORLD, kind, rank / 2, options);
  if (kind == "two_level_uneven")
    return make_two_level_communicator(MPI_COMM_WORLD, kind, rank + 1 < size, options);
  options.link_message_bytes = 64;
  if (kind == "two_level_tiny")
    return make_two_level_communicator(MPI_COMM_WORLD, kind, rank % 2, options);
  options = {};
  options.timeout_seconds = 60;
  return make_node_communicator(MPI_COMM_WORLD, kind, options);
}

/// Memory of the sort that the kind tests.
class Memory {
 public:
  Memory(Communicator& comm, std::size_t bytes) {
    if (comm.name() == "node_outside")
      own_.resize(bytes + 64);
    else
      buffer_ = comm.allocate(bytes);
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(buffer_ ? buffer_->data() : const_cast<std::byte*>(own_.data()));
  }

 private:
  std::unique_ptr<CommBuffer> buffer_;
  std::vector<std::byte> own_;
};

/// Small integers, different for each rank and index; sums of a few are exact even in bf16.
inline int number(int rank, std::size_t i) {
  return static_cast<int>((i * 7 + static_cast<std::size_t>(rank) * 13 + i / 11) % 29);
}

}  // namespace choir::test
