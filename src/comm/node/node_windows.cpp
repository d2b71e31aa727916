#include "src/comm/node/node_windows.hpp"

#include <sys/statvfs.h>

#include <cstring>
#include <exception>

#include "choir/comm/chunks.hpp"
#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"
#include "src/comm/node/node_rendezvous.hpp"

namespace choir {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kAlignment = 64;

std::byte* align_up(void* at) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  return static_cast<std::byte*>(at) + (kAlignment - address % kAlignment) % kAlignment;
}

// Reading one byte of each page maps it, so that the first collective does not pay for page faults.
void map_pages(const std::byte* from, std::size_t bytes) {
  const volatile std::byte* at = from;
  for (std::size_t i = 0; i < bytes; i += kPage) static_cast<void>(at[i]);
}

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

// MPI libraries on Linux back these windows with /dev/shm, whose size a container may cut to 64 MB;
// writing past it is a bus error, not a return code, so the room is checked before.
void SharedWindow::refuse_when_short(MPI_Comm comm, const std::string& name,
                                     std::size_t padded) const {
  int ranks = 1;
  MPI_Comm_size(comm, &ranks);
  struct statvfs room {};
  const double wanted = static_cast<double>(padded) * ranks;
  double available = wanted;
  if (statvfs("/dev/shm", &room) == 0)
    available = static_cast<double>(room.f_bavail) * static_cast<double>(room.f_frsize);
  mpi_check(MPI_Allreduce(MPI_IN_PLACE, &available, 1, MPI_DOUBLE, MPI_MIN, comm), "MPI_Allreduce",
            name);
  if (available >= wanted) return;
  throw CommError(
      fmt::format("{}: a node-shared window of {} for {} ranks does not fit into /dev/shm, "
                  "which has {} left",
                  name, format_bytes(wanted), ranks, format_bytes(available)),
      "enlarge /dev/shm (containers: --shm-size), or choose the mpi transport");
}

SharedWindow::SharedWindow(MPI_Comm comm, const std::string& name, std::size_t bytes)
    : bytes_(bytes), unwinding_(std::uncaught_exceptions()) {
  const std::size_t padded = chunk_count(bytes, kAlignment) * kAlignment + kAlignment;
  refuse_when_short(comm, name, padded);
  int ranks = 1, rank = 0;
  MPI_Comm_size(comm, &ranks);
  MPI_Comm_rank(comm, &rank);
  MPI_Info info = MPI_INFO_NULL;
  MPI_Info_create(&info);
  MPI_Info_set(info, "alloc_shared_noncontig", "true");
  void* mine = nullptr;
  const int code =
      MPI_Win_allocate_shared(static_cast<MPI_Aint>(padded), 1, info, comm, &mine, &window_);
  MPI_Info_free(&info);
  mpi_check(code, "MPI_Win_allocate_shared", name);
  MPI_Win_set_errhandler(window_, MPI_ERRORS_RETURN);
  mpi_check(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_), "MPI_Win_lock_all", name);

  // Each process maps the window where it likes, so a shift is the same for all only if its owner
  // chose it.
  std::vector<std::int64_t> shifts(static_cast<std::size_t>(ranks));
  shifts[static_cast<std::size_t>(rank)] = align_up(mine) - static_cast<std::byte*>(mine);
  mpi_check(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, shifts.data(), 1, MPI_INT64_T, comm),
            "MPI_Allgather", name);
  for (int p = 0; p < ranks; ++p) {
    MPI_Aint size = 0;
    int unit = 1;
    void* base = nullptr;
    mpi_check(MPI_Win_shared_query(window_, p, &size, &unit, &base), "MPI_Win_shared_query", name);
    blocks_.push_back(static_cast<std::byte*>(base) + shifts[static_cast<std::size_t>(p)]);
  }
  std::memset(block(rank), 0, bytes);
  mpi_check(MPI_Barrier(comm), "MPI_Barrier", name);
  for (int p = 0; p < ranks; ++p) map_pages(block(p), bytes);
  mpi_check(MPI_Barrier(comm), "MPI_Barrier", name);
}

SharedWindow::~SharedWindow() {
  if (window_ == MPI_WIN_NULL || abandoned_ || std::uncaught_exceptions() > unwinding_) return;
  MPI_Win_unlock_all(window_);
  MPI_Win_free(&window_);
}

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
