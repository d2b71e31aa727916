#pragma once
// The shared-memory windows of a node, in each of which every rank has a block that all can
// address.
#include <memory>
#include <string>
#include <vector>

#include "choir/comm/mpi/mpi_api.hpp"
#include "src/comm/aligned_memory.hpp"

namespace choir {

struct NodeCall;

class SharedWindow {
 public:
  /// Collective; every rank gives the same size. Blocks are zeroed by their owners (first touch
  /// places them in the owner's memory) and mapped by everybody. CommError on all ranks when there
  /// is no room, or when another process keeps the lock of the node's memory for longer than the
  /// time-out (0: for ever).
  SharedWindow(MPI_Comm comm, const std::string& name, std::size_t bytes, double timeout_seconds);
  /// Collective, except while an exception unwinds: then nothing is freed.
  ~SharedWindow();
  SharedWindow(const SharedWindow&) = delete;
  SharedWindow& operator=(const SharedWindow&) = delete;

  std::byte* block(int rank) const { return blocks_[static_cast<std::size_t>(rank)]; }
  std::size_t bytes() const { return bytes_; }
  /// Leaves the window behind instead of freeing it, because a peer is missing.
  void abandon() { abandoned_ = true; }

 private:
  void allocate(MPI_Comm comm, const std::string& name, std::size_t padded);
  std::size_t bytes_;
  AlignedMemory alone_;  ///< of a single rank, which shares it with nobody
  MPI_Win window_ = MPI_WIN_NULL;
  std::vector<std::byte*> blocks_;
  bool abandoned_ = false;
  int unwinding_;
};

/// The windows of a communicator, each of which is a buffer that it allocated. Their numbers are
/// equal on all ranks, for buffers are allocated collectively. It lives as long as the communicator
/// or one of its buffers needs it.
class NodeWindows {
 public:
  NodeWindows() { windows_.reserve(256); }
  void add(SharedWindow& window) { windows_.push_back(&window); }
  /// Its number is not given again.
  void remove(SharedWindow& window);
  const SharedWindow& operator[](std::uint64_t number) const { return *windows_[number]; }
  /// Finds the window whose block of `rank` holds [data, data + bytes) and notes its number and
  /// the offset.
  bool locate(const void* data, std::size_t bytes, int rank, NodeCall& call) const;
  /// Leaves all of them behind, because a peer is missing.
  void abandon();

 private:
  std::vector<SharedWindow*> windows_;  // nullptr once freed
};

/// Collective: a new window, which is in `windows` as long as the buffer lives. `places`: where the
/// buffer's ranks are others than the window's, the rank there of each, or -1.
std::unique_ptr<CommBuffer> allocate_window(MPI_Comm comm, const std::string& name,
                                            std::size_t bytes, int rank, double timeout_seconds,
                                            std::shared_ptr<NodeWindows> windows,
                                            std::vector<int> places = {});

}  // namespace choir
