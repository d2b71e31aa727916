#include "src/comm/staged/staged_pipe.hpp"

#include <algorithm>
#include <thread>

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

StagedExchange::StagedExchange(Communicator& host, Device& device, StagedPipe& pipe)
    : host_(host), pipe_(pipe), piece_bytes_(pipe.slot_bytes() / kLanes) {
  std::byte* data = pipe.memory();
  for (Lane& lane : lanes_)
    for (Half& half : lane.halves) {
      half.data = data;
      half.copied = std::make_unique<Event>(device);
      data += piece_bytes_;
    }
}

void StagedExchange::run(std::span<const Message> messages) {
  assign_lanes(messages);
  pipe_.claim();
  for (bool busy = true; busy;) {
    busy = false;
    bool progress = false;
    for (Lane& lane : lanes_) {
      if (lane.peer < 0) continue;
      progress |= advance(lane, messages);
      busy |= lane.passed < lane.begun || more(lane, messages);
    }
    if (busy && !progress) std::this_thread::yield();
  }
  pipe_.release();
}

void StagedExchange::assign_lanes(std::span<const Message> messages) {
  for (Lane& lane : lanes_) {
    lane.peer = -1;
    lane.message = lane.offset = 0;
    lane.begun = lane.passed = 0;
    for (Half& half : lane.halves) half.state = State::idle;
  }
  for (const Message& m : messages) {
    const auto lane = std::find_if(lanes_.begin(), lanes_.end(), [&](const Lane& l) {
      return l.peer < 0 || (l.peer == m.peer && l.send == m.send);
    });
    CHOIR_CHECK(lane != lanes_.end(), "more than {} peers", Communicator::kMaxPeers);
    lane->peer = m.peer;
    lane->send = m.send;
  }
}

bool StagedExchange::more(Lane& lane, std::span<const Message> messages) {
  for (; lane.message < messages.size(); ++lane.message, lane.offset = 0) {
    const Message& m = messages[lane.message];
    if (m.peer == lane.peer && m.send == lane.send && lane.offset < m.bytes) return true;
  }
  return false;
}

bool StagedExchange::begin(Lane& lane, std::span<const Message> messages) {
  if (lane.begun - lane.passed == lane.halves.size() || !more(lane, messages)) return false;
  Half& half = lane.half(lane.begun);
  const bool stored = !lane.send && half.state == State::copying && half.copied->complete();
  if (half.state != State::idle && !stored) return false;
  const Message& m = messages[lane.message];
  half.target = static_cast<std::byte*>(m.data) + lane.offset;
  const std::size_t bytes = std::min(piece_bytes_, m.bytes - lane.offset);
  half.piece = {lane.send, half.data, bytes, m.peer, m.tag};
  lane.offset += bytes;
  ++lane.begun;
  if (!lane.send) {
    post(half);
    return true;
  }
  pipe_.down().copy_to_host(half.data, half.target, bytes);
  half.copied->record(pipe_.down());
  half.state = State::copying;
  return true;
}

void StagedExchange::post(Half& half) {
  half.request = &host_.start_exchange({&half.piece, 1});
  half.state = State::travelling;
}

bool StagedExchange::advance(Lane& lane, std::span<const Message> messages) {
  bool progress = begin(lane, messages);
  for (std::uint64_t k = lane.passed; k < lane.begun; ++k) {
    Half& half = lane.half(k);
    if (half.state == State::copying) {     // of a send
      if (!half.copied->complete()) break;  // a later chunk would overtake it
      post(half);
      progress = true;
    }
    if (k != lane.passed || !half.request->test()) continue;
    half.request->wait();
    ++lane.passed;
    progress = true;
    half.state = State::idle;
    if (lane.send) continue;
    pipe_.up().copy_from_host(half.target, half.data, half.piece.bytes);
    half.copied->record(pipe_.up());
    half.state = State::copying;
  }
  return progress;
}

}  // namespace choir
