#pragma once
// Books one blocking call: its bytes at once, its time when it leaves.
#include "choir/comm/communicator.hpp"
#include "choir/core/clock.hpp"

namespace choir {

class TrafficTimer {
 public:
  TrafficTimer(CommTraffic& traffic, std::size_t bytes) : traffic_(traffic), from_(now_seconds()) {
    ++traffic_.calls;
    traffic_.bytes += static_cast<double>(bytes);
  }
  ~TrafficTimer() { traffic_.seconds += now_seconds() - from_; }
  TrafficTimer(const TrafficTimer&) = delete;
  TrafficTimer& operator=(const TrafficTimer&) = delete;

 private:
  CommTraffic& traffic_;
  double from_;
};

}  // namespace choir
