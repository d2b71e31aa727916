#include "choir/parallel/comm_queue.hpp"

namespace choir {

void CommQueue::finish(std::uint64_t ticket) {
  while (oldest_ <= ticket && oldest_ < next_) {
    const Entry entry = entries_[oldest_++ % kMost];
    entry.request->wait();
    if (entry.then.run) entry.then.run(entry.then.self, entry.then.bucket);
  }
}

void CommQueue::progress() {
  for (std::uint64_t i = oldest_; i < next_; ++i) entries_[i % kMost].request->test();
}

}  // namespace choir
