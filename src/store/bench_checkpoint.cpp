// The benchmark of saves and loads: pseudo-random contents, which every rank can check alone; the
// baseline, one plain file without layout, checksum or protocol; and the rounds in which all
// variants alternate.

#include "src/store/bench_checkpoint.hpp"

#include <fmt/core.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "choir/comm/communicator.hpp"
#include "kernels/bench/op_bench.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/quantities.hpp"
#include "src/core/stats.hpp"
#include "src/store/background_saver.hpp"
#include "src/store/collectives.hpp"
#include "src/store/slab_io.hpp"
#include "src/store/state_file.hpp"
#include "src/store/stored_tensor.hpp"
#include "src/store/write_probe.hpp"

namespace choir {
namespace {

constexpr std::int64_t kRun = 1 << 18;  // elements

/// The output function of splitmix64.
std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Fills with random bits, masked by `keep`, plus the bits of `set`.
template <class Word>
void fill(void* to, std::uint64_t tensor, std::int64_t first, std::int64_t count,
          Word keep = static_cast<Word>(~Word{0}), Word set = 0) {
  auto* words = static_cast<Word*>(to);
  for (std::int64_t i = 0; i < count; ++i)
    words[i] = static_cast<Word>(
        (mixed((tensor << 44) + static_cast<std::uint64_t>(first + i)) & keep) | set);
}

/// Floats are between 2^-7 and 2^-6, so that computations with them are valid.
void fill_run(void* to, DType dtype, std::uint64_t tensor, std::int64_t first, std::int64_t count) {
  switch (dtype) {
    case DType::f64:
      return fill<std::uint64_t>(to, tensor, first, count, (1ull << 52) - 1, 0x3F8ull << 52);
    case DType::f32:
      return fill<std::uint32_t>(to, tensor, first, count, (1u << 23) - 1, 0x3C000000u);
    case DType::bf16:
      return fill<std::uint16_t>(to, tensor, first, count, (1u << 7) - 1, 0x3C00u);
    case DType::f16:
      return fill<std::uint16_t>(to, tensor, first, count, (1u << 10) - 1, 0x2000u);
    case DType::i64:
      return fill<std::uint64_t>(to, tensor, first, count);
    case DType::i32:
      return fill<std::uint32_t>(to, tensor, first, count);
    case DType::u16:
      return fill<std::uint16_t>(to, tensor, first, count);
    case DType::u8:
      return fill<std::uint8_t>(to, tensor, first, count);
  }
}

bool beside(const StoredTensor& tensor) {
  return tensor.device != nullptr && !tensor.device->host_visible();
}

/// Calls `action(tensor number, tensor, address, first element, count)` on short runs.
template <class Action>
void over_runs(const std::vector<StoredTensor>& tensors, const Action& action) {
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const auto width = static_cast<std::int64_t>(size_of(tensors[t].dtype));
    for (const StoredPiece& piece : tensors[t].pieces)
      for (std::int64_t done = 0; done < piece.count; done += kRun)
        action(t, tensors[t], static_cast<std::byte*>(piece.data) + done * width,
               piece.first + done, std::min(kRun, piece.count - done));
  }
}

}  // namespace

void fill_pieces(const std::vector<StoredTensor>& tensors) {
  std::vector<std::byte> staging(kRun * sizeof(std::uint64_t));
  over_runs(tensors, [&](std::size_t t, const StoredTensor& tensor, std::byte* at,
                         std::int64_t first, std::int64_t count) {
    const std::size_t width = size_of(tensor.dtype);
    fill_run(beside(tensor) ? staging.data() : at, tensor.dtype, t + 1, first, count);
    if (beside(tensor))
      tensor.device->copy_from_host(at, staging.data(), static_cast<std::size_t>(count) * width);
  });
}

