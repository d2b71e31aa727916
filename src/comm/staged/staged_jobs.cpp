#include "src/comm/staged/staged_jobs.hpp"

#include <chrono>

#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"

namespace choir {

StagedJobs::StagedJobs(std::shared_ptr<Worker> worker, Device& device, std::string name,
                       bool threaded, CommTraffic& traffic)
    : shared_(std::make_shared<Shared>()),
      compute_(device),
      traffic_(traffic),
      threaded_(threaded) {
  shared_->worker = std::move(worker);
  shared_->device = &device;
  shared_->name = std::move(name);
  for (auto* events : {&shared_->ready, &shared_->done})
    for (auto& event : *events) event = std::make_unique<Event>(device);
  for (Job& job : ring_) job.owner = this;
  if (threaded) thread_ = std::thread([shared = shared_] { serve(shared); });
}

StagedJobs::~StagedJobs() {
  if (!threaded_) return;
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->changed.notify_all();
  // Without an error, all jobs were waited for. After an error a peer may never answer, and the
  // thread is left behind in MPI, because the process is about to abort.
  constexpr std::chrono::seconds kPatience{1};
  if (!shared_->changed.wait_for(lock, kPatience, [&] { return shared_->ended; })) {
    thread_.detach();
    return;
  }
  lock.unlock();
  thread_.join();
}

void StagedJobs::serve(const std::shared_ptr<Shared>& shared) {
  std::unique_lock lock(shared->mutex);
  try {
    shared->device->enter_thread();
  } catch (...) {
    shared->failure = std::current_exception();
  }
  while (true) {
    shared->changed.wait(lock, [&] { return shared->stop || shared->finished < shared->started; });
    if (shared->stop) break;
    run_next(*shared, lock);
  }
  shared->ended = true;
  shared->changed.notify_all();
}

void StagedJobs::run_next(Shared& shared, std::unique_lock<std::mutex>& lock) {
  const std::size_t slot = shared.finished % kJobs;
  if (!shared.failure) {
    std::exception_ptr failure;
    lock.unlock();
    try {
      shared.worker->perform(shared.works[slot], *shared.ready[slot], *shared.done[slot]);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    shared.failure = failure;
  }
  ++shared.finished;
  shared.changed.notify_all();
}

ExchangeRequest& StagedJobs::start(const Work& work) {
  const std::unique_lock lock(shared_->mutex);
  const std::size_t slot = shared_->started % kJobs;
  Job& job = ring_[slot];
  CHOIR_CHECK(job.free, "more than {} operations in flight on {}", kJobs, shared_->name);
  job.work = shared_->works[slot] = work;
  job.sequence = shared_->started;
  job.free = false;
  shared_->ready[slot]->record(compute_);
  ++shared_->started;
  shared_->changed.notify_all();
  return job;
}

void StagedJobs::wait(Job& job, bool last) {
  CHOIR_CHECK(!job.free, "wait() called twice on {}", shared_->name);
  const double from = now_seconds();
  std::unique_lock lock(shared_->mutex);
  if (threaded_)
    shared_->changed.wait(lock, [&] { return shared_->finished > job.sequence; });
  else
    while (shared_->finished <= job.sequence) run_next(*shared_, lock);
  job.free = last;
  if (shared_->failure) std::rethrow_exception(shared_->failure);
  compute_.wait(*shared_->done[job.sequence % kJobs]);
  traffic_.seconds += now_seconds() - from;
}

bool StagedJobs::test(const Job& job) {
  const std::unique_lock lock(shared_->mutex);
  return job.free || shared_->finished > job.sequence;
}

}  // namespace choir
