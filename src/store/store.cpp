#include "src/store/store.hpp"

#include <fmt/core.h>

#include <exception>
#include <filesystem>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/comm/null_communicator.hpp"
#include "src/core/hash.hpp"
#include "src/core/quantities.hpp"
#include "src/store/collectives.hpp"
#include "src/store/slab_io.hpp"
#include "src/store/state_file.hpp"

namespace choir {

namespace fs = std::filesystem;

/// The state of one save.
struct CheckpointStore::Attempt {
  const CheckpointMeta& meta;
  const std::vector<StoredTensor>& tensors;
  Manifest manifest{};
  std::vector<std::uint32_t> structure{};  // rank 0: CRC of each of HDF5's own regions
  std::vector<std::uint32_t> shares{};     // of this rank, one per tensor
  SaveResult result{};

  std::string state_path(const CheckpointDirectory& directory) const {
    return directory.temporary_path(meta.step) + "/" + kStateName;
  }
};

namespace {

std::uint32_t crc_of_text(const std::string& text) {
  return crc32c(text.data(), text.size());
}

std::int64_t bytes_of(const StoredTensor& tensor) {
  return tensor.shape.count() * static_cast<std::int64_t>(size_of(tensor.dtype));
}

/// Collective. The pieces of all ranks cover a tensor exactly once if both their number of elements
/// and the sum of their indices are those of the tensor (modulo 2^64; two faults may cancel, one
/// cannot).
void require_cover(Communicator& world, const std::vector<StoredTensor>& tensors) {
  std::string table;
  for (const StoredTensor& tensor : tensors)
    table += fmt::format("{} {} {}\n", tensor.name, name_of(tensor.dtype), to_string(tensor.shape));
  const std::uint64_t digest =
      (static_cast<std::uint64_t>(table.size()) << 32) | crc_of_text(table);
  require_equal(world, digest, "the list of tensors to save");

  std::vector<std::int64_t> sums(2 * tensors.size() + 1,
                                 0);  // counts, indices, pieces out of range
  for (std::size_t i = 0; i < tensors.size(); ++i)
    for (const StoredPiece& piece : tensors[i].pieces) {
      const auto first = static_cast<std::uint64_t>(piece.first);
      const auto count = static_cast<std::uint64_t>(piece.count);
      if (piece.first < 0 || piece.count < 0 ||
          piece.first + piece.count > tensors[i].shape.count())
        ++sums.back();
      const std::uint64_t indices =
          first * count + (count % 2 == 0 ? count / 2 * (count - 1) : (count - 1) / 2 * count);
      sums[2 * i] += piece.count;
      sums[2 * i + 1] =
          static_cast<std::int64_t>(static_cast<std::uint64_t>(sums[2 * i + 1]) + indices);
    }
  world.all_reduce(sums.data(), sums.size(), DType::i64, ReduceOp::sum);
  if (rehearsal_of(world) != nullptr) return;  // no other rank has the other pieces
  CHOIR_CHECK(sums.back() == 0, "{} pieces reach outside their tensor", sums.back());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto n = static_cast<std::uint64_t>(tensors[i].shape.count());
    const std::uint64_t indices = n % 2 == 0 ? n / 2 * (n - 1) : (n - 1) / 2 * n;
    CHOIR_CHECK(sums[2 * i] == tensors[i].shape.count(), "{}: the ranks own {} elements of {}",
                tensors[i].name, sums[2 * i], to_string(tensors[i].shape));
    CHOIR_CHECK(static_cast<std::uint64_t>(sums[2 * i + 1]) == indices,
                "{}: pieces overlap and leave holes", tensors[i].name);
  }
}

/// Collective: every rank's time becomes the longest.
void slowest_of(Communicator& world, std::initializer_list<double*> times) {
  std::vector<double> values;
  for (const double* time : times) values.push_back(*time);
  world.all_reduce(values.data(), values.size(), DType::f64, ReduceOp::max);
  auto value = values.begin();
  for (double* time : times) *time = *value++;
}

}  // namespace

CheckpointStore::CheckpointStore(std::string directory, Communicator& world, StoreOptions options)
    : directory_(std::move(directory), options.tag), world_(world), options_(std::move(options)) {}

void CheckpointStore::at(const char* instant) const {
  if (options_.fault) options_.fault(instant);
}

void CheckpointStore::require_owned() const {
  if (options_.require_owned) options_.require_owned();
}

