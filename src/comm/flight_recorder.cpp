#include "choir/comm/flight_recorder.hpp"

#include <thread>

namespace choir {
namespace {

thread_local double seconds_inside = 0;

/// Announces a use before it looks where the log is, and takes it back behind it: move_to() waits
/// for the uses that may have seen the old place. Sequentially consistent on both sides.
class Use {
 public:
  explicit Use(std::atomic<int>& users) : users_(users) { users_.fetch_add(1); }
  ~Use() { users_.fetch_sub(1); }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  std::atomic<int>& users_;
};

}  // namespace

FlightRecorder& FlightRecorder::of_process() {
  static auto* recorder = new FlightRecorder();  // communicators may end behind static objects
  return *recorder;
}

template <class F>
auto FlightRecorder::writing(const F& f) {
  const Use use(users_);
  return f(*log_.load());
}

int FlightRecorder::join(std::string_view name, std::uint64_t id, int rank, int size) {
  return writing([&](FlightLog& log) { return log.join(name, id, rank, size); });
}

void FlightRecorder::leave(int place) {
  writing([&](FlightLog& log) { log.leave(place); });
}

std::uint64_t FlightRecorder::begin(const SharedName& name, int place, const CallRecord& call) {
  return writing([&](FlightLog& log) { return log.begin(name, place, call); });
}

void FlightRecorder::change(std::uint64_t record, CallState state, double end) {
  writing([&](FlightLog& log) { log.change(record, state, end); });
}

void FlightRecorder::read(const std::function<void(const FlightLog&)>& reader) const {
  const Use use(users_);
  reader(*log_.load());
}

void FlightRecorder::move_to(FlightLog* log) {
  FlightLog* const target = log != nullptr ? log : &own_;
  FlightLog* const old = log_.load();
  if (target == old) return;
  target->take_over(*old);
  log_.store(target);
  while (users_.load() != 0) std::this_thread::yield();
}

double seconds_in_communication() {
  return seconds_inside;
}

void add_seconds_in_communication(double seconds) {
  seconds_inside += seconds;
}

}  // namespace choir