void spoil_pieces(const std::vector<StoredTensor>& tensors) {
  over_runs(tensors, [&](std::size_t, const StoredTensor& tensor, std::byte* at, std::int64_t,
                         std::int64_t count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * size_of(tensor.dtype);
    if (beside(tensor))
      tensor.device->zero(at, bytes);
    else
      std::memset(at, 0, bytes);
  });
}

std::int64_t wrong_elements(const std::vector<StoredTensor>& tensors) {
  std::vector<std::byte> expected(kRun * sizeof(std::uint64_t)), staging(expected.size());
  std::int64_t wrong = 0;
  over_runs(tensors, [&](std::size_t t, const StoredTensor& tensor, std::byte* at,
                         std::int64_t first, std::int64_t count) {
    const std::size_t width = size_of(tensor.dtype),
                      bytes = static_cast<std::size_t>(count) * width;
    const std::byte* there = at;
    if (beside(tensor)) {
      tensor.device->copy_to_host(staging.data(), at, bytes);
      there = staging.data();
    }
    fill_run(expected.data(), tensor.dtype, t + 1, first, count);
    if (std::memcmp(expected.data(), there, bytes) == 0) return;
    for (std::size_t i = 0; i < bytes; i += width)
      wrong += std::memcmp(expected.data() + i, there + i, width) != 0;
  });
  return wrong;
}

std::int64_t bytes_of(const StoredTensor& tensor, const StoredPiece& piece);
/// Collective: the maximum of every time over the ranks.
AccessRound slowest_of(Communicator& world, const AccessRound& mine);

class PlainFile {
 public:
  /// The pieces of this rank begin at `first`; each access has at most `transfer_bytes`.
  PlainFile(Communicator& world, std::string path, const std::vector<StoredTensor>& tensors,
            std::int64_t first, std::int64_t transfer_bytes)
      : world_(world),
        path_(std::move(path)),
        tensors_(tensors),
        first_(first),
        transfer_bytes_(transfer_bytes) {}

  /// Collective, like read(); measured from a barrier on. Throws StorageError on every rank. The
  /// write ends with fsync and asks the system to drop the cached pages.
  AccessRound write() const;
  AccessRound read() const;

 private:
  template <class Action>
  void over_transfers(const Action& action) const;

  Communicator& world_;
  std::string path_;
  const std::vector<StoredTensor>& tensors_;
  std::int64_t first_, transfer_bytes_;
};

std::int64_t bytes_of(const StoredTensor& tensor, const StoredPiece& piece) {
  return piece.count * static_cast<std::int64_t>(size_of(tensor.dtype));
}

AccessRound slowest_of(Communicator& world, const AccessRound& mine) {
  std::array<double, 5> t{mine.open, mine.transfer, mine.sync, mine.close, mine.total};
  world.all_reduce(t.data(), t.size(), DType::f64, ReduceOp::max);
  return {t[0], t[1], t[2], t[3], t[4]};
}

/// Calls `action(tensor, address, bytes, offset in the plain file)`.
template <class Action>
void PlainFile::over_transfers(const Action& action) const {
  std::int64_t at = first_;
  for (const StoredTensor& tensor : tensors_)
    for (const StoredPiece& piece : tensor.pieces) {
      const std::int64_t bytes = bytes_of(tensor, piece);
      for (std::int64_t done = 0; done < bytes; done += transfer_bytes_) {
        const std::int64_t now = std::min(transfer_bytes_, bytes - done);
        action(tensor, static_cast<std::byte*>(piece.data) + done, now, at + done);
      }
      at += bytes;
    }
}

