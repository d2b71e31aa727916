#pragma once
// The last calls of the communicators of one rank: the log, which other processes of the node may
// read at any time, and the recorder of this process, through which all entries are written.
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace choir {

enum class CommCall : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  scatter,
  gather,
  all_to_all,
  barrier,
  send,
  receive,
  exchange
};
const char* name_of(CommCall call);
/// True for calls that every rank of the communicator makes, in the same order.
inline bool is_collective(CommCall call) {
  return call < CommCall::send;
}

/// `started`: issued, and no thread waits for it yet. `queued`: passed to a device, whose progress
/// the host does not see. `failed`: the call threw.
enum class CallState : std::uint8_t { started, waiting, done, queued, failed };
const char* name_of(CallState state);

/// A short text that may be read while it is written.
class SharedName {
 public:
  static constexpr std::size_t kBytes = 32;  ///< with the zero at the end
  void set(std::string_view text);
  void set(const SharedName& other);
  std::string text() const;

 private:
  std::array<std::atomic<std::uint64_t>, kBytes / 8> words_;
};

/// A copy of one call.
struct CallRecord {
  CommCall call = CommCall::barrier;
  CallState state = CallState::started;
  int peer = -1;               ///< rank in the communicator, for send, receive and exchange
  std::uint64_t group = 0;     ///< the communicator, equal on all its ranks
  std::uint64_t sequence = 0;  ///< from 1, per communicator; messages have a separate count
  std::uint64_t bytes = 0;
  double start = 0, end = 0;  ///< now_seconds(); end is 0 while the call lasts
  std::string name;           ///< name of the communicator
};

/// A copy of one communicator.
struct GroupRecord {
  std::uint64_t id = 0;
  int rank = 0, size = 1;
  std::uint64_t entered = 0;  ///< number of collectives begun
  std::string name;
};

/// The log consists of plain words, each written and read atomically, and has no pointers.
class FlightLog {
 public:
  static constexpr std::uint64_t kRecords = 64;
  static constexpr int kGroups = 64;

  // Called by the rank itself, from any of its threads; these functions neither allocate nor lock.
  /// Returns the index of a new communicator, or -1 if all are in use.
  int join(std::string_view name, std::uint64_t id, int rank, int size);
  void leave(int place);
  /// Returns the number of the record. `place` may be -1.
  std::uint64_t begin(const SharedName& name, int place, const CallRecord& call);
  /// Changes a record, unless it has been overwritten.
  void change(std::uint64_t record, CallState state, double end = 0);
  /// Copies everything in `other` to the same indices.
  void take_over(const FlightLog& other);

  // May be called by any process, at any time.
  std::vector<CallRecord> records() const;  ///< oldest first
  std::vector<GroupRecord> groups() const;

 private:
  using Word = std::atomic<std::uint64_t>;
  struct Record {
    Word number;  ///< 0: never written; all bits set: a thread is writing it
    Word group, sequence, bytes, start, end, what;
    SharedName name;
  };
  struct Group {
    std::atomic<std::uint32_t> taken;
    Word id, shape, entered;
    SharedName name;
  };
  static_assert(Word::is_always_lock_free);
  std::uint64_t claim_next();

  Word next_;
  std::array<Record, kRecords> records_;
  std::array<Group, kGroups> groups_;
};

/// The recorder of this process. Communicator records every call of every kind, and readers of data
/// record the waits of ranks for each other. It is lock-free, can be used from any thread, takes
/// some 60 ns per call and allocates nothing.
class FlightRecorder {
 public:
  static FlightRecorder& of_process();

  int join(std::string_view name, std::uint64_t id, int rank, int size);
  void leave(int place);
  std::uint64_t begin(const SharedName& name, int place, const CallRecord& call);
  void change(std::uint64_t record, CallState state, double end = 0);
  void read(const std::function<void(const FlightLog&)>& reader) const;

  /// From now on records are written to `log` (zeroed memory; nullptr: memory of this process);
  /// earlier records are copied. After the return no thread writes to the old log. No other thread
  /// may create or destroy a communicator during the call.
  void move_to(FlightLog* log);

  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

 private:
  FlightRecorder() = default;
  template <class F>
  auto writing(const F& f);

  FlightLog own_{};
  std::atomic<FlightLog*> log_ = &own_;
  mutable std::atomic<int> users_ = 0;
};

/// Seconds that the calling thread has spent inside blocking calls and waits of communicators. Only
/// differences are meaningful.
double seconds_in_communication();
/// Called only by Communicator.
void add_seconds_in_communication(double seconds);

}  // namespace choir
