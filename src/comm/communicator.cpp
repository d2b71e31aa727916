#include "choir/comm/communicator.hpp"

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <utility>

#include "choir/comm/flight_log.hpp"
#include "choir/core/error.hpp"
#include "src/comm/communicator_parts.hpp"
#include "src/core/quantities.hpp"

namespace choir {
namespace {

thread_local int depth = 0;  // more than 1 while a communicator calls another one

/// Measures the time inside communication, counted only by the outermost call.
class InsideTimer {
 public:
  explicit InsideTimer(double start) : start_(start) { ++depth; }
  double end() {
    const double now = now_seconds();
    if (--depth == 0) add_seconds_in_communication(now - start_);
    return now;
  }

 private:
  double start_;
};

/// A wait until the end of the scope, which then sets the state of `record`.
class Waiting {
 public:
  Waiting(std::uint64_t record, CallState after)
      : record_(record), after_(after), timer_(now_seconds()) {
    if (record_ != 0) FlightRecorder::of_process().change(record_, CallState::waiting);
  }
  ~Waiting() {
    const double now = timer_.end();
    if (record_ == 0) return;
    const bool failed = std::uncaught_exceptions() > unwinding_;
    FlightRecorder::of_process().change(record_, failed ? CallState::failed : after_,
                                        failed || after_ != CallState::started ? now : 0);
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  std::uint64_t record_;
  CallState after_;
  InsideTimer timer_;
  int unwinding_ = std::uncaught_exceptions();
};

}  // namespace

void CommRequest::wait() {
  const Waiting waiting(std::exchange(record_, 0), queues_ ? CallState::queued : CallState::done);
  do_wait();
}

void ExchangeRequest::wait_received() {
  const Waiting waiting(record_, CallState::started);
  do_wait_received();
}

Communicator::Communicator(std::string name, int rank, int size)
    : name_(std::move(name)), rank_(rank), size_(size) {}

Communicator::~Communicator() {
  FlightRecorder::of_process().leave(place_);
}

void Communicator::identify(std::uint64_t id) {
  if (size_ == 1) return;
  id_ = id;
  const std::string_view kind = transport();
  const bool plain = kind == "mpi" || kind == "node" || kind == "two-level";
  const std::string shown = plain ? name_ : fmt::format("{} ({})", name_, kind);
  shared_name_.set(shown);
  place_ = FlightRecorder::of_process().join(shown, id, rank_, size_);
}

std::uint64_t Communicator::derived_id(const Communicator& other, const std::string& name) {
  return other.id() ^ (std::hash<std::string>{}(name) | 1) << 20;
}

void Communicator::silence() {
  FlightRecorder::of_process().leave(place_);
  place_ = -1;
  id_ = 0;
  check_.reset();
}

void Communicator::check_calls(std::unique_ptr<CallCheck> check) {
  check_ = std::move(check);
}

// Counts the call, has the ranks agree on it if calls are checked, and records its beginning.
std::uint64_t Communicator::open(CallRecord call, std::uint32_t detail, std::uint64_t count) {
  if (id_ == 0) return 0;
  call.sequence = is_collective(call.call) ? ++collectives_ : ++messages_;
  if (check_ && is_collective(call.call)) check_->agree({call.call, detail, call.sequence, count});
  call.group = id_;
  call.start = now_seconds();
  return FlightRecorder::of_process().begin(shared_name_, place_, call);
}

template <class F>
void Communicator::blocking(CallRecord call, std::uint32_t detail, std::uint64_t count,
                            const F& f) {
  if (id_ == 0) return f();
  call.state = CallState::waiting;
  const Waiting waiting(open(call, detail, count), queues() ? CallState::queued : CallState::done);
  f();
}

template <class F>
auto& Communicator::started(const CallRecord& call, std::uint32_t detail, std::uint64_t count,
                            const F& f) {
  const std::uint64_t record = open(call, detail, count);
  auto& request = f();
  request.record_ = record;
  request.queues_ = queues();
  return request;
}

void Communicator::all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op,
                              Summation order) {
  blocking({.call = CommCall::all_reduce, .bytes = count * size_of(dtype)}, detail_of(dtype, op),
           count, [&] { do_all_reduce(data, count, dtype, op, order); });
}

void Communicator::reduce_scatter(void* data, std::size_t count, DType dtype, ReduceOp op,
                                  Summation order) {
  blocking({.call = CommCall::reduce_scatter, .bytes = of_all(count * size_of(dtype))},
           detail_of(dtype, op), count, [&] { do_reduce_scatter(data, count, dtype, op, order); });
}

void Communicator::all_gather(void* data, std::size_t count, DType dtype) {
  blocking({.call = CommCall::all_gather, .bytes = of_all(count * size_of(dtype))},
           detail_of(dtype), count, [&] { do_all_gather(data, count, dtype); });
}

void Communicator::broadcast(void* data, std::size_t bytes, int root) {
  blocking({.call = CommCall::broadcast, .bytes = bytes}, static_cast<std::uint32_t>(root), bytes,
           [&] { do_broadcast(data, bytes, root); });
}

void Communicator::reduce(void* data, std::size_t count, DType dtype, ReduceOp op, int root) {
  const std::size_t bytes = count * size_of(dtype);
  blocking({.call = CommCall::reduce, .bytes = bytes}, static_cast<std::uint32_t>(root), bytes,
           [&] { do_reduce(data, count, dtype, op, root); });
}

// The detail of a scatter or gather omits the bytes, which differ between ranks.
void Communicator::scatter(const void* send, const std::int64_t* counts,
                           const std::int64_t* offsets, void* receive, std::size_t bytes,
                           int root) {
  blocking({.call = CommCall::scatter, .bytes = bytes}, static_cast<std::uint32_t>(root), 0,
           [&] { do_scatter(send, counts, offsets, receive, bytes, root); });
}

void Communicator::gather(const void* send, std::size_t bytes, void* receive,
                          const std::int64_t* counts, const std::int64_t* offsets, int root) {
  blocking({.call = CommCall::gather, .bytes = bytes}, static_cast<std::uint32_t>(root), 0,
           [&] { do_gather(send, bytes, receive, counts, offsets, root); });
}

void Communicator::all_to_all(const void* send, void* receive, std::size_t bytes) {
  blocking({.call = CommCall::all_to_all, .bytes = of_all(bytes)}, 0, bytes,
           [&] { do_all_to_all(send, receive, bytes); });
}

void Communicator::send(const void* data, std::size_t bytes, int to, int tag) {
  blocking({.call = CommCall::send, .peer = to, .bytes = bytes}, 0, bytes,
           [&] { do_send(data, bytes, to, tag); });
}

void Communicator::receive(void* data, std::size_t bytes, int from, int tag) {
  blocking({.call = CommCall::receive, .peer = from, .bytes = bytes}, 0, bytes,
           [&] { do_receive(data, bytes, from, tag); });
}

void Communicator::barrier() {
  blocking({.call = CommCall::barrier}, 0, 0, [&] { do_barrier(); });
}

CommRequest& Communicator::start_all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op,
                                            Summation order) {
  return started(
      {.call = CommCall::all_reduce, .bytes = count * size_of(dtype)}, detail_of(dtype, op), count,
      [&]() -> CommRequest& { return do_start_all_reduce(data, count, dtype, op, order); });
}