AccessRound PlainFile::write() const {
  AccessRound time;
  std::vector<std::byte> staging(static_cast<std::size_t>(transfer_bytes_));
  together(world_, [&] {
    if (world_.rank() == 0) File(path_, File::Mode::create).close();
  });
  world_.barrier();
  together(world_, [&] {
    const double start = now_seconds();
    File file(path_, File::Mode::write);
    const double opened = now_seconds();
    over_transfers(
        [&](const StoredTensor& tensor, std::byte* from, std::int64_t bytes, std::int64_t at) {
          const bool beside = tensor.device != nullptr && !tensor.device->host_visible();
          if (beside)
            tensor.device->copy_to_host(staging.data(), from, static_cast<std::size_t>(bytes));
          file.write_at(beside ? staging.data() : from, bytes, at);
        });
    const double written = now_seconds();
    file.sync();
    const double synced = now_seconds();
    file.forget();
    file.close();
    const double end = now_seconds();
    time = {opened - start, written - opened, synced - written, end - synced, end - start};
  });
  return slowest_of(world_, time);
}

AccessRound PlainFile::read() const {
  AccessRound time;
  std::vector<std::byte> staging(static_cast<std::size_t>(transfer_bytes_));
  world_.barrier();
  together(world_, [&] {
    const double start = now_seconds();
    const File file(path_, File::Mode::read);
    const double opened = now_seconds();
    over_transfers(
        [&](const StoredTensor& tensor, std::byte* to, std::int64_t bytes, std::int64_t at) {
          const bool beside = tensor.device != nullptr && !tensor.device->host_visible();
          file.read_at(beside ? staging.data() : to, bytes, at);
          if (beside)
            tensor.device->copy_from_host(to, staging.data(), static_cast<std::size_t>(bytes));
        });
    const double end = now_seconds();
    time = {opened - start, end - opened, 0, 0, end - start};
  });
  return slowest_of(world_, time);
}

namespace fs = std::filesystem;
namespace {

std::int64_t bytes_held(const std::vector<StoredTensor>& tensors) {
  std::int64_t bytes = 0;
  for (const StoredTensor& tensor : tensors)
    for (const StoredPiece& piece : tensor.pieces) bytes += bytes_of(tensor, piece);
  return bytes;
}

class Bench {
 public:
  Bench(Communicator& world, const CheckpointBenchCase& request)
      : world_(world),
        request_(request),
        scratch_(world, request.folder, "choir_bench_checkpoint") {
    for (const char* access : {"write", "save", "async", "stall", "read", "load"})
      result_.rows.push_back({.access = access, .rounds = {}});
  }

  CheckpointBench run() {
    count_bytes();
    require_space();
    fill_pieces(request_.held);
    measure_copy();
    saver_ = std::make_unique<BackgroundSaver>(checkpoints(), world_, *request_.device,
                                               Snapshot::bytes_of(request_.saved), StoreOptions{});
    store_.emplace(checkpoints(), world_);
    // One extra round first: it creates directories and touches memory for the first time.
    for (int round = -1; round < request_.rounds; ++round) {
      const bool plain_first = round % 2 == 0;
      if (plain_first) plain(round >= 0);
      synchronous(round >= 0);
      if (!plain_first) plain(round >= 0);
      asynchronous(round >= 0);
    }
    for (AccessSpeed& row : result_.rows)
      world_.all_reduce(&row.wrong, 1, DType::i64, ReduceOp::sum);
    return std::move(result_);
  }

 private:
  void count_bytes();
  void require_space();
  void measure_copy();
  void plain(bool counts);
  void synchronous(bool counts);
  void asynchronous(bool counts);
  AccessRound load(const std::string& access);
  void check(const std::string& access);
  double train_meanwhile(bool counts);
  void await_copied();

  std::string checkpoints() const { return scratch_.path() + "/checkpoints"; }
  std::string plain_path() const { return scratch_.path() + "/plain"; }
  CheckpointMeta meta() { return {.step = ++step_, .json = "{}", .deck_hash = "", .layout = ""}; }
  AccessSpeed& row(const std::string& access) {
    return *std::find_if(result_.rows.begin(), result_.rows.end(),
                         [&](const auto& r) { return r.access == access; });
  }
  void keep(bool counts, const std::string& access, const AccessRound& round) {
    if (counts) row(access).rounds.push_back(round);
  }
  AccessRound slowest(const AccessRound& mine) { return slowest_of(world_, mine); }
  void require_saved(const SaveResult& result) const {
    if (result.saved) return;
    StorageError error(result.reason);
    error.set_agreed_ranks(world_.size());
    throw error;
  }
  void remove(const std::string& path) {
    together(world_, [&] {
      if (world_.rank() == 0) fs::remove_all(path);
    });
  }