std::vector<std::string> CheckpointStore::recover() {
  std::vector<std::string> lines;
  together(world_, [&] {
    if (world_.rank() == 0) lines = directory_.recover();
  });
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  share_text(world_, text);
  lines.clear();
  for (std::size_t from = 0, end; (end = text.find('\n', from)) != std::string::npos;
       from = end + 1)
    lines.push_back(text.substr(from, end - from));
  return lines;
}

/// Called on rank 0. Detects a full disk, with room for HDF5's own bytes, before HDF5 writes any.
void CheckpointStore::lay_out(Attempt& attempt) const {
  Manifest& manifest = attempt.manifest;
  at("layout");
  require_owned();
  directory_.begin(attempt.meta.step);
  const std::string path = attempt.state_path(directory_);
  File(path, File::Mode::create).reserve(state_file_estimate(attempt.meta, attempt.tensors));
  manifest.tensors = lay_out_state_file(path, attempt.meta, attempt.tensors);
  at("reserve");
  const File written(path, File::Mode::write);
  manifest.state_bytes = written.bytes();
  written.reserve(manifest.state_bytes);
  const auto regions = regions_of(manifest.tensors, manifest.state_bytes);
  const File closed(path, File::Mode::read);
  attempt.structure = structure_crcs(closed, regions);
  manifest.meta = locate_meta(closed, regions, attempt.meta.json);
  manifest.step = attempt.meta.step;
  manifest.saved_at = timestamp();
  manifest.deck_hash = attempt.meta.deck_hash;
  manifest.layout = attempt.meta.layout;
  manifest.metric = attempt.meta.metric;
  manifest.branch = attempt.meta.branch;
  manifest.bases = attempt.meta.bases;
  const fs::path here = fs::weakly_canonical(directory_.final_path(attempt.meta.step));
  for (BaseFile& base : manifest.bases)
    base.relative = fs::path(base.path).lexically_relative(here).string();
}

/// Called on every rank.
void CheckpointStore::write_slabs(Attempt& attempt) const {
  std::int64_t total = 0, done = 0;
  for (const StoredTensor& tensor : attempt.tensors)
    for (const StoredPiece& piece : tensor.pieces)
      total += piece.count * static_cast<std::int64_t>(size_of(tensor.dtype));
  bool passed_middle = false;
  const auto pass_middle = [&] {
    if (passed_middle || 2 * done < total) return;
    passed_middle = true;
    at("write");
  };
  const double start = now_seconds();
  File file(attempt.state_path(directory_), File::Mode::write, attempt.manifest.state_bytes);
  pass_middle();
  for (std::size_t i = 0; i < attempt.tensors.size(); ++i)
    attempt.shares[i] = write_pieces(file, attempt.manifest.tensors[i], attempt.tensors[i],
                                     [&](std::int64_t bytes) {
                                       done += bytes;
                                       pass_middle();
                                       if (options_.progress)
                                         options_.progress("save", done, total);
                                     });
  const double written = now_seconds();
  at("fsync");
  file.sync();
  file.close();
  attempt.result.write_seconds = written - start;
  attempt.result.fsync_seconds = now_seconds() - written;
}

/// Called on rank 0: makes the directory a checkpoint.
void CheckpointStore::commit(Attempt& attempt) const {
  Manifest& manifest = attempt.manifest;
  at("written");
  // Every rank has synced. Whatever the system returned for each write, the bytes must exist.
  File(attempt.state_path(directory_), File::Mode::read, manifest.state_bytes).close();
  const auto regions = regions_of(manifest.tensors, manifest.state_bytes);
  for (std::size_t i = 0; i < manifest.tensors.size(); ++i)
    manifest.tensors[i].crc32c = attempt.shares[i];
  std::vector<std::uint32_t> crcs = attempt.structure;
  manifest.structure_crc32c = crc_of_structure(regions, crcs);
  for (std::size_t i = 0; i < regions.size(); ++i)
    if (regions[i].tensor >= 0)
      crcs[i] = attempt.shares[static_cast<std::size_t>(regions[i].tensor)];
  manifest.state_crc32c = crc_of_file(regions, crcs);
  at("manifest");
  write_text_file(directory_.temporary_path(manifest.step) + "/" + kManifestName,
                  manifest.to_text());
  at("rename");
  require_owned();
  directory_.commit(manifest.step, [&] { at("replace"); });
}

