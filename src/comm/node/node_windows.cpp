#include "src/comm/node/node_windows.hpp"

#include <fcntl.h>
#include <fmt/core.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <fstream>
#include <limits>
#include <new>
#include <optional>
#include <sstream>

#include "choir/core/error.hpp"
#include "src/comm/communicator_parts.hpp"
#include "src/core/file.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"

namespace choir {
namespace {

constexpr const char* kElsewhere = "or set parallel.transport=mpi, which needs no shared memory";

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw CommError(fmt::format("the lock '{}' of this node's shared memory {}", path, why),
                  fmt::format("remove it, {}", kElsewhere));
}

void require_own(int file, const std::string& path) {
  struct stat status {};
  if (fstat(file, &status) != 0) refuse(path, std::strerror(errno));
  if (const std::string kind = unusual_kind(status.st_mode); !kind.empty())
    refuse(path, fmt::format("is {}, not a file", kind));
  if (status.st_uid != geteuid())
    refuse(path, fmt::format("belongs to user {}, not to {}", status.st_uid, geteuid()));
}

/// "process 4711 (choir)"; the kernel lists the holders of a lock, except processes of containers.
std::string holder_of(int file) {
  struct stat status {};
  if (fstat(file, &status) != 0) return "an unknown process";
  const std::string inode = fmt::format(":{}", status.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    std::istringstream fields(line);
    std::string number, kind, mode, access, process, place;
    fields >> number >> kind >> mode >> access >> process >> place;
    if (kind != "FLOCK" || !place.ends_with(inode)) continue;
    std::ifstream command("/proc/" + process + "/comm");
    std::string name;
    std::getline(command, name);
    return fmt::format("process {}{}", process, name.empty() ? "" : " (" + name + ")");
  }
  return "an unknown process";
}

}  // namespace

std::string RoomLock::usual_path() {
  return fmt::format("/dev/shm/choir-{}.lock", geteuid());
}

RoomLock::RoomLock(const std::string& path, double seconds, const std::function<void()>& idle) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  file_ = open(path.c_str(), kFlags, 0600);
  if (file_ < 0) {
    if (errno == ELOOP) refuse(path, "is a link");
    if (errno == EISDIR || errno == EACCES || errno == ENXIO)
      refuse(path, fmt::format("cannot be opened ({}): does it belong to another user?",
                               std::strerror(errno)));
    return;
  }
  try {
    require_own(file_, path);
    const double until = now_seconds() + seconds;
    while (flock(file_, LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR)) {
      if (now_seconds() > until)
        throw CommError(fmt::format("the lock '{}' of this node's shared memory is held by {} for "
                                    "more than {}",
                                    path, holder_of(file_), format_duration(seconds)),
                        fmt::format("end that process, {}", kElsewhere));
      idle();
      usleep(200);
    }
  } catch (...) {
    close(file_);
    throw;
  }
}

RoomLock::~RoomLock() {
  if (file_ >= 0) close(file_);
}

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kAlignment = 64;

std::byte* align_up(void* at) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  return static_cast<std::byte*>(at) + (kAlignment - address % kAlignment) % kAlignment;
}

// Reads one byte of each page, which maps it, so that the first collective does not pay for page
// faults.
void map_pages(const std::byte* from, std::size_t bytes) {
  const volatile std::byte* at = from;
  for (std::size_t i = 0; i < bytes; i += kPage) static_cast<void>(at[i]);
}

class WindowBuffer final : public CommBuffer {
 public:
  WindowBuffer(MPI_Comm comm, const std::string& name, std::size_t bytes, int rank,
               double timeout_seconds, std::shared_ptr<NodeWindows> windows,
               std::vector<int> places)
      : window_(comm, name, bytes, timeout_seconds),
        rank_(rank),
        windows_(std::move(windows)),
        places_(std::move(places)) {
    windows_->add(window_);
  }
  ~WindowBuffer() override { windows_->remove(window_); }
  WindowBuffer(const WindowBuffer&) = delete;
  WindowBuffer& operator=(const WindowBuffer&) = delete;
  void* data() const override { return window_.block(rank_); }
  std::size_t bytes() const override { return window_.bytes(); }
  bool shared() const override { return true; }
  void* block(int rank) const override {
    const int place = places_.empty() ? rank : places_[static_cast<std::size_t>(rank)];
    return place < 0 ? nullptr : window_.block(place);
  }

 private:
  SharedWindow window_;
  int rank_;
  std::shared_ptr<NodeWindows> windows_;
  std::vector<int> places_;
};

