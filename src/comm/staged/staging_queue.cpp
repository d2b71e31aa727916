#include "src/comm/staged/staging_queue.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "choir/core/error.hpp"
#include "src/comm/communicator_parts.hpp"
#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/core/quantities.hpp"

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

StagedJobs::StagedJobs(std::shared_ptr<Worker> worker, Device& device, std::string name,
                       bool threaded, CommTraffic& traffic)
    : shared_(std::make_shared<Shared>()),
      compute_(device),
      traffic_(traffic),
      threaded_(threaded) {
  shared_->worker = std::move(worker);
  shared_->device = &device;
  shared_->name = std::move(name);
  for (auto* events : {&shared_->ready, &shared_->done})
    for (auto& event : *events) event = std::make_unique<Event>(device);
  for (Job& job : ring_) job.owner = this;
  if (threaded) thread_ = std::thread([shared = shared_] { serve(shared); });
}

StagedJobs::~StagedJobs() {
  if (!threaded_) return;
  std::unique_lock lock(shared_->mutex);
  shared_->stop = true;
  shared_->changed.notify_all();
  // Without an error, all jobs were waited for. After an error a peer may never answer, and the
  // thread is left behind in MPI, because the process is about to abort.
  constexpr std::chrono::seconds kPatience{1};
  if (!shared_->changed.wait_for(lock, kPatience, [&] { return shared_->ended; })) {
    thread_.detach();
    return;
  }
  lock.unlock();
  thread_.join();
}

void StagedJobs::serve(const std::shared_ptr<Shared>& shared) {
  std::unique_lock lock(shared->mutex);
  try {
    shared->device->enter_thread();
  } catch (...) {
    shared->failure = std::current_exception();
  }
  while (true) {
    shared->changed.wait(lock, [&] { return shared->stop || shared->finished < shared->started; });
    if (shared->stop) break;
    run_next(*shared, lock);
  }
  shared->ended = true;
  shared->changed.notify_all();
}

