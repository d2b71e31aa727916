#pragma once
// The shared memory of a node. Windows, in each of which every rank has a block that all ranks can
// address; the lock of the node's shared memory, so that only its holder, among the processes of
// this user, checks the free space and then allocates it; and the synchronisation of the ranks.
// Each rank publishes its progress and its next call in a few cache lines of a window. There is
// neither an MPI call nor a lock, only a release store against acquire loads.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "choir/core/error.hpp"
#include "src/comm/communicator_parts.hpp"
#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/comm/node/node_communicator.hpp"

namespace choir {

/// Held by at most one process of this user while it checks the free space and allocates it.
class RoomLock {
 public:
  /// Path of the lock file, in a folder in which every user may create files.
  static std::string usual_path();

  /// Waits at most `seconds` for the lock and calls `idle` meanwhile. The system releases the lock
  /// of a process that dies. Nothing is locked if the folder does not exist or the file system has
  /// no locks. Throws CommError with the holder after the timeout, and if the file is a link, not a
  /// regular file, or owned by another user. Local.
  RoomLock(const std::string& path, double seconds, const std::function<void()>& idle);
  ~RoomLock();
  RoomLock(const RoomLock&) = delete;
  RoomLock& operator=(const RoomLock&) = delete;

 private:
  int file_ = -1;
};

struct NodeCall;

/// /dev/shm has no room for a window. Every rank of the window's group throws it.
class NoRoomError : public CommError {
 public:
  NoRoomError(const std::string& what, const std::string& hint, double available)
      : CommError(what, hint), available_(available) {}
  double available() const { return available_; }  ///< bytes

 private:
  double available_;
};

/// Free bytes of /dev/shm; infinite if they are unknown. Local.
double free_shared_memory();

class SharedWindow {
 public:
  /// Collective; every rank passes the same size. Blocks are zeroed by their owners (the first
  /// touch allocates them in the owner's memory) and mapped by all ranks. Throws NoRoomError on all
  /// ranks if there is no room, and CommError if another process holds the lock of the node's
  /// memory longer than the timeout (0: no limit).
  SharedWindow(MPI_Comm comm, const std::string& name, std::size_t bytes, double timeout_seconds);
  /// Collective, except while an exception unwinds: then nothing is freed.
  ~SharedWindow();
  SharedWindow(const SharedWindow&) = delete;
  SharedWindow& operator=(const SharedWindow&) = delete;

  std::byte* block(int rank) const { return blocks_[static_cast<std::size_t>(rank)]; }
  std::size_t bytes() const { return bytes_; }
  /// Prevents the destructor from freeing the window, because a peer is missing.
  void abandon() { abandoned_ = true; }

 private:
  void allocate(MPI_Comm comm, const std::string& name, std::size_t padded);
  std::size_t bytes_;
  AlignedMemory alone_;  ///< memory of a single rank, which is not shared
  MPI_Win window_ = MPI_WIN_NULL;
  std::vector<std::byte*> blocks_;
  bool abandoned_ = false;
  int unwinding_;
};

/// The windows of a communicator, one for each buffer that it allocated. Their numbers are equal on
/// all ranks, because buffers are allocated collectively. The communicator and its buffers share
/// this object.
class NodeWindows {
 public:
  NodeWindows() { windows_.reserve(256); }
  void add(SharedWindow& window) { windows_.push_back(&window); }
  /// Uses a number for a window that another node has and this one has not.
  void skip() { windows_.push_back(nullptr); }
  /// The number of a removed window is not reused.
  void remove(SharedWindow& window);
  const SharedWindow& operator[](std::uint64_t number) const { return *windows_[number]; }
  /// Finds the window in which the block of `rank` holds [data, data + bytes), and stores its
  /// number and the offset in `call`.
  bool locate(const void* data, std::size_t bytes, int rank, NodeCall& call) const;
  /// Prevents all windows from being freed, because a peer is missing.
  void abandon();

 private:
  std::vector<SharedWindow*> windows_;  // nullptr once freed
};

/// Collective: a new window, which is in `windows` as long as the buffer lives. If the ranks of the
/// buffer are not those of the window, `places` has the window's rank of each of them, or -1.
std::unique_ptr<CommBuffer> allocate_window(MPI_Comm comm, const std::string& name,
                                            std::size_t bytes, int rank, double timeout_seconds,
                                            std::shared_ptr<NodeWindows> windows,
                                            std::vector<int> places = {});

/// The next call of a rank, for comparison between ranks.
struct NodeCall {
  enum class Kind : std::uint8_t { barrier, all_reduce, reduce_scatter, all_gather };
  std::uint64_t window = 0, offset = 0, count = 0;
  Kind kind = Kind::barrier;
  DType dtype = DType::u8;
  ReduceOp op = ReduceOp::sum;
  friend bool operator==(const NodeCall&, const NodeCall&) = default;
};

class NodeRendezvous {
 public:
  enum class Stage { arrived, done };

  /// Collective. `names` are the ranks of `comm` as messages call them; if empty, their numbers.
  NodeRendezvous(MPI_Comm comm, std::string label, const NodeOptions& options,
                 std::vector<int> names = {});

  /// Publishes the call with this number (1, 2, ...) and everything written before. Local.
  void arrive(std::uint64_t sequence, const NodeCall& call);
  /// Publishes that this rank's share of call `sequence` is done. Local.
  void finish(std::uint64_t sequence);
  /// True if all ranks have reached the stage of that call; their earlier writes are then visible.
  bool reached(Stage stage, std::uint64_t sequence) const;
  /// Waits for reached(). Throws CommError with the missing ranks after the timeout.
  void await(Stage stage, std::uint64_t sequence, const NodeCall& call);
  /// Called after `arrived` was reached: throws CommError if the ranks announced different calls.
  void require_same(std::uint64_t sequence, const NodeCall& call) const;

  /// One step of a wait; `idle` counts the steps without progress. MPI makes progress meanwhile,
  /// because another rank may wait for a message that this rank has sent.
  void pause(int idle) const;
  [[noreturn]] void time_out(Stage stage, std::uint64_t sequence, const NodeCall& call) const;

  std::string describe(std::uint64_t sequence, const NodeCall& call) const;
  void abandon() { window_.abandon(); }

 private:
  static constexpr std::uint64_t kCalls = Communicator::kMaxInFlight;
  struct Board {
    alignas(64) std::atomic<std::uint64_t> arrived{0};
    alignas(64) std::atomic<std::uint64_t> done{0};
    alignas(64) NodeCall calls[kCalls];
  };
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
  Board& board(int rank) const { return *reinterpret_cast<Board*>(window_.block(rank)); }
  std::uint64_t value(Stage stage, int rank) const;
  int name(int rank) const {
    return names_.empty() ? rank : names_[static_cast<std::size_t>(rank)];
  }

  MPI_Comm comm_;
  SharedWindow window_;
  std::string label_;
  std::vector<int> names_;
  double timeout_;
  int rank_ = 0, size_ = 1, spins_ = 0;
};

}  // namespace choir
