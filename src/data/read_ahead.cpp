#include "src/data/read_ahead.hpp"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "choir/core/error.hpp"
#include "src/core/quantities.hpp"

namespace choir {

struct ReadAhead::State {
  std::unique_ptr<SlotSource> source;
  int slots = 2;
  bool threaded = true;
  std::int64_t asked = 0;  // number of calls of next()
  double waited = 0;
  int unwinding = std::uncaught_exceptions();

  std::mutex mutex;
  std::condition_variable changed;
  std::int64_t filled = 0;   // this and the members below are protected by the mutex
  std::int64_t allowed = 0;  // number of calls that may be filled
  bool stop = false;
  bool ended = false;  // the thread returned
  std::exception_ptr failure;
  std::thread thread;

  int slot(std::int64_t call) const { return static_cast<int>(call % slots); }
  // After `stop` the allowed calls are still filled, because other ranks may be in the same read.
  void run() {
    std::unique_lock lock(mutex);
    while (!failure) {
      changed.wait(lock, [&] { return filled < allowed || stop; });
      if (filled == allowed) break;
      lock.unlock();
      std::exception_ptr thrown;
      try {
        source->fill(filled, slot(filled));
      } catch (...) {
        thrown = std::current_exception();
      }
      lock.lock();
      failure = thrown;
      if (!failure) ++filled;
      changed.notify_all();
    }
    ended = true;
    changed.notify_all();
  }
};

ReadAhead::ReadAhead(std::unique_ptr<SlotSource> source, bool threaded, int slots)
    : state_(std::make_unique<State>()) {
  CHOIR_CHECK(slots >= (threaded ? 2 : 1), "{} slots: one is in use while another is filled",
              slots);
  State& s = *state_;
  s.source = std::move(source);
  s.threaded = threaded;
  s.slots = slots;
  s.allowed = slots - 1;
  if (threaded) s.thread = std::thread([&s] { s.run(); });
}

ReadAhead::~ReadAhead() {
  State& s = *state_;
  if (!s.thread.joinable()) return;
  std::unique_lock lock(s.mutex);
  s.stop = true;
  s.changed.notify_all();
  const bool orderly = std::uncaught_exceptions() <= s.unwinding;
  const std::chrono::duration<double> patience(orderly ? kPatience : 0);
  const bool ended = s.changed.wait_for(lock, patience, [&] { return s.ended; });
  if (!ended) s.source->abandon();
  lock.unlock();
  s.thread.join();
  // The memory is leaked, because an unfinished MPI call may still write to it.
  if (!ended) static_cast<void>(s.source.release());
}

int ReadAhead::next() {
  State& s = *state_;
  const double begin = now_seconds();
  const std::int64_t call = s.asked;
  if (!s.threaded) {
    s.source->fill(call, s.slot(call));
  } else {
    std::unique_lock lock(s.mutex);
    s.changed.wait(lock, [&] { return s.filled > call || s.failure; });
    if (s.filled <= call) std::rethrow_exception(s.failure);
    s.allowed = call + s.slots;
    s.changed.notify_all();
  }
  ++s.asked;
  s.waited += now_seconds() - begin;
  return s.slot(call);
}

std::int64_t ReadAhead::calls() const {
  return state_->asked;
}
double ReadAhead::wait_seconds() const {
  return state_->waited;
}

}  // namespace choir
