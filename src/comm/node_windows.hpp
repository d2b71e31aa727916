#pragma once
// The shared-memory windows of a node communicator, each of them a buffer that it allocated.
#include <memory>
#include <string>
#include <vector>

#include "src/comm/node_rendezvous.hpp"
#include "src/comm/shared_window.hpp"

namespace choir {

/// By number, equal on all ranks: buffers are allocated collectively. Lives as long as the
/// communicator or one of its buffers needs it.
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
  /// Leaves all of them behind: a peer is missing.
  void abandon();

 private:
  std::vector<SharedWindow*> windows_;  // nullptr once freed
};

/// Collective: a new window, which is in `windows` as long as the buffer lives.
std::unique_ptr<CommBuffer> allocate_window(MPI_Comm comm, const std::string& name,
                                            std::size_t bytes, int rank,
                                            std::shared_ptr<NodeWindows> windows);

}  // namespace choir