  Communicator& world_;
  const CheckpointBenchCase& request_;
  ScratchDirectory scratch_;
  std::optional<CheckpointStore> store_;
  std::unique_ptr<BackgroundSaver> saver_;
  CheckpointBench result_;
  std::int64_t mine_ = 0, first_ = 0;  // bytes of this rank, and their position in the plain file
  std::int64_t step_ = 0;
};

void Bench::count_bytes() {
  mine_ = bytes_held(request_.saved);
  std::vector<std::int64_t> all(static_cast<std::size_t>(world_.size()));
  all[static_cast<std::size_t>(world_.rank())] = mine_;
  world_.all_gather(all.data(), 1, DType::i64);
  for (int rank = 0; rank < world_.size(); ++rank) {
    if (rank == world_.rank()) first_ = result_.bytes;
    result_.bytes += all[static_cast<std::size_t>(rank)];
  }
  result_.most_of_a_rank = *std::max_element(all.begin(), all.end());
  result_.ranks = world_.size();
  result_.tensors = std::ssize(request_.saved);
  result_.transfer_bytes = request_.transfer_bytes;
}

/// The disk holds one copy of the state at a time.
void Bench::require_space() {
  together(world_, [&] {
    if (world_.rank() != 0) return;
    struct statvfs space {};
    if (::statvfs(scratch_.path().c_str(), &space) != 0) return;  // a later write reports the error
    const double free_bytes = static_cast<double>(space.f_bavail) * space.f_frsize;
    const auto needed = static_cast<double>(state_file_estimate({.step = 0}, request_.saved));
    if (free_bytes < needed)
      throw StorageError(
          fmt::format("{} has {} free, and this bench writes {}", request_.folder,
                      format_bytes(free_bytes), format_bytes(needed)),
          "choose a folder with more space (--folder DIR), or measure less (--bytes N)");
  });
}

void Bench::measure_copy() {
  constexpr std::size_t kBytes = std::size_t{128} << 20;
  world_.barrier();
  double slowest = -ops::measure_copy(Stream(*request_.device), kBytes);
  world_.all_reduce(&slowest, 1, DType::f64, ReduceOp::max);
  result_.copy_rate = -slowest;
}

/// Compares the bytes read with those written; fills replicas again.
void Bench::check(const std::string& access) {
  row(access).wrong += wrong_elements(request_.saved);
  fill_pieces(request_.held);
}

void Bench::plain(bool counts) {
  const PlainFile file(world_, plain_path(), request_.saved, first_, request_.transfer_bytes);
  keep(counts, "write", file.write());
  together(world_, [&] {
    if (world_.rank() == 0)
      result_.cached =
          std::max(result_.cached, File(plain_path(), File::Mode::read).resident_share());
  });
  world_.broadcast(&result_.cached, sizeof result_.cached, 0);
  spoil_pieces(request_.held);
  keep(counts, "read", file.read());
  check("read");
  remove(plain_path());
}

AccessRound Bench::load(const std::string& access) {
  const std::string path = store_->directory().final_path(step_);
  together(world_, [&] {
    const File file(path + "/" + kStateName, File::Mode::read);
    file.forget();
  });
  spoil_pieces(request_.held);
  world_.barrier();
  const double start = now_seconds();
  const Checkpoint found = open_checkpoint(path, world_);
  const double verified = now_seconds();
  load_checkpoint(found, request_.saved, world_);
  const double end = now_seconds();
  check(access);
  return slowest({verified - start, end - verified, 0, 0, end - start});
}

void Bench::synchronous(bool counts) {
  world_.barrier();
  const SaveResult saved = store_->save(meta(), request_.saved);
  require_saved(saved);
  keep(counts, "save",
       {saved.layout_seconds, saved.write_seconds, saved.fsync_seconds, saved.commit_seconds,
        saved.seconds});
  keep(counts, "load", load("load"));
  remove(store_->directory().final_path(step_));
}

/// Runs steps until the save of every rank has ended. Returns the seconds for which the first step
/// waited for the copy.
double Bench::train_meanwhile(bool counts) {
  double waited = 0;
  const auto wait = [&] {
    const double start = now_seconds();
    await_copied();
    waited += now_seconds() - start;
  };
  std::int64_t flying = 1;
  for (bool first = true; flying > 0; first = false) {
    const double start = now_seconds();
    request_.meanwhile(wait);
    double took = now_seconds() - start, beside = took - waited;
    world_.all_reduce(&took, 1, DType::f64, ReduceOp::max);
    world_.all_reduce(&beside, 1, DType::f64, ReduceOp::max);
    if (counts) result_.steps.push_back(took);
    if (counts && first) result_.first_steps.push_back(beside);
    flying = saver_->in_flight() ? 1 : 0;
    world_.all_reduce(&flying, 1, DType::i64, ReduceOp::sum);
  }
  return waited;
}

void Bench::await_copied() {
  if (saver_->copied() != nullptr) saver_->copied()->synchronize();
  if (const std::string refusal = saver_->await_copied(); !refusal.empty()) {
    NumericError error(refusal);
    error.set_agreed_ranks(world_.size());
    throw error;
  }
}

void Bench::asynchronous(bool counts) {
  world_.barrier();
  const double start = now_seconds();
  saver_->start(meta(), request_.saved, request_.check ? request_.check() : SaveCheck{});
  const double begun = now_seconds();
  if (!request_.meanwhile) await_copied();
  const double waited = request_.meanwhile ? train_meanwhile(counts) : now_seconds() - begun;
  const SaveResult saved = saver_->wait();
  require_saved(saved);
  keep(counts, "stall", slowest({begun - start, waited, 0, 0, begun - start + waited}));
  AccessRound whole = slowest({.total = begun - start + saved.seconds});
  whole.open = saved.layout_seconds, whole.transfer = saved.write_seconds;
  whole.sync = saved.fsync_seconds, whole.close = saved.commit_seconds;
  keep(counts, "async", whole);
  load("async");
  remove(store_->directory().final_path(step_));
}

}  // namespace

