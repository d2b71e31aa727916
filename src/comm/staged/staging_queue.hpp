#pragma once
// The host's part of staged collectives: pinned memory between a device and the host communicator
// (StagedPipe), exchanges of messages through it (StagedExchange), the queue of jobs, which run one
// after the other in the order of their starts on a thread of their own or on the caller's thread
// in wait() (StagedJobs), and the collectives on device memory chunk by chunk (StagedWorker).

#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "choir/comm/communicator.hpp"
#include "choir/device/device.hpp"

namespace choir {

/// Two slots of pinned memory: while the host works on one, the other is copied from or to the
/// device. There is one stream for each direction.
class StagedPipe {
 public:
  /// Collective over `host`, which allocates the slots, so that its fast paths apply.
  StagedPipe(Communicator& host, Device& device, std::size_t slot_bytes);
  ~StagedPipe();
  StagedPipe(const StagedPipe&) = delete;
  StagedPipe& operator=(const StagedPipe&) = delete;

  std::size_t slot_bytes() const { return slot_bytes_; }

  /// Copies queued from here on see all work before `ready`.
  void begin(const Event& ready);
  /// For each of `pieces`: fetch(down, slot, k) queues its copies to the host, work(slot, k) runs
  /// when they are done, store(up, slot, k) queues the copies back.
  template <class Fetch, class Work, class Store>
  void run(std::size_t pieces, const Fetch& fetch, const Work& work, const Store& store) {
    const auto start = [&](std::size_t k) {
      Slot& slot = slots_[k % 2];
      down_.stream().wait(*slot.stored);  // the last use of the slot
      fetch(down_.stream(), slot.data, k);
      slot.fetched->record(down_.stream());
    };
    if (pieces > 0) start(0);
    for (std::size_t k = 0; k < pieces; ++k) {
      Slot& slot = slots_[k % 2];
      if (k + 1 < pieces) start(k + 1);
      slot.fetched->synchronize();
      work(slot.data, k);
      store(up_.stream(), slot.data, k);
      slot.stored->record(up_.stream());
    }
  }
  // Use of the whole memory, 2 * slot_bytes(), for another purpose: between claim(), which waits
  // until it is free, and release(), after which copies from it may still be queued on up().
  std::byte* memory() const { return slots_[0].data; }
  const Stream& down() const { return down_.stream(); }
  const Stream& up() const { return up_.stream(); }
  void claim() {
    for (const Slot& slot : slots_) slot.stored->synchronize();
  }
  void release() {
    for (const Slot& slot : slots_) slot.stored->record(up_.stream());
  }
  /// Marks the end of everything stored.
  void end(Event& done) { done.record(up_.stream()); }

 private:
  struct Slot {
    std::byte* data = nullptr;
    std::unique_ptr<Event> fetched, stored;
  };
  /// Uses the communicator's own memory, pinned. Returns false if the system refuses on some rank.
  bool pin_window(Communicator& host, std::size_t bytes);

  Device& device_;
  std::size_t slot_bytes_;
  std::unique_ptr<CommBuffer> window_;
  HostBuffer memory_;  // used if the window could not be pinned
  SideStream down_, up_;
  std::array<Slot, 2> slots_;
};

/// Exchanges of device memory. Each peer has a lane for each direction, in which chunks pass one
/// after the other through two halves of pinned memory while other lanes do the same. The size of a
/// chunk does not depend on the other messages, so both ends divide a message alike.
class StagedExchange {
 public:
  /// Borrows all arguments.
  StagedExchange(Communicator& host, Device& device, StagedPipe& pipe);
  /// Returns when all has been sent and received; copies back to the device are queued.
  void run(std::span<const Message> messages);

 private:
  enum class State { idle, copying, travelling };
  /// Memory and state of one chunk.
  struct Half {
    std::byte* data = nullptr;
    std::unique_ptr<Event> copied;
    State state = State::idle;
    Message piece;
    std::byte* target = nullptr;  ///< destination on the device, for a receive
    ExchangeRequest* request = nullptr;
  };
  static constexpr std::size_t kLanes = 2 * Communicator::kMaxPeers;
  struct Lane {
    int peer = -1;  ///< -1: not used by this exchange
    bool send = false;
    std::size_t message = 0, offset = 0;  ///< the first part that has not begun
    std::uint64_t begun = 0, passed = 0;  ///< numbers of chunks; passed: through MPI
    std::array<Half, 2> halves;
    Half& half(std::uint64_t piece) { return halves[piece % 2]; }
  };

