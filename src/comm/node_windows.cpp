#include "src/comm/node_windows.hpp"

namespace choir {
namespace {

class WindowBuffer final : public CommBuffer {
 public:
  WindowBuffer(MPI_Comm comm, const std::string& name, std::size_t bytes, int rank,
               std::shared_ptr<NodeWindows> windows)
      : window_(comm, name, bytes), rank_(rank), windows_(std::move(windows)) {
    windows_->add(window_);
  }
  ~WindowBuffer() override { windows_->remove(window_); }
  WindowBuffer(const WindowBuffer&) = delete;
  WindowBuffer& operator=(const WindowBuffer&) = delete;
  void* data() const override { return window_.block(rank_); }
  std::size_t bytes() const override { return window_.bytes(); }
  bool shared() const override { return true; }
  void* block(int rank) const override { return window_.block(rank); }

 private:
  SharedWindow window_;
  int rank_;
  std::shared_ptr<NodeWindows> windows_;
};

}  // namespace

void NodeWindows::remove(SharedWindow& window) {
  for (SharedWindow*& one : windows_)
    if (one == &window) one = nullptr;
}

bool NodeWindows::locate(const void* data, std::size_t bytes, int rank, NodeCall& call) const {
  const auto* from = static_cast<const std::byte*>(data);
  for (std::size_t w = windows_.size(); w-- > 0;) {
    const SharedWindow* window = windows_[w];
    if (window == nullptr) continue;
    const std::byte* base = window->block(rank);
    if (from < base || from + bytes > base + window->bytes()) continue;
    call.window = w;
    call.offset = static_cast<std::uint64_t>(from - base);
    return true;
  }
  return false;
}

void NodeWindows::abandon() {
  for (SharedWindow* window : windows_)
    if (window != nullptr) window->abandon();
}

std::unique_ptr<CommBuffer> allocate_window(MPI_Comm comm, const std::string& name,
                                            std::size_t bytes, int rank,
                                            std::shared_ptr<NodeWindows> windows) {
  return std::make_unique<WindowBuffer>(comm, name, bytes, rank, std::move(windows));
}

}  // namespace choir
