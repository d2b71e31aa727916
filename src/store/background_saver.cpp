#include "src/store/background_saver.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "choir/core/error.hpp"
#include "src/core/hash.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#include "src/store/collectives.hpp"
#include "src/store/snapshot.hpp"

namespace choir {
namespace {

// Limit of the wait during stack unwinding: a save that makes progress ends within it; others are
// given up.
constexpr auto kLastWait = std::chrono::seconds(60);
constexpr std::size_t kDigestPiece = Snapshot::kRun;  // bytes of checked memory at a time

using Bytes = std::span<const std::byte>;

/// Combines the CRCs of the two halves into 64 significant bits.
std::uint64_t digest_of(Bytes bytes) {
  const std::size_t half = bytes.size() / 2;
  return (std::uint64_t{crc32c(bytes.data() + half, bytes.size() - half)} << 32) |
         crc32c(bytes.data(), half);
}

}  // namespace

/// The state of the thread. keep_forever() keeps it alive if the thread outlives its owner.
struct BackgroundSaver::Shared {
  Shared(const std::string& directory, Communicator& world, Device& where, std::size_t bytes,
         StoreOptions options)
      : comm(world.duplicate(world.name() + " (checkpoints)")),
        snapshot(where, bytes),
        device(&where),
        hook(options.fault),
        store(directory, *comm, std::move(options)) {}

  void work();
  void begin_to_read(const std::vector<StoredTensor>& tensors, SaveCheck what);
  void read_one(std::int64_t i);
  std::string read_and_judge();

  std::unique_ptr<Communicator> comm;
  Snapshot snapshot;
  Device* device;
  FaultHook hook;
  CheckpointStore store;
  CheckpointMeta meta;
  std::vector<StoredTensor> in_place;
  bool from_snapshot = true;

  // The memory given to start() is read by the thread that takes the next iteration: first runs of
  // the snapshot, then pieces of the checked memory.
  SharedLoop reading;
  SaveCheck check;
  std::vector<Bytes> pieces;           // pieces of one span are adjacent
  std::vector<std::uint64_t> digests;  // one per piece
  double copying = 0;                  // seconds of the slowest rank

  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by the mutex; the other members belong to one thread at a time.
  bool ready = false, busy = false, quit = false, judged = true;
  std::string refusal;
  SaveResult result;
  std::exception_ptr error;
  std::thread thread;
};

void BackgroundSaver::Shared::begin_to_read(const std::vector<StoredTensor>& tensors,
                                            SaveCheck what) {
  snapshot.take(tensors);
  check = std::move(what);
  pieces.clear();
  for (const Bytes& memory : check.memory)
    for (std::size_t at = 0; at < memory.size(); at += kDigestPiece)
      pieces.push_back(memory.subspan(at, std::min(kDigestPiece, memory.size() - at)));
  digests.assign(pieces.size(), 0);
  reading.begin(snapshot.runs() + std::ssize(pieces), [this](std::int64_t i) { read_one(i); });
}

void BackgroundSaver::Shared::read_one(std::int64_t i) {
  if (i < snapshot.runs()) return snapshot.copy_run(i);
  const auto piece = static_cast<std::size_t>(i - snapshot.runs());
  digests[piece] = digest_of(pieces[piece]);
}

/// Completes the snapshot and returns the reason why the save must not be made, or "".
std::string BackgroundSaver::Shared::read_and_judge() {
  const double start = now_seconds();
  if (hook) hook("copy");
  reading.help();
  reading.wait();
  snapshot.wait();
  patient_barrier(*comm);
  copying = now_seconds() - start;
  comm->all_reduce(&copying, 1, DType::f64, ReduceOp::max);
  if (!check.judge) return {};
  std::vector<std::uint64_t> whole;
  std::size_t piece = 0;
  for (const Bytes& memory : check.memory) {
    const std::size_t n = (memory.size() + kDigestPiece - 1) / kDigestPiece;
    whole.push_back(digest_of(std::as_bytes(std::span(digests).subspan(piece, n))));
    piece += n;
  }
  return check.judge(*comm, whole);
}

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
      if (from_snapshot) saved.reason = read_and_judge();
      lock.lock();
      refusal = saved.reason;
      judged = true;
      changed.notify_all();
      lock.unlock();
      if (saved.reason.empty())
        saved = store.save(meta, from_snapshot ? snapshot.tensors() : in_place);
      if (from_snapshot) saved.seconds += copying;
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    result = std::move(saved);
    error = failure;
    busy = false;
    judged = true;
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
  shared_->reading.help();
  shared_->reading.wait();
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
    shared_->thread.detach();
    keep_forever(std::move(shared_));  // the thread uses it
    return;
  }
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->quit = true;
  }
  shared_->changed.notify_all();
  shared_->thread.join();
}

void BackgroundSaver::start(const CheckpointMeta& meta, const std::vector<StoredTensor>& tensors,
                            SaveCheck check) {
  CHOIR_CHECK(!pending_, "a save is in flight, or its result was not taken");
  shared_->begin_to_read(tensors, std::move(check));
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
  shared_->judged = false;
  shared_->refusal.clear();
  shared_->changed.notify_all();
}

std::string BackgroundSaver::await_copied() {
  shared_->reading.help_as_team();
  shared_->reading.wait();
  std::unique_lock lock(shared_->mutex);
  if (shared_->snapshot.copied() == nullptr || shared_->check.judge)
    shared_->changed.wait(lock, [this] { return shared_->judged; });
  return shared_->refusal;
}

double BackgroundSaver::copy_seconds() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->snapshot.copied() == nullptr && shared_->judged ? shared_->copying : 0;
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