  void assign_lanes(std::span<const Message> messages);
  /// Moves to the first message of this lane that has bytes left; false at the end.
  static bool more(Lane& lane, std::span<const Message> messages);
  /// Returns true if there was progress.
  bool advance(Lane& lane, std::span<const Message> messages);
  bool begin(Lane& lane, std::span<const Message> messages);
  void post(Half& half);

  Communicator& host_;
  StagedPipe& pipe_;
  std::size_t piece_bytes_;
  std::array<Lane, kLanes> lanes_;
};

/// The queue of jobs and the thread that runs them.
class StagedJobs {
 public:
  struct Work {
    CommCall kind = CommCall::barrier;
    void* data = nullptr;          ///< overwritten memory
    const void* source = nullptr;  ///< memory that is only read
    std::size_t count = 0;         ///< elements, or bytes if the call counts bytes
    DType dtype = DType::u8;
    ReduceOp op = ReduceOp::sum;
    Summation order = Summation::fast;
    int peer = 0;  ///< root, or the other rank of a message
    int tag = 0;
    const std::int64_t* counts = nullptr;
    const std::int64_t* offsets = nullptr;
    std::span<const Message> messages = {};
  };
  /// Does the work of one job between its two events.
  class Worker {
   public:
    virtual ~Worker() = default;
    virtual void perform(const Work& work, const Event& ready, Event& done) = 0;
  };

  /// wait() adds its time to `traffic`; `name` is for messages.
  StagedJobs(std::shared_ptr<Worker> worker, Device& device, std::string name, bool threaded,
             CommTraffic& traffic);
  ~StagedJobs();
  StagedJobs(const StagedJobs&) = delete;
  StagedJobs& operator=(const StagedJobs&) = delete;

  ExchangeRequest& start(const Work& work);

 private:
  static constexpr std::uint64_t kJobs = Communicator::kMaxInFlight;
  struct Job final : ExchangeRequest {
    void do_wait() override { owner->wait(*this, true); }
    void do_wait_received() override { owner->wait(*this, false); }
    bool do_test() override { return owner->test(*this); }
    StagedJobs* owner = nullptr;
    Work work;
    std::uint64_t sequence = 0;
    bool free = true;
  };
  /// State of the thread, which keeps it alive if it is left behind.
  struct Shared {
    std::shared_ptr<Worker> worker;
    Device* device = nullptr;
    std::string name;
    std::mutex mutex;
    std::condition_variable changed;
    std::array<Work, kJobs> works;
    std::array<std::unique_ptr<Event>, kJobs> ready, done;
    std::uint64_t started = 0, finished = 0;
    std::exception_ptr failure;  ///< from the first job that failed; none runs after it
    bool stop = false, ended = false;
  };
  static void serve(const std::shared_ptr<Shared>& shared);
  static void run_next(Shared& shared, std::unique_lock<std::mutex>& lock);
  /// `last` is true if no other wait for this job follows.
  void wait(Job& job, bool last);
  bool test(const Job& job);

  std::shared_ptr<Shared> shared_;
  Stream compute_;
  CommTraffic& traffic_;
  std::array<Job, kJobs> ring_;
  bool threaded_;
  std::thread thread_;
};

/// Runs each collective chunk by chunk through a StagedPipe.
class StagedWorker final : public StagedJobs::Worker {
 public:
  /// The tag of gather and scatter. The tags of messages are below it.
  static constexpr int kBlockTag = 29999;

  /// Borrows the device. `slot_bytes` is the pinned memory of each chunk in flight.
  StagedWorker(std::unique_ptr<Communicator> host, Device& device, std::size_t slot_bytes);
  void perform(const StagedJobs::Work& work, const Event& ready, Event& done) override;

 private:
  using Work = StagedJobs::Work;

  void dispatch(const Work& work, const Event& ready);
  std::size_t piece_limit(DType dtype, std::size_t blocks) const;
  void reduce(const Work& work);
  void reduce_scatter(const Work& work);
  void all_gather(const Work& work);
  void broadcast(const Work& work);
  void all_to_all(const Work& work);
  void send(const void* data, std::size_t bytes, int to, int tag);
  void receive(void* data, std::size_t bytes, int from, int tag);
  void gather(const Work& work);
  void scatter(const Work& work);
  template <class F>
  void for_blocks(const Work& work, const F& f) const;

  std::unique_ptr<Communicator> host_;
  std::size_t ranks_, mine_;
  StagedPipe pipe_;
  StagedExchange exchange_;
};

}  // namespace choir
