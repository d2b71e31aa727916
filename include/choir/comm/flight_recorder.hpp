#pragma once
// The flight recorder of this process: Communicator writes every call of every kind into it,
// readers where their ranks wait for each other, and nothing else does. Lock free, from any thread;
// costs some 60 ns a call and allocates nothing.
#include <atomic>
#include <cstdint>
#include <functional>
#include <string_view>

#include "choir/comm/flight_log.hpp"

namespace choir {

class FlightRecorder {
 public:
  static FlightRecorder& of_process();

  int join(std::string_view name, std::uint64_t id, int rank, int size);
  void leave(int place);
  std::uint64_t begin(const SharedName& name, int place, const CallRecord& call);
  void change(std::uint64_t record, CallState state, double end = 0);
  void read(const std::function<void(const FlightLog&)>& reader) const;

  /// From now on records go to `log` (zeroed memory, or nullptr: memory of this process); what
  /// there is is taken along. When it returns nobody writes to the old place any more. For places
  /// that come and go while no other thread begins or ends a communicator.
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

/// Seconds that calling threads spent inside blocking calls and waits of communicators; of the
/// calling thread, only differences mean anything.
double seconds_in_communication();
/// For Communicator.
void add_seconds_in_communication(double seconds);

}  // namespace choir
