#include "src/store/shared_loop.hpp"

#include <utility>

namespace choir {

void SharedLoop::begin(std::int64_t n, std::function<void(std::int64_t)> body) {
  body_ = std::move(body);
  count_ = n;
  next_ = 0;
  done_ = 0;
}

void SharedLoop::help() {
  for (std::int64_t i; (i = next_.fetch_add(1)) < count_;) {
    body_(i);
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) done_.notify_all();
  }
}

void SharedLoop::help_as_team() {
  if (ended()) return;
#pragma omp parallel
  help();
}

void SharedLoop::wait() const {
  for (std::int64_t seen; (seen = done_.load(std::memory_order_acquire)) != count_;)
    done_.wait(seen, std::memory_order_acquire);
}

}  // namespace choir