void StagedJobs::run_next(Shared& shared, std::unique_lock<std::mutex>& lock) {
  const std::size_t slot = shared.finished % kJobs;
  if (!shared.failure) {
    std::exception_ptr failure;
    lock.unlock();
    try {
      shared.worker->perform(shared.works[slot], *shared.ready[slot], *shared.done[slot]);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    shared.failure = failure;
  }
  ++shared.finished;
  shared.changed.notify_all();
}

ExchangeRequest& StagedJobs::start(const Work& work) {
  const std::unique_lock lock(shared_->mutex);
  const std::size_t slot = shared_->started % kJobs;
  Job& job = ring_[slot];
  CHOIR_CHECK(job.free, "more than {} operations in flight on {}", kJobs, shared_->name);
  job.work = shared_->works[slot] = work;
  job.sequence = shared_->started;
  job.free = false;
  shared_->ready[slot]->record(compute_);
  ++shared_->started;
  shared_->changed.notify_all();
  return job;
}

void StagedJobs::wait(Job& job, bool last) {
  CHOIR_CHECK(!job.free, "wait() called twice on {}", shared_->name);
  const double from = now_seconds();
  std::unique_lock lock(shared_->mutex);
  if (threaded_)
    shared_->changed.wait(lock, [&] { return shared_->finished > job.sequence; });
  else
    while (shared_->finished <= job.sequence) run_next(*shared_, lock);
  job.free = last;
  if (shared_->failure) std::rethrow_exception(shared_->failure);
  compute_.wait(*shared_->done[job.sequence % kJobs]);
  traffic_.seconds += now_seconds() - from;
}

bool StagedJobs::test(const Job& job) {
  const std::unique_lock lock(shared_->mutex);
  return job.free || shared_->finished > job.sequence;
}

namespace {

using Kind = CommCall;

constexpr std::size_t kLeastBytes = 64;

}  // namespace

StagedWorker::StagedWorker(std::unique_ptr<Communicator> host, Device& device,
                           std::size_t slot_bytes)
    : host_(std::move(host)),
      ranks_(static_cast<std::size_t>(host_->size())),
      mine_(static_cast<std::size_t>(host_->rank())),
      pipe_(*host_, device, std::max(slot_bytes, 2 * ranks_ * kLeastBytes)),
      exchange_(*host_, device, pipe_) {}

void StagedWorker::perform(const Work& work, const Event& ready, Event& done) {
  pipe_.begin(ready);
  dispatch(work, ready);
  pipe_.end(done);
}

void StagedWorker::dispatch(const Work& w, const Event& ready) {
  switch (w.kind) {
    case Kind::all_reduce:
    case Kind::reduce:
      return reduce(w);
    case Kind::reduce_scatter:
      return reduce_scatter(w);
    case Kind::all_gather:
      return all_gather(w);
    case Kind::broadcast:
      return broadcast(w);
    case Kind::all_to_all:
      return all_to_all(w);
    case Kind::exchange:
      return exchange_.run(w.messages);
    case Kind::send:
      return send(w.source, w.count, w.peer, w.tag);
    case Kind::receive:
      return receive(w.data, w.count, w.peer, w.tag);
    case Kind::gather:
      return gather(w);
    case Kind::scatter:
      return scatter(w);
    case Kind::barrier:
      ready.synchronize();
      return host_->barrier();
  }
}

// Number of elements in one of `blocks` equal parts of a slot.
std::size_t StagedWorker::piece_limit(DType dtype, std::size_t blocks) const {
  const std::size_t bytes = pipe_.slot_bytes() / blocks;
  // A part holds whole chunks of the host's reductions if there is room for one.
  const std::size_t unit =
      bytes >= MpiOptions{}.reduce_chunk_bytes ? MpiOptions{}.reduce_chunk_bytes : kLeastBytes;
  return bytes / unit * unit / size_of(dtype);
}

void StagedWorker::reduce(const Work& w) {
  const std::size_t limit = piece_limit(w.dtype, 1), element = size_of(w.dtype);
  const bool keep = w.kind == Kind::all_reduce || host_->rank() == w.peer;
  pipe_.run(
      chunk_count(w.count, limit),
      [&](const Stream& down, std::byte* slot, std::size_t k) {
        const Chunk piece = chunk_at(k, w.count, limit);
        down.copy_to_host(slot, at(w.data, piece.offset * element), piece.count * element);
      },
      [&](std::byte* slot, std::size_t k) {
        const std::size_t count = chunk_at(k, w.count, limit).count;
        if (w.kind == Kind::all_reduce)
          host_->all_reduce(slot, count, w.dtype, w.op, w.order);
        else
          host_->reduce(slot, count, w.dtype, w.op, w.peer);
      },
      [&](const Stream& up, std::byte* slot, std::size_t k) {
        const Chunk piece = chunk_at(k, w.count, limit);
        if (keep)
          up.copy_from_host(at(w.data, piece.offset * element), slot, piece.count * element);
      });
}

void StagedWorker::reduce_scatter(const Work& w) {
  const std::size_t limit = piece_limit(w.dtype, ranks_), element = size_of(w.dtype);
  pipe_.run(
      chunk_count(w.count, limit),
      [&](const Stream& down, std::byte* slot, std::size_t k) {
        const Chunk piece = chunk_at(k, w.count, limit);
        for (std::size_t p = 0; p < ranks_; ++p)
          down.copy_to_host(slot + p * piece.count * element,
                            at(w.data, (p * w.count + piece.offset) * element),
                            piece.count * element);
      },
      [&](std::byte* slot, std::size_t k) {
        host_->reduce_scatter(slot, chunk_at(k, w.count, limit).count, w.dtype, w.op, w.order);
      },
      [&](const Stream& up, std::byte* slot, std::size_t k) {
        const Chunk piece = chunk_at(k, w.count, limit);
        up.copy_from_host(at(w.data, (mine_ * w.count + piece.offset) * element),
                          slot + mine_ * piece.count * element, piece.count * element);
      });
}

void StagedWorker::all_gather(const Work& w) {
  const std::size_t bytes = w.count * size_of(w.dtype), limit = piece_limit(DType::u8, ranks_);
  pipe_.run(
      chunk_count(bytes, limit),
      [&](const Stream& down, std::byte* slot, std::size_t k) {
        const Chunk piece = chunk_at(k, bytes, limit);
        down.copy_to_host(slot + mine_ * piece.count, at(w.data, mine_ * bytes + piece.offset),
                          piece.count);
      },
      [&](std::byte* slot, std::size_t k) {
        host_->all_gather(slot, chunk_at(k, bytes, limit).count, DType::u8);
      },
      [&](const Stream& up, std::byte* slot, std::size_t k) {
        const Chunk piece = chunk_at(k, bytes, limit);
        for (std::size_t p = 0; p < ranks_; ++p)
          if (p != mine_)
            up.copy_from_host(at(w.data, p * bytes + piece.offset), slot + p * piece.count,
                              piece.count);
      });
}

void StagedWorker::broadcast(const Work& w) {
  const bool root = host_->rank() == w.peer;
  const std::size_t limit = piece_limit(DType::u8, 1);
  pipe_.run(
      chunk_count(w.count, limit),
      [&](const Stream& down, std::byte* slot, std::size_t k) {
        const Chunk piece = chunk_at(k, w.count, limit);
        if (root) down.copy_to_host(slot, at(w.data, piece.offset), piece.count);
      },
      [&](std::byte* slot, std::size_t k) {
        host_->broadcast(slot, chunk_at(k, w.count, limit).count, w.peer);
      },
      [&](const Stream& up, std::byte* slot, std::size_t k) {
        const Chunk piece = chunk_at(k, w.count, limit);
        if (!root) up.copy_from_host(at(w.data, piece.offset), slot, piece.count);
      });
}

void StagedWorker::all_to_all(const Work& w) {
  const std::size_t limit = piece_limit(DType::u8, 2 * ranks_);
  pipe_.run(
      chunk_count(w.count, limit),
      [&](const Stream& down, std::byte* slot, std::size_t k) {
        const Chunk piece = chunk_at(k, w.count, limit);
        for (std::size_t p = 0; p < ranks_; ++p)
          down.copy_to_host(slot + p * piece.count, at(w.source, p * w.count + piece.offset),
                            piece.count);
      },
      [&](std::byte* slot, std::size_t k) {
        const std::size_t bytes = chunk_at(k, w.count, limit).count;
        host_->all_to_all(slot, slot + ranks_ * bytes, bytes);
      },
      [&](const Stream& up, std::byte* slot, std::size_t k) {
        const Chunk piece = chunk_at(k, w.count, limit);
        for (std::size_t p = 0; p < ranks_; ++p)
          up.copy_from_host(at(w.data, p * w.count + piece.offset),
                            slot + (ranks_ + p) * piece.count, piece.count);
      });
}

void StagedWorker::send(const void* data, std::size_t bytes, int to, int tag) {
  const std::size_t limit = piece_limit(DType::u8, 1);
  pipe_.run(
      chunk_count(bytes, limit),
      [&](const Stream& down, std::byte* slot, std::size_t k) {
        const Chunk piece = chunk_at(k, bytes, limit);
        down.copy_to_host(slot, at(data, piece.offset), piece.count);
      },
      [&](std::byte* slot, std::size_t k) {
        host_->send(slot, chunk_at(k, bytes, limit).count, to, tag);
      },
      [](const Stream&, std::byte*, std::size_t) {});
}

void StagedWorker::receive(void* data, std::size_t bytes, int from, int tag) {
  const std::size_t limit = piece_limit(DType::u8, 1);
  pipe_.run(
      chunk_count(bytes, limit), [](const Stream&, std::byte*, std::size_t) {},
      [&](std::byte* slot, std::size_t k) {
        host_->receive(slot, chunk_at(k, bytes, limit).count, from, tag);
      },
      [&](const Stream& up, std::byte* slot, std::size_t k) {
        const Chunk piece = chunk_at(k, bytes, limit);
        up.copy_from_host(at(data, piece.offset), slot, piece.count);
      });
}

template <class F>
void StagedWorker::for_blocks(const Work& w, const F& f) const {
  for (std::size_t p = 0; p < ranks_; ++p)
    if (p != mine_)
      f(static_cast<int>(p), static_cast<std::size_t>(w.offsets[p]),
        static_cast<std::size_t>(w.counts[p]));
}

// Blocks of any size are sent to or from one rank, one peer after the other, because only the root
// limits the speed.
void StagedWorker::gather(const Work& w) {
  if (host_->rank() != w.peer) return send(w.source, w.count, w.peer, kBlockTag);
  for_blocks(w, [&](int peer, std::size_t offset, std::size_t bytes) {
    receive(at(w.data, offset), bytes, peer, kBlockTag);
  });
}

void StagedWorker::scatter(const Work& w) {
  if (host_->rank() != w.peer) return receive(w.data, w.count, w.peer, kBlockTag);
  for_blocks(w, [&](int peer, std::size_t offset, std::size_t bytes) {
    send(at(w.source, offset), bytes, peer, kBlockTag);
  });
}

}  // namespace choir
