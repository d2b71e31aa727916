#include "src/optim/state_stream.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "choir/core/error.hpp"

namespace choir {

FileReaderWriter::FileReaderWriter(const OffloadMemory& file)
    : file_(&file), thread_([this] { run(); }) {}

FileReaderWriter::~FileReaderWriter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::uint64_t FileReaderWriter::post(const Job& job) {
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    CHOIR_CHECK(failure_ || posted_ - done_ < kMost, "{} jobs are not done", posted_ - done_);
    number = ++posted_;
    jobs_[number % kMost] = job;
  }
  changed_.notify_all();
  return number;
}

void FileReaderWriter::wait(std::uint64_t job) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= job || failure_; });
  if (failure_) std::rethrow_exception(failure_);
}

void FileReaderWriter::run() {
  std::unique_lock lock(mutex_);
  while (!failure_) {
    changed_.wait(lock, [&] { return done_ < posted_ || stop_; });
    if (done_ == posted_) return;
    const Job job = jobs_[(done_ + 1) % kMost];
    lock.unlock();
    std::exception_ptr thrown;
    try {
      work(job);
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    failure_ = thrown;
    if (!failure_) ++done_;
    changed_.notify_all();
  }
}

void FileReaderWriter::work(const Job& job) const {
  for (int i = 0; i < job.pieces; ++i) {
    const Piece& piece = job.piece[static_cast<std::size_t>(i)];
    job.write ? file_->write(piece.memory, piece.offset, piece.bytes)
              : file_->read(piece.memory, piece.offset, piece.bytes);
  }
}

using Field = OffloadedState::Field;

StateStream::StateStream(const OffloadedState& state, Device& device, std::vector<Range> chunks)
    : state_(&state), stream_(device), chunks_(std::move(chunks)) {
  constexpr std::size_t kAlignment = 256;
  std::int64_t longest = 0;
  for (const Range& chunk : chunks_) longest = std::max(longest, chunk.count);
  CHOIR_CHECK(longest <= state.chunk(), "a chunk of {} elements", longest);
  for_fields([&](Field field) {
    offset_[static_cast<std::size_t>(field)] = window_bytes_;
    const std::size_t bytes = static_cast<std::size_t>(longest) * size_of(state.of(field).dtype);
    window_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  });
  windows_ = Buffer(device, kWindows * window_bytes_);
}

TensorView StateStream::view(void* base, int chunk, Field field) const {
  const std::size_t window = static_cast<std::size_t>(chunk % kWindows) * window_bytes_;
  return {static_cast<std::byte*>(base) + window + offset_[static_cast<std::size_t>(field)],
          state_->of(field).dtype,
          {range(chunk).count}};
}

void StateStream::begin(const Stream& stream, const Range& chunks) {
  stream_ = stream;
  pass_ = chunks;
  next_ = 0;
  if (count() > 0) start();
}

StateStream::Window StateStream::acquire() {
  CHOIR_CHECK(next_ < count(), "there are {} chunks", count());
  await(next_);
  Window window;
  for_fields([&](Field field) {
    window[static_cast<std::size_t>(field)] = view(windows_.data(), next_, field);
  });
  return window;
}

void StateStream::release() {
  updated(next_++);
}

void StateStream::end() {
  CHOIR_CHECK(next_ == count(), "{} of {} chunks were updated", next_, count());
  if (count() > 0) complete();
}

void StateStream::add_to(MemoryPlan& plan) const {
  plan.add("offload windows", windows_.bytes());
  if (host_windows_.bytes() > 0)
    plan.add("offload windows", host_windows_.bytes(), false, MemoryPlace::host);
}

namespace {

/// State in host memory: chunks are copied in on one stream and out on another.
class HostStateStream final : public StateStream {
 public:
  HostStateStream(const OffloadedState& state, Device& device, std::vector<Range> chunks)
      : StateStream(state, device, std::move(chunks)), in_(device), out_(device), began_(device) {
    for (auto* events : {&fetched_, &updated_, &stored_})
      for (auto& event : *events) event = std::make_unique<Event>(device);
  }

 private:
  using Events = std::array<std::unique_ptr<Event>, kWindows>;

  void start() override {
    began_.record(stream());
    in_.stream().wait(began_);
    for (int chunk = 0; chunk < std::min(kWindows - 1, count()); ++chunk) fetch(chunk);
  }
  void fetch(int chunk) {
    if (chunk >= kWindows) in_.stream().wait(*at(stored_, chunk));
    for_fields([&](Field field) {
      const TensorView to = view(device_windows(), chunk, field);
      in_.stream().copy_from_host(to.data, outside(chunk, field), to.bytes());
    });
    at(fetched_, chunk)->record(in_.stream());
  }
  void await(int chunk) override { stream().wait(*at(fetched_, chunk)); }
  void updated(int chunk) override {
    at(updated_, chunk)->record(stream());
    out_.stream().wait(*at(updated_, chunk));
    for_state([&](Field field) {
      const TensorView from = view(device_windows(), chunk, field);
      out_.stream().copy_to_host(outside(chunk, field), from.data, from.bytes());
    });
    at(stored_, chunk)->record(out_.stream());
    if (chunk + kWindows - 1 < count()) fetch(chunk + kWindows - 1);
  }
  void complete() override { stream().wait(*at(stored_, count() - 1)); }

  static Event* at(Events& events, int chunk) {
    return events[static_cast<std::size_t>(chunk % kWindows)].get();
  }

  SideStream in_, out_;
  Event began_;
  Events fetched_, updated_, stored_;
};

/// State in a file. If the host cannot see device memory, chunks pass through separate host
/// windows, and the host works one chunk ahead of the device.
class FileStateStream final : public StateStream {
 public:
  FileStateStream(const OffloadedState& state, Device& device, std::vector<Range> chunks)
      : StateStream(state, device, std::move(chunks)), staged_(!device.host_visible()) {
    if (staged_) host_windows_ = OffloadMemory::on_host(device, kWindows * window_bytes());
    for (auto& event : copied_) event = std::make_unique<Event>(device);
    if (device.kind() != DeviceKind::null) thread_.emplace(state.memory());
  }

 private:
  void start() override {
    for (int chunk = 0; chunk < std::min(kWindows - 1, count()); ++chunk) fetch(chunk);
  }
  // The thread works in order, so the fetch follows all jobs that use this window.
  void fetch(int chunk) { fetched_[slot(chunk)] = post(chunk, false); }
  void await(int chunk) override {
    wait(fetched_[slot(chunk)]);
    if (!staged_) return;
    for_fields([&](Field field) {
      const TensorView to = view(device_windows(), chunk, field);
      const void* const from = field == OffloadedState::gradient
                                   ? outside(chunk, field)
                                   : view(host_windows_.data(), chunk, field).data;
      stream().copy_from_host(to.data, from, to.bytes());
    });
  }
  void updated(int chunk) override {
    if (staged_) {
      for_state([&](Field field) {
        const TensorView from = view(device_windows(), chunk, field);
        stream().copy_to_host(view(host_windows_.data(), chunk, field).data, from.data,
                              from.bytes());
      });
      copied_[slot(chunk)]->record(stream());
      if (chunk > 0) store(chunk - 1);
    } else {
      store(chunk);
    }
    if (chunk + kWindows - 1 < count()) fetch(chunk + kWindows - 1);
  }
  void store(int chunk) {
    if (staged_) copied_[slot(chunk)]->synchronize();
    last_ = post(chunk, true);
  }
  void complete() override {
    if (staged_) store(count() - 1);
    wait(last_);
  }

  std::uint64_t post(int chunk, bool write) {
    if (!thread_) return 0;
    FileReaderWriter::Job job{.write = write};
    for_state([&](Field field) {
      const TensorView here = view(staged_ ? host_windows_.data() : device_windows(), chunk, field);
      job.piece[static_cast<std::size_t>(job.pieces++)] = {
          .memory = static_cast<std::byte*>(here.data),
          .offset = state().offset(field, range(chunk).first),
          .bytes = here.bytes()};
    });
    return thread_->post(job);
  }
  void wait(std::uint64_t job) {
    if (thread_) thread_->wait(job);
  }
  static std::size_t slot(int chunk) { return static_cast<std::size_t>(chunk % kWindows); }

  bool staged_;
  std::array<std::unique_ptr<Event>, kWindows> copied_;
  std::array<std::uint64_t, kWindows> fetched_{};
  std::uint64_t last_ = 0;
  std::optional<FileReaderWriter> thread_;
};

}  // namespace

std::unique_ptr<StateStream> StateStream::make(const OffloadedState& state, Device& device,
                                               std::vector<Range> chunks) {
  if (state.place() == MemoryPlace::file)
    return std::make_unique<FileStateStream>(state, device, std::move(chunks));
  return std::make_unique<HostStateStream>(state, device, std::move(chunks));
}

}  // namespace choir