CommRequest& Communicator::start_reduce_scatter(void* data, std::size_t count, DType dtype,
                                                ReduceOp op, Summation order) {
  return started({.call = CommCall::reduce_scatter, .bytes = of_all(count * size_of(dtype))},
                 detail_of(dtype, op), count, [&]() -> CommRequest& {
                   return do_start_reduce_scatter(data, count, dtype, op, order);
                 });
}

CommRequest& Communicator::start_all_gather(void* data, std::size_t count, DType dtype) {
  return started({.call = CommCall::all_gather, .bytes = of_all(count * size_of(dtype))},
                 detail_of(dtype), count,
                 [&]() -> CommRequest& { return do_start_all_gather(data, count, dtype); });
}

// The recorded peer is that of the first received message or, without one, of the first sent one.
ExchangeRequest& Communicator::start_exchange(std::span<const Message> messages) {
  CallRecord call{.call = CommCall::exchange};
  const auto received =
      std::find_if(messages.begin(), messages.end(), [](const Message& m) { return !m.send; });
  if (!messages.empty())
    call.peer = received != messages.end() ? received->peer : messages.front().peer;
  for (const Message& m : messages) call.bytes += m.bytes;
  return started(call, 0, 0, [&]() -> ExchangeRequest& { return do_start_exchange(messages); });
}

std::size_t Communicator::check_exchange(std::span<const Message> messages, int tags) const {
  std::array<int, kMaxPeers> peers{};
  std::size_t known = 0, bytes = 0;
  for (const Message& m : messages) {
    CHOIR_CHECK(m.peer >= 0 && m.peer < size() && m.peer != rank(),
                "rank {} of {} exchanges with rank {}", rank(), name(), m.peer);
    CHOIR_CHECK(m.tag >= 0 && m.tag < tags, "tag {} on {}", m.tag, name());
    bytes += m.bytes;
    const auto end = peers.begin() + static_cast<std::ptrdiff_t>(known);
    if (std::find(peers.begin(), end, m.peer) != end) continue;
    CHOIR_CHECK(known < peers.size(), "exchange on {} with more than {} others", name(), kMaxPeers);
    peers[known++] = m.peer;
  }
  return bytes;
}

}  // namespace choir