/// Collective: rank 0 takes the lock. All ranks return its error.
std::optional<CommError> take_lock(std::optional<RoomLock>& lock, MPI_Comm comm,
                                   const std::string& name, double timeout_seconds) {
  int ranks = 1, rank = 0;
  MPI_Comm_size(comm, &ranks);
  MPI_Comm_rank(comm, &rank);
  std::array<std::string, 2> texts;  // text of the error, and its hint
  if (rank == 0) {
    try {
      const double forever = std::numeric_limits<double>::infinity();
      lock.emplace(RoomLock::usual_path(), timeout_seconds > 0 ? timeout_seconds : forever, [&] {
        int found = 0;  // progress of MPI: others may wait for a message from this rank
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &found, MPI_STATUS_IGNORE);
      });
    } catch (const CommError& error) {
      texts = {error.what(), error.hint()};
    }
  }
  std::array<int, 2> sizes{static_cast<int>(texts[0].size()), static_cast<int>(texts[1].size())};
  mpi_check(MPI_Bcast(sizes.data(), 2, MPI_INT, 0, comm), "MPI_Bcast", name);
  if (sizes[0] == 0) return std::nullopt;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    texts[i].resize(static_cast<std::size_t>(sizes[i]));
    mpi_check(MPI_Bcast(texts[i].data(), sizes[i], MPI_CHAR, 0, comm), "MPI_Bcast", name);
  }
  CommError error(fmt::format("{}: {}", name, texts[0]), texts[1]);
  error.set_agreed_ranks(ranks);
  return error;
}

}  // namespace

double free_shared_memory() {
  struct statvfs room {};
  if (statvfs("/dev/shm", &room) != 0) return std::numeric_limits<double>::infinity();
  return static_cast<double>(room.f_bavail) * static_cast<double>(room.f_frsize);
}

// MPI libraries on Linux back these windows with /dev/shm, whose size a container may limit to 64
// MB. Writing past it is a bus error and not a return code, so the free space is checked before.
// Several groups of a node check at the same time: the first rank of each group excludes the others
// until its window has been written. It takes the lock when its whole group has arrived, so that it
// waits for nobody while it holds the lock.
SharedWindow::SharedWindow(MPI_Comm comm, const std::string& name, std::size_t bytes,
                           double timeout_seconds)
    : bytes_(bytes), unwinding_(std::uncaught_exceptions()) {
  const std::size_t padded = chunk_count(bytes, kAlignment) * kAlignment + kAlignment;
  int ranks = 1, rank = 0;
  MPI_Comm_size(comm, &ranks);
  MPI_Comm_rank(comm, &rank);
  if (ranks == 1) {
    alone_ = aligned_memory(padded);
    blocks_.push_back(alone_.get());
    return;
  }
  mpi_check(MPI_Barrier(comm), "MPI_Barrier", name);
  std::optional<RoomLock> lock;
  const std::optional<CommError> refusal = take_lock(lock, comm, name, timeout_seconds);
  if (refusal) throw *refusal;
  const double wanted = static_cast<double>(padded) * ranks;
  double available = rank == 0 ? free_shared_memory() : 0;
  mpi_check(MPI_Bcast(&available, 1, MPI_DOUBLE, 0, comm), "MPI_Bcast", name);
  if (available < wanted) {
    NoRoomError error(
        fmt::format("{}: a node-shared window of {} for {} ranks does not fit into /dev/shm, "
                    "which has {} free",
                    name, format_bytes(wanted), ranks, format_bytes(available)),
        "enlarge /dev/shm (containers: --shm-size), or set parallel.transport=mpi", available);
    error.set_agreed_ranks(ranks);
    throw error;
  }
  allocate(comm, name, padded);
  std::memset(block(rank), 0, bytes);
  mpi_check(MPI_Barrier(comm), "MPI_Barrier", name);
  lock.reset();
  for (int p = 0; p < ranks; ++p) map_pages(block(p), bytes);
  mpi_check(MPI_Barrier(comm), "MPI_Barrier", name);
}

void SharedWindow::allocate(MPI_Comm comm, const std::string& name, std::size_t padded) {
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

  // Each process maps the window at another address, so an alignment shift is the same for all only
  // if the owner of the block chooses it.
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
}