double AccessSpeed::seconds() const {
  std::vector<double> totals;
  for (const AccessRound& round : rounds) totals.push_back(round.total);
  return median_of(totals);
}

const AccessSpeed& CheckpointBench::row(const std::string& access) const {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const auto& r) { return r.access == access; });
  CHOIR_CHECK(found != rows.end(), "no access {}", access);
  return *found;
}

bool CheckpointBench::valid() const {
  return !rows.empty() && std::all_of(rows.begin(), rows.end(), [](const AccessSpeed& row) {
    return row.wrong == 0 && !row.rounds.empty();
  });
}

std::vector<double> CheckpointBench::ratios(const std::string& over,
                                            const std::string& under) const {
  const AccessSpeed &a = row(over), &b = row(under);
  std::vector<double> ratios;
  for (std::size_t i = 0; i < std::min(a.rounds.size(), b.rounds.size()); ++i)
    ratios.push_back(a.rounds[i].total / b.rounds[i].total);
  return ratios;
}

double CheckpointBench::stall_floor() const {
  return copy_rate > 0 ? 2 * static_cast<double>(most_of_a_rank) / copy_rate : 0;
}

CheckpointBench bench_checkpoint(Communicator& world, const CheckpointBenchCase& request) {
  CHOIR_CHECK(request.device != nullptr && request.rounds > 0 && request.transfer_bytes > 0,
              "{} rounds of {} bytes", request.rounds, request.transfer_bytes);
  return Bench(world, request).run();
}

}  // namespace choir
