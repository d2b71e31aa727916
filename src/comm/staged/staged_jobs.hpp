#pragma once
// The host's part of staged collectives. Jobs run one after the other in the order of their starts,
// which is the same on every rank, on a thread of their own or on the caller's thread in wait().
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

}  // namespace choir