SharedWindow::~SharedWindow() {
  const bool left = abandoned_ || std::uncaught_exceptions() > unwinding_;
  if (left && alone_) keep_forever(std::move(alone_));  // messages may still be sent to it
  if (window_ == MPI_WIN_NULL || left) return;
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
                                            std::size_t bytes, int rank, double timeout_seconds,
                                            std::shared_ptr<NodeWindows> windows,
                                            std::vector<int> places) {
  return std::make_unique<WindowBuffer>(comm, name, bytes, rank, timeout_seconds,
                                        std::move(windows), std::move(places));
}

}  // namespace choir

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace choir {
namespace {

void pause_processor() {
#if defined(__SSE2__)
  _mm_pause();
#endif
}

// Spins before the core is yielded: some 20 us if each rank has its own core. A rank that is bound
// to one core cannot see whether others share it, so only unbound ranks profit from the count of
// usable cores. In doubt, yielding costs a system call of 0.3 us.
constexpr int kSpins = 400;

// Polling the network costs about as much as yielding the core a few times.
constexpr int kYieldsPerProgress = 8;

}  // namespace

NodeRendezvous::NodeRendezvous(MPI_Comm comm, std::string label, const NodeOptions& options,
                               std::vector<int> names)
    : comm_(comm),
      window_(comm, label, sizeof(Board), options.timeout_seconds),
      label_(std::move(label)),
      names_(std::move(names)),
      timeout_(options.timeout_seconds) {
  MPI_Comm_rank(comm, &rank_);
  MPI_Comm_size(comm, &size_);
  const int cores = usable_cores();
  spins_ = cores == 1 || cores >= size_ ? kSpins : 0;
  new (window_.block(rank_)) Board();
  mpi_check(MPI_Barrier(comm), "MPI_Barrier", label_);
}

void NodeRendezvous::arrive(std::uint64_t sequence, const NodeCall& call) {
  Board& mine = board(rank_);
  mine.calls[sequence % kCalls] = call;
  mine.arrived.store(sequence, std::memory_order_release);
}

void NodeRendezvous::finish(std::uint64_t sequence) {
  board(rank_).done.store(sequence, std::memory_order_release);
}

std::uint64_t NodeRendezvous::value(Stage stage, int rank) const {
  const Board& theirs = board(rank);
  return (stage == Stage::arrived ? theirs.arrived : theirs.done).load(std::memory_order_acquire);
}

bool NodeRendezvous::reached(Stage stage, std::uint64_t sequence) const {
  for (int p = 0; p < size_; ++p)
    if (value(stage, p) < sequence) return false;
  return true;
}

void NodeRendezvous::pause(int idle) const {
  if (idle <= spins_) return pause_processor();
  if (idle % kYieldsPerProgress == 0) {
    int found = 0;
    mpi_check(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &found, MPI_STATUS_IGNORE),
              "MPI_Iprobe", label_);
  }
  sched_yield();
}

void NodeRendezvous::await(Stage stage, std::uint64_t sequence, const NodeCall& call) {
  int idle = 0;
  double deadline = 0;
  for (int p = 0; p < size_; ++p) {
    while (value(stage, p) < sequence) {
      pause(++idle);
      if (timeout_ <= 0 || idle % 64 != 0) continue;
      const double now = now_seconds();
      if (deadline == 0) deadline = now + timeout_;
      if (now > deadline) time_out(stage, sequence, call);
    }
  }
}

void NodeRendezvous::time_out(Stage stage, std::uint64_t sequence, const NodeCall& call) const {
  std::string missing;
  int count = 0;
  for (int p = 0; p < size_; ++p) {
    if (value(stage, p) >= sequence) continue;
    missing += (count++ == 0 ? "" : ", ") + std::to_string(name(p));
  }
  throw CommError(
      fmt::format("{} {} waited {} for rank{} {}, which {} not {}", label_,
                  describe(sequence, call), format_duration(timeout_), plural(count), missing,
                  count == 1 ? "has" : "have",
                  stage == Stage::arrived ? "arrived" : "finished their share"),
      "look for an earlier error of that rank, or a rank that is stopped, swapped out or in "
      "another phase");
}

void NodeRendezvous::require_same(std::uint64_t sequence, const NodeCall& call) const {
  for (int p = 0; p < size_; ++p) {
    const NodeCall& theirs = board(p).calls[sequence % kCalls];
    if (theirs == call) continue;
    throw CommError(
        fmt::format("{}: ranks disagree: rank {} calls {}, rank {} calls {}", label_, name(rank_),
                    describe(sequence, call), name(p), describe(sequence, theirs)),
        "every rank of a communicator makes the same calls in the same order");
  }
}

std::string NodeRendezvous::describe(std::uint64_t sequence, const NodeCall& call) const {
  constexpr std::array<const char*, 4> kNames{"barrier", "all_reduce", "reduce_scatter",
                                              "all_gather"};
  const char* name = kNames[static_cast<std::size_t>(call.kind)];
  if (call.kind == NodeCall::Kind::barrier) return fmt::format("{} (call {})", name, sequence);
  return fmt::format("{} of {} {} at byte {} of buffer {} (call {})", name, call.count,
                     name_of(call.dtype), call.offset, call.window, sequence);
}

}  // namespace choir
