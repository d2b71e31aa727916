#include "choir/checkpoint/background_saver.hpp"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "choir/core/error.hpp"

namespace choir {
namespace {

// While an exception unwinds: a save that moves at all ends in this time, or is given up.
constexpr auto kLastWait = std::chrono::seconds(60);

}  // namespace

/// What the thread works on. It keeps this alive itself, should it outlive its owner.
struct BackgroundSaver::Shared {
  Shared(const std::string& directory, Communicator& world, Device& where, std::size_t bytes,
         StoreOptions options)
      : comm(world.duplicate(world.name() + " (checkpoints)")),
        snapshot(where, bytes),
        device(&where),
        store(directory, *comm, std::move(options)) {}

  void work();

  std::unique_ptr<Communicator> comm;
  Snapshot snapshot;
  Device* device;
  CheckpointStore store;
  CheckpointMeta meta;
  std::vector<StoredTensor> in_place;
  bool from_snapshot = true;

  std::mutex mutex;
  std::condition_variable changed;
  bool ready = false, busy = false, quit = false;  // guarded; the rest is whose turn it is
  SaveResult result;
  std::exception_ptr error;
  std::thread thread;
};

void BackgroundSaver::Shared::work() {
  device->enter_thread();
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [&] { return ready || quit; });
    if (!ready) return;
    ready = false;
    lock.unlock();
    SaveResult saved;
    std::exception_ptr failure;
    try {
      if (from_snapshot) snapshot.wait();
      saved = store.save(meta, from_snapshot ? snapshot.tensors() : in_place);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    result = std::move(saved);
    error = failure;
    busy = false;
    changed.notify_all();
  }
}

BackgroundSaver::BackgroundSaver(std::string directory, Communicator& world, Device& device,
                                 std::size_t snapshot_bytes, StoreOptions options) {
  options.patient = true;
  shared_ = std::make_shared<Shared>(directory, world, device, snapshot_bytes, std::move(options));
  shared_->thread = std::thread([shared = shared_.get()] { shared->work(); });
}

bool BackgroundSaver::settle() {
  std::unique_lock lock(shared_->mutex);
  const auto idle = [this] { return !shared_->busy; };
  if (std::uncaught_exceptions() == 0)
    shared_->changed.wait(lock, idle);
  else
    given_up_ = given_up_ || !shared_->changed.wait_for(lock, kLastWait, idle);
  return !given_up_;
}

BackgroundSaver::~BackgroundSaver() {
  if (!settle()) {
    // What the thread uses stays, for as long as the process does.
    new std::shared_ptr<Shared>(shared_);
    shared_->thread.detach();
    return;
  }
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->quit = true;
  }
  shared_->changed.notify_all();
  shared_->thread.join();
}

void BackgroundSaver::start(const CheckpointMeta& meta, const std::vector<StoredTensor>& tensors) {
  CHOIR_CHECK(!pending_, "a save is in flight, or its result was not taken");
  shared_->snapshot.take(tensors);
  begin(meta, {}, true);
}

void BackgroundSaver::start_in_place(const CheckpointMeta& meta,
                                     const std::vector<StoredTensor>& tensors) {
  CHOIR_CHECK(!pending_, "a save is in flight, or its result was not taken");
  begin(meta, tensors, false);
}

void BackgroundSaver::begin(const CheckpointMeta& meta, std::vector<StoredTensor> in_place,
                            bool from_snapshot) {
  shared_->meta = meta;
  shared_->in_place = std::move(in_place);
  shared_->from_snapshot = from_snapshot;
  const std::lock_guard lock(shared_->mutex);
  shared_->ready = shared_->busy = pending_ = true;
  shared_->changed.notify_all();
}

bool BackgroundSaver::pending() const {
  return pending_;
}

bool BackgroundSaver::in_flight() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->busy;
}

std::optional<SaveResult> BackgroundSaver::poll() {
  {
    const std::lock_guard lock(shared_->mutex);
    if (!pending_ || shared_->busy) return std::nullopt;
  }
  return wait();
}

SaveResult BackgroundSaver::wait() {
  CHOIR_CHECK(pending_, "no save was started");
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait(lock, [this] { return !shared_->busy; });
  pending_ = false;
  if (shared_->error) std::rethrow_exception(std::exchange(shared_->error, nullptr));
  return std::move(shared_->result);
}

const Event* BackgroundSaver::copied() const {
  return shared_->from_snapshot ? shared_->snapshot.copied() : nullptr;
}

std::size_t BackgroundSaver::snapshot_bytes() const {
  return shared_->snapshot.bytes();
}

}  // namespace choir
