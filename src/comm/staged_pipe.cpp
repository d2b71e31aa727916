#include "src/comm/staged_pipe.hpp"

#include "choir/core/error.hpp"

namespace choir {

StagedPipe::StagedPipe(Communicator& host, Device& device, std::size_t slot_bytes)
    : device_(device), slot_bytes_(slot_bytes), down_(device, true), up_(device, true) {
  if (!pin_window(host, 2 * slot_bytes)) memory_ = HostBuffer(device, 2 * slot_bytes);
  auto* base = static_cast<std::byte*>(window_ ? window_->data() : memory_.data());
  for (std::size_t i = 0; i < slots_.size(); ++i)
    slots_[i] = {base + i * slot_bytes, std::make_unique<Event>(device),
                 std::make_unique<Event>(device)};
}

StagedPipe::~StagedPipe() {
  down_.stream().synchronize();
  up_.stream().synchronize();
  if (window_) device_.unpin(window_->data());
}

bool StagedPipe::pin_window(Communicator& host, std::size_t bytes) {
  window_ = host.allocate(bytes);
  std::int32_t pinned = 1;
  try {
    device_.pin(window_->data(), bytes);
  } catch (const Error&) {
    pinned = 0;
  }
  std::int32_t everywhere = pinned;
  host.all_reduce(&everywhere, 1, DType::i32, ReduceOp::min);
  if (everywhere != 0) return true;
  if (pinned != 0) device_.unpin(window_->data());
  window_.reset();
  return false;
}

void StagedPipe::begin(const Event& ready) {
  down_.stream().wait(ready);
  up_.stream().wait(ready);
}

}  // namespace choir
