#pragma once
// What the communicators of one rank did last: the log, which other processes of the node may read
// at any time, and the recorder of this process, through which everything is written into it.
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
/// Every rank of the communicator makes it, in the same order.
inline bool is_collective(CommCall call) {
  return call < CommCall::send;
}

/// `started`: issued, and nobody waits for it yet. `queued`: handed to a device, whose progress the
/// host does not see. `failed`: it threw.
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

/// One call, as read.
struct CallRecord {
  CommCall call = CommCall::barrier;
  CallState state = CallState::started;
  int peer = -1;               ///< of send, receive and exchange: rank in the communicator
  std::uint64_t group = 0;     ///< the communicator, equal on all its ranks
  std::uint64_t sequence = 0;  ///< from 1, per communicator; messages are counted by themselves
  std::uint64_t bytes = 0;
  double start = 0, end = 0;  ///< now_seconds(); end 0: has not ended
  std::string name;           ///< of the communicator
};

/// One communicator, as read.
struct GroupRecord {
  std::uint64_t id = 0;
  int rank = 0, size = 1;
  std::uint64_t entered = 0;  ///< collectives begun
  std::string name;
};

/// The log is made of plain words, each written and read atomically, and has no pointers.
class FlightLog {
 public:
  static constexpr std::uint64_t kRecords = 64;
  static constexpr int kGroups = 64;

  // Called by the rank itself, from any of its threads; nothing here allocates or locks.
  /// Returns the place of a new communicator, or -1 when there is none left.
  int join(std::string_view name, std::uint64_t id, int rank, int size);
  void leave(int place);
  /// Returns the number of the record. `place` may be -1.
  std::uint64_t begin(const SharedName& name, int place, const CallRecord& call);
  /// The record may have been overwritten in the meantime.
  void change(std::uint64_t record, CallState state, double end = 0);
  /// Copies everything in `other` to the same places.
  void take_over(const FlightLog& other);

  // May be called by anyone, at any time.
  std::vector<CallRecord> records() const;  ///< oldest first
  std::vector<GroupRecord> groups() const;

 private:
  using Word = std::atomic<std::uint64_t>;
  struct Record {
    Word number;  ///< 0: never written; all bits: a thread is writing it
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

/// The recorder of this process. Communicator writes every call of every kind into it, readers of
/// data write where their ranks wait for each other, and nobody else does. It is lock free, can be
/// used from any thread, takes some 60 ns a call and allocates nothing.
class FlightRecorder {
 public:
  static FlightRecorder& of_process();

  int join(std::string_view name, std::uint64_t id, int rank, int size);
  void leave(int place);
  std::uint64_t begin(const SharedName& name, int place, const CallRecord& call);
  void change(std::uint64_t record, CallState state, double end = 0);
  void read(const std::function<void(const FlightLog&)>& reader) const;

  /// From now on records go to `log` (zeroed memory; nullptr: memory of this process), and what has
  /// been recorded is taken along. When it returns, nobody writes to the old place any more. No
  /// other thread may begin or end a communicator meanwhile.
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
/// differences mean anything.
double seconds_in_communication();
/// For the use of Communicator.
void add_seconds_in_communication(double seconds);

}  // namespace choir