/// Called on rank 0 after the save is valid: errors here cannot invalidate it.
void CheckpointStore::finish(Attempt& attempt) const {
  const std::int64_t step = attempt.meta.step;
  const auto warned = [&](const auto& action) {
    try {
      action();
    } catch (const std::exception& error) {
      attempt.result.warnings.push_back(plain_cause(error));
    }
  };
  warned([&] {
    at("latest");
    require_owned();
    const std::string line = directory_.point_latest(step);
    if (!line.empty()) attempt.result.warnings.push_back(line);
  });
  warned([&] {
    at("prune");
    std::vector<RetentionEntry> valid;
    for (const std::int64_t other : directory_.steps()) {
      try {
        const Manifest manifest = read_manifest(directory_.final_path(other));
        // A copy under the name of a later step would cause the removal of all others, and so would
        // a checkpoint of a branch that the run has left.
        if (manifest.step == other && attempt.meta.branch.includes(manifest.branch.id, other))
          valid.push_back({other, manifest.metric});
      } catch (const StorageError&) {
        continue;  // a damaged one does not count and is kept for inspection
      }
    }
    for (const std::int64_t doomed : steps_to_delete(valid, options_.retention, step)) {
      require_owned();
      directory_.remove(doomed);
      attempt.result.pruned.push_back(doomed);
    }
  });
}

/// Like attempt_together(), but with `patient` ranks that finish first sleep until the others have
/// finished.
std::string CheckpointStore::try_together(const std::function<void()>& action) const {
  if (!options_.patient) return attempt_together(world_, action);
  std::exception_ptr error;
  try {
    action();
  } catch (...) {
    error = std::current_exception();
  }
  patient_barrier(world_);
  return attempt_together(world_, [&] {
    if (error) std::rethrow_exception(error);
  });
}

SaveResult CheckpointStore::save(const CheckpointMeta& meta,
                                 const std::vector<StoredTensor>& tensors) {
  CHOIR_CHECK(meta.step >= 0, "step {}", meta.step);
  const double start = now_seconds();
  require_cover(world_, tensors);
  Attempt attempt{meta, tensors};
  attempt.shares.assign(tensors.size(), 0);
  SaveResult& result = attempt.result;
  const bool first = world_.rank() == 0;

  result.reason = try_together([&] {
    if (first) lay_out(attempt);
  });
  result.layout_seconds = now_seconds() - start;
  if (result.reason.empty()) {
    std::string table = first ? attempt.manifest.to_text() : "";
    share_text(world_, table);
    if (!first) attempt.manifest = Manifest::parse(table);
    result.reason = try_together([&] { write_slabs(attempt); });
  }
  if (result.reason.empty() && world_.size() > 1)
    result.reason = try_together([&] {
      const File file(attempt.state_path(directory_), File::Mode::read,
                      attempt.manifest.state_bytes);
      for (std::size_t i = 0; i < tensors.size(); ++i)
        require_borders(file, attempt.manifest.tensors[i], tensors[i]);
    });
  const double written = now_seconds();
  if (result.reason.empty()) {
    exclusive_or(world_, attempt.shares);
    result.reason = try_together([&] {
      if (first) commit(attempt);
    });
  }
  result.saved = result.reason.empty();
  const double committed = now_seconds();
  if (first && result.saved) finish(attempt);
  if (first && !result.saved) directory_.discard_temporary(meta.step);
  if (options_.patient) patient_barrier(world_);
  result.path = directory_.final_path(meta.step);
  for (const StoredTensor& tensor : tensors) result.bytes += bytes_of(tensor);
  result.commit_seconds = committed - written;
  result.prune_seconds = now_seconds() - committed;
  result.seconds = now_seconds() - start;
  slowest_of(world_, {&result.layout_seconds, &result.write_seconds, &result.fsync_seconds,
                      &result.commit_seconds, &result.prune_seconds, &result.seconds});
  return std::move(attempt.result);
}

std::optional<Checkpoint> CheckpointStore::find_newest_valid(Verify verify) {
  return choir::find_newest_valid(directory_.path(), world_, verify, options_.progress);
}

void CheckpointStore::load(const Checkpoint& checkpoint, const std::vector<StoredTensor>& tensors,
                           const std::string& scope) {
  load_checkpoint(checkpoint, tensors, world_, scope, options_.progress);
}

void CheckpointStore::load_shared(const Checkpoint& checkpoint,
                                  const std::vector<StoredTensor>& tensors, Communicator& sharers) {
  load_shared_checkpoint(checkpoint, tensors, world_, sharers, options_.progress);
}

}  // namespace choir
