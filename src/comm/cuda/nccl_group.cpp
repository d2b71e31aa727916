#include "src/comm/cuda/nccl_group.hpp"

#include <chrono>
#include <exception>
#include <thread>

#include "choir/comm/agreement.hpp"
#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"

namespace choir::nccl {

Group::Group(Communicator& control, std::string label, const NcclOptions& options, int most_blocks,
             std::shared_ptr<const Library> api)
    : api_(std::move(api)),
      label_(std::move(label)),
      timeout_(options.timeout_seconds),
      most_blocks_(most_blocks),
      unwinding_(std::uncaught_exceptions()) {
  try {
    start(control);
  } catch (...) {
    abort();
    throw;
  }
}

void Group::start(Communicator& control) {
  UniqueId id{};
  together(control, [&] {
    if (!api_->loaded()) throw CommError(label_ + ": " + api_->reason());
    if (control.rank() == 0) settle(api_->get_unique_id(&id), "ncclGetUniqueId");
  });
  control.broadcast(&id, sizeof id, 0);
  // An MPI that completes its broadcast in a later call would leave its peers waiting in NCCL.
  control.barrier();
  together(control, [&] {
    Config config;
    config.blocking = 0;
    if (most_blocks_ > 0) config.max_ctas = most_blocks_;
    settle(api_->comm_init(&comm_, control.size(), id, control.rank(), &config),
           "ncclCommInitRankConfig");
  });
}

Group::~Group() {
  if (broken_ || std::uncaught_exceptions() > unwinding_) {
    abort();
    return;
  }
  try {
    settle(api_->comm_finalize(comm_), "ncclCommFinalize");
    const std::lock_guard lock(mutex_);
    if (!aborted_) api_->comm_destroy(comm_);
    aborted_ = true;
  } catch (...) {  // the work is done; there is nobody to tell
    abort();
  }
}

void Group::abort() {
  broken_ = true;
  const std::lock_guard lock(mutex_);
  if (aborted_ || comm_ == nullptr) return;
  aborted_ = true;
  api_->comm_abort(comm_);
}

Result Group::state() {
  const std::lock_guard lock(mutex_);
  if (aborted_) fail("a call", "aborted, by the watchdog or after a failure");
  Result state = Result::success;
  const Result asked = api_->async_error(comm_, &state);
  return asked == Result::success ? state : asked;
}

void Group::settle(Result code, const char* call) {
  const double from = now_seconds();
  while (code == Result::in_progress) {
    if (now_seconds() - from > timeout_)
      fail(call, fmt::format("not finished after {:g} s", timeout_));
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    code = state();
  }
  if (code != Result::success) fail(call, api_->error_string(code));
}

void Group::require_healthy() {
  if (broken_)
    throw CommError(label_ + " is broken by an earlier error", "the first error has the cause");
  const Result code = state();
  if (code != Result::success && code != Result::in_progress)
    fail("an earlier call", api_->error_string(code));
}

void Group::fail(const char* call, const std::string& words) {
  broken_ = true;
  const char* last = aborted_ ? nullptr : api_->last_error(comm_);
  const std::string detail = last != nullptr && *last != '\0' ? fmt::format(" ({})", last) : "";
  throw CommError(fmt::format("{}: {}: {}{}", label_, call, words, detail),
                  "NCCL_DEBUG=INFO tells more; parallel.transport=staged goes without NCCL");
}

}  // namespace choir::nccl
