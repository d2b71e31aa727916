#include "src/store/open.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>
#include <unordered_map>

#include "src/comm/agreement.hpp"
#include "src/core/hash.hpp"
#include "src/core/hints.hpp"
#include "src/core/json_value.hpp"
#include "src/store/collectives.hpp"
#include "src/store/directory.hpp"
#include "src/store/encoding.hpp"
#include "src/store/slab_io.hpp"
#include "src/store/state_file.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kNamesShown = 5;

/// Throws an error that all ranks have agreed on, so that one of them reports it.
[[noreturn]] void throw_agreed(const Communicator& world, const std::string& what,
                               const std::string& hint) {
  StorageError error(what, hint);
  error.set_agreed_ranks(world.size());
  throw error;
}

/// "a, b, c (and 7 more)"
std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kNamesShown); ++i)
    text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kNamesShown) text += fmt::format(" (and {} more)", names.size() - kNamesShown);
  return text;
}

/// Accumulates this rank's bytes for the caller's progress line.
ByteProgress counted(const PhaseProgress& progress, const char* phase, std::int64_t total) {
  if (!progress) return {};
  return [&progress, phase, total, done = std::int64_t{0}](std::int64_t bytes) mutable {
    done += bytes;
    progress(phase, done, total);
  };
}

/// Called on rank 0. Also checks HDF5's own bytes, although they are not needed here.
std::string read_meta_of(const std::string& path, const Manifest& manifest) {
  const File state(path + "/" + kStateName, File::Mode::read);
  const auto regions = regions_of(manifest.tensors, manifest.state_bytes);
  if (crc_of_structure(regions, structure_crcs(state, regions)) != manifest.structure_crc32c)
    throw StorageError("HDF5's own part of " + state.path() + " is damaged");
  return read_meta(state, regions, manifest);
}

/// Called on rank 0. Finds the bases where the manifest of this checkpoint names them, and makes
/// their paths those where they were found. Throws StorageError if one is gone or was changed.
void find_bases(const std::string& path, Manifest& manifest) {
  for (BaseFile& base : manifest.bases) {
    const fs::path beside = (fs::absolute(path) / base.relative).lexically_normal();
    std::string reason;
    bool found = false;
    for (const std::string& place : {base.path, beside.string()}) {
      if (found) break;
      try {
        const Manifest there = read_manifest(place);
        found = there.state_crc32c == base.state_crc32c && there.state_bytes == base.state_bytes;
        if (found) base.path = place;
        if (!found && reason.empty())
          reason = fmt::format("has other weights now (crc32c {:08x}, expected {:08x})",
                               there.state_crc32c, base.state_crc32c);
      } catch (const StorageError& error) {
        if (reason.empty()) reason = fmt::format("cannot be used: {}", error.what());
      }
    }
    if (!found)
      throw StorageError(
          fmt::format("its frozen weights are stored in its base {}, which {}", base.path, reason));
  }
}

constexpr const char* kBaseHint =
    "put the base back, or make a link there to where it is now (ln -s NEW_PLACE OLD_PLACE); runs "
    "with checkpoint.store_base=true do not need one";

/// Collective. Fills `found`, or returns the reason why it cannot; "" if it is filled.
PassedOver examine(const std::string& path, Communicator& world, Verify verify,
                   const PhaseProgress& progress, Checkpoint& found) {
  using Why = PassedOver::Why;
  std::string manifest, meta;
  Why why = Why::damaged;
  std::string reason = attempt_together(world, [&] {
    if (world.rank() != 0) return;
    try {
      Manifest read = read_manifest(path);
      meta = read_meta_of(path, read);
      if (!read.bases.empty()) why = Why::baseless;
      find_bases(path, read);
      manifest = read.to_text();
    } catch (const UnreadableError&) {
      why = Why::unreadable;
      throw;
    }
  });
  if (!reason.empty()) {
    world.broadcast(&why, sizeof why, 0);
    return {why, reason};
  }
  share_text(world, manifest);
  share_text(world, meta);
  found.path = path;
  found.manifest = Manifest::parse(manifest);
  found.json = meta;
  if (verify == Verify::sizes) return {};
  try {
    return {Why::damaged, verify_checkpoint(path, found.manifest, world, progress).damage};
  } catch (const StorageError& error) {
    return {Why::unreadable, error.what()};
  }
}

/// Collective: the steps that rank 0 finds.
std::vector<BranchSurvey::Step> shared_steps(const std::string& folder, Communicator& world) {
  std::string lines;
  together(world, [&] {
    if (world.rank() != 0) return;
    for (const auto& [step, abandoned] : survey_branches(CheckpointDirectory(folder)).steps)
      lines += fmt::format("{} {}\n", step, abandoned);
  });
  share_text(world, lines);
  std::vector<BranchSurvey::Step> steps;
  std::istringstream text(lines);
  for (std::string line; std::getline(text, line);) {
    const std::size_t end = line.find(' ');
    steps.push_back({std::stoll(line.substr(0, end)), line.substr(end + 1)});
  }
  return steps;
}

/// True for the name of a file in which other programs store models.
bool is_foreign_model(const fs::path& path) {
  const std::string ending = path.extension().string();
  return ending == ".nemo" || ending == ".safetensors" || ending == ".gguf" || ending == ".pt" ||
         ending == ".pth" || ending == ".ckpt" || ending == ".bin";
}

std::string import_advice(const fs::path& model) {
  return fmt::format("import it first: `choir import {} --out runs/{}`, then name runs/{}",
                     model.string(), model.stem().string(), model.stem().string());
}

/// Throws StorageError if the folder holds runs or a model of another program.
void refuse_other_folder(const fs::path& path) {
  std::error_code ignored;
  if (fs::exists(path / "deck.json", ignored) || fs::exists(path / "checkpoints", ignored)) return;
  for (const auto& entry : fs::directory_iterator(path, ignored))
    if (entry.path().extension() == ".nemo")
      throw StorageError(fmt::format("'{}' holds a model of NeMo, not a run", path.string()),
                         import_advice(entry.path()));
  for (const char* file : {"config.json", "model.safetensors", "pytorch_model.bin", "ckpt.pt"})
    if (fs::exists(path / file, ignored))
      throw StorageError(
          fmt::format("'{}' holds a model of another program ({}), not a run", path.string(), file),
          fmt::format("import it first: `choir import {} --out runs/NAME`, then name runs/NAME",
                      path.string()));
  std::vector<std::string> runs;
  for (const auto& entry : fs::directory_iterator(path, ignored))
    if (fs::exists(entry.path() / "checkpoints", ignored)) runs.push_back(entry.path().string());
  std::ranges::sort(runs);
  if (!runs.empty())
    throw StorageError(fmt::format("'{}' is a folder of runs, not a run", path.string()),
                       "name one of its runs: " + listed(runs));
}

/// The course of a run by the lines of its log.
struct RunSoFar {
  std::string end;         ///< "ended with exit code 3: ..."; "" if it did not end with an error
  std::int64_t step = -1;  ///< the last one that is logged; -1: none
};

RunSoFar course_of_run(const fs::path& run) {
  constexpr std::string_view kEnd = "[E] ended with exit code ", kStep = "][I] step=";
  std::ifstream log(run / "log.txt", std::ios::binary);
  std::string line;
  RunSoFar course;
  while (std::getline(log, line)) {
    if (const std::size_t at = line.find(kEnd); at != std::string::npos)
      course.end = line.substr(at + 4);
    else if (line.find("][I] ") != std::string::npos)
      course.end.clear();  // a later start
    if (const std::size_t at = line.find(kStep); at != std::string::npos)
      course.step = std::strtoll(line.c_str() + at + kStep.size(), nullptr, 10);
  }
  return course;
}

/// "first after step 500 (checkpoint.interval)", by the deck of a run that has done `step` steps;
/// "" if the deck cannot be read or saves nothing.
std::string first_save(const fs::path& run, std::int64_t step) {
  std::ifstream file(run / "deck.json", std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  const nlohmann::json deck = json_unless_broken(text.str());
  const auto number = [&](const char* section, const char* key) -> std::int64_t {
    if (!deck.is_object() || !deck.contains(section) || !deck[section].is_object()) return 0;
    const auto value = deck[section].find(key);
    const bool is = value != deck[section].end() && value->is_number_integer();
    return is ? value->get<std::int64_t>() : 0;
  };
  const std::int64_t interval = number("checkpoint", "interval");
  if (interval <= 0) return {};
  std::string first;
  std::int64_t earliest = std::numeric_limits<std::int64_t>::max();
  for (const auto& [section, key] :
       {std::pair("checkpoint", "interval"), std::pair("eval", "interval"),
        std::pair("train", "max_steps")})
    if (const std::int64_t at = number(section, key); at > step && at < earliest) {
      earliest = at;
      first = fmt::format("first after step {} ({}.{})", at, section, key);
    }
  return first;
}

struct Explained {
  std::string what, hint;
};

Explained no_checkpoint(const std::string& run, const std::string& folder) {
  const RunSoFar course = course_of_run(run);
  if (!course.end.empty())
    return {fmt::format("no checkpoint in {}: its run {}", folder, course.end),
            "remove the cause, and start the run again with the same command"};
  const std::string first = first_save(run, course.step);
  if (course.step < 0 || first.empty())
    return {"no checkpoint in " + folder, "a run saves one every checkpoint.interval steps"};
  return {fmt::format("no checkpoint in {} yet: its run is at step {} and saves {}", folder,
                      course.step, first),
          fmt::format("wait for that step, or save and stop now: touch {}; the command that began "
                      "the run continues it, also if it no longer runs",
                      (fs::path(run) / "stop_now").string())};
}

}  // namespace

void require_matching(const Checkpoint& checkpoint, const std::vector<StoredTensor>& tensors,
                      const std::string& scope) {
  std::unordered_map<std::string_view, const TensorRecord*> unclaimed;
  const std::vector<TensorRecord> stored = checkpoint.manifest.all_tensors();
  for (const TensorRecord& record : stored) unclaimed.emplace(record.name, &record);
  std::vector<std::string> missing, different, extra;
  for (const StoredTensor& tensor : tensors) {
    const auto at = unclaimed.find(tensor.name);
    if (at == unclaimed.end()) {
      missing.push_back(tensor.name);
      continue;
    }
    const TensorRecord& record = *at->second;
    if (!is_loadable(record, tensor))
      different.push_back(fmt::format("{} is stored as {} {}, but requested as {} {}", tensor.name,
                                      name_of(record.dtype), to_string(record.shape),
                                      name_of(tensor.dtype), to_string(tensor.shape)));
    unclaimed.erase(at);
  }
  for (const TensorRecord& record : stored)
    if (unclaimed.contains(record.name) && record.name.starts_with(scope))
      extra.push_back(record.name);
  if (missing.empty() && different.empty() && extra.empty()) return;
  std::string what = checkpoint.path + " does not match:";
  if (!different.empty()) what += " " + listed(different) + ";";
  if (!missing.empty()) what += " not in the checkpoint: " + listed(missing) + ";";
  if (!extra.empty()) what += " in the checkpoint but not requested: " + listed(extra) + ";";
  what.pop_back();
  throw StorageError(what,
                     "use the deck it was saved with (choir inspect shows it), or another run.dir");
}

bool Checkpoint::leaves_newer() const {
  return std::ranges::any_of(
      skipped, [](const PassedOver& one) { return one.why != PassedOver::Why::abandoned; });
}

namespace {

/// Verifies one file without the bases.
Verification verify_file(const std::string& path, const Manifest& manifest, Communicator& world,
                         const PhaseProgress& progress) {
  const auto regions = regions_of(manifest.tensors, manifest.state_bytes);
  const std::int64_t part = manifest.state_bytes / world.size() + 1;
  const std::int64_t first = std::min(part * world.rank(), manifest.state_bytes);
  const std::int64_t last = std::min(first + part, manifest.state_bytes);
  std::vector<std::uint32_t> crcs;
  together(world, [&] {
    const File file(path + "/" + kStateName, File::Mode::read, manifest.state_bytes);
    crcs = crc_shares(file, regions, first, last, counted(progress, "verify", last - first));
  });
  exclusive_or(world, crcs);
  Verification result{std::vector<bool>(manifest.tensors.size(), true), {}};
  std::vector<std::string> damaged;
  for (std::size_t i = 0; i < regions.size(); ++i) {
    if (regions[i].tensor < 0) continue;
    const auto index = static_cast<std::size_t>(regions[i].tensor);
    const TensorRecord& record = manifest.tensors[index];
    if (crcs[i] == record.crc32c) continue;
    result.tensor_good[index] = false;
    damaged.push_back(fmt::format("tensor {} (crc32c {:08x}, the manifest says {:08x})",
                                  record.name, crcs[i], record.crc32c));
  }
  if (crc_of_structure(regions, crcs) != manifest.structure_crc32c)
    damaged.push_back("HDF5's own part of the file");
  if (damaged.empty() && crc_of_file(regions, crcs) != manifest.state_crc32c)
    damaged.push_back("the file as a whole");
  if (!damaged.empty()) result.damage = "damaged: " + listed(damaged);
  return result;
}

}  // namespace

Verification verify_checkpoint(const std::string& path, const Manifest& manifest,
                               Communicator& world, const PhaseProgress& progress) {
  Verification result = verify_file(path, manifest, world, progress);
  for (const BaseFile& base : manifest.bases) {
    std::string text;
    together(world, [&] {
      if (world.rank() == 0) text = read_manifest(base.path).to_text();
    });
    share_text(world, text);
    const std::string damage =
        verify_file(base.path, Manifest::parse(text), world, progress).damage;
    if (damage.empty()) continue;
    if (!result.damage.empty()) result.damage += "; ";
    result.damage += fmt::format("its base {} is {}", base.path, damage);
  }
  return result;
}

std::optional<Checkpoint> find_newest_valid(const std::string& folder, Communicator& world,
                                            Verify verify, const PhaseProgress& progress) {
  std::vector<PassedOver> skipped;
  for (const auto& [step, abandoned] : shared_steps(folder, world)) {
    Checkpoint found;
    const std::string path = CheckpointDirectory(folder).final_path(step);
    PassedOver problem{PassedOver::Why::abandoned, abandoned};
    if (abandoned.empty()) problem = examine(path, world, verify, progress, found);
    if (problem.reason.empty() && found.manifest.step != step)
      problem = {PassedOver::Why::damaged,
                 fmt::format("its manifest is of step {}: it was copied or renamed; move it away",
                             found.manifest.step)};
    if (problem.reason.empty()) {
      found.skipped = std::move(skipped);
      return found;
    }
    problem.reason = step_name(step) + ": " + problem.reason;
    skipped.push_back(std::move(problem));
  }
  if (skipped.empty()) return std::nullopt;
  std::string what = fmt::format("no checkpoint in {} can be used:", folder);
  for (const PassedOver& one : skipped) what += "\n  " + one.reason;
  const bool baseless = std::ranges::any_of(
      skipped, [](const PassedOver& one) { return one.why == PassedOver::Why::baseless; });
  throw_agreed(world, what, baseless ? kBaseHint : "move them away to start from the beginning");
}

namespace {

/// Collective. Throws the StorageError for a run, whose checkpoints are in `folder`, that has none.
[[noreturn]] void refuse_without_checkpoint(const std::string& run, const std::string& folder,
                                            Communicator& world) {
  Explained why;
  together(world, [&] {
    if (world.rank() == 0) why = no_checkpoint(run, folder);
  });
  share_text(world, why.what);
  share_text(world, why.hint);
  throw_agreed(world, why.what, why.hint);
}

}  // namespace

Checkpoint open_checkpoint(const std::string& path, Communicator& world, Verify verify,
                           const PhaseProgress& progress) {
  std::string folder;  // "" when `path` itself is the checkpoint
  together(world, [&] {
    if (world.rank() != 0) return;
    std::error_code why;
    const fs::file_status there = fs::status(path, why);
    if (!fs::status_known(there)) throw UnreadableError("look at", path, why.value());
    if (!fs::is_directory(there))
      throw StorageError(fs::exists(there)
                             ? fmt::format("'{}' is a file, not a checkpoint directory", path)
                             : "no such directory: " + path,
                         fs::exists(there) && is_foreign_model(path)
                             ? import_advice(path)
                             : advice_on_path(path, "give a checkpoint or a run directory"));
    const bool is_one = fs::exists(fs::path(path) / kManifestName, why) ||
                        fs::exists(fs::path(path) / kStateName, why) ||
                        step_of(fs::path(path).lexically_normal().filename().string()) >= 0;
    if (is_one) return;
    const fs::path inside = fs::path(path) / "checkpoints";
    refuse_other_folder(path);
    folder = fs::is_directory(inside, why) ? inside.string() : path;
  });
  share_text(world, folder);
  if (!folder.empty()) {
    auto found = find_newest_valid(folder, world, verify, progress);
    if (found) return *std::move(found);
    refuse_without_checkpoint(path, folder, world);
  }
  Checkpoint found;
  const PassedOver problem = examine(path, world, verify, progress, found);
  if (!problem.reason.empty())
    throw_agreed(world, path + " cannot be used: " + problem.reason,
                 problem.why == PassedOver::Why::baseless ? kBaseHint
                                                          : "choose another step of the same run");
  return found;
}

void refer_to(std::vector<BaseFile>& bases, const Checkpoint& checkpoint,
              const std::string& stored_name, const std::string& name) {
  const Manifest& manifest = checkpoint.manifest;
  const auto has = [&](const std::vector<TensorRecord>& list) {
    return std::ranges::find(list, stored_name, &TensorRecord::name) != list.end();
  };
  BaseFile file{.path = fs::weakly_canonical(checkpoint.path).string(),
                .relative = {},
                .state_bytes = manifest.state_bytes,
                .state_crc32c = manifest.state_crc32c,
                .tensors = {}};
  if (!has(manifest.tensors))
    for (const BaseFile& base : manifest.bases)
      if (has(base.tensors)) file = base;
  file.tensors.clear();
  auto at = std::ranges::find(bases, file.path, &BaseFile::path);
  if (at == bases.end()) at = bases.insert(bases.end(), file);
  at->tensors.push_back(*manifest.find(stored_name));
  at->tensors.back().name = name;
}

bool is_loadable(const TensorRecord& record, const StoredTensor& tensor) {
  const bool converts =
      tensor.converts && can_convert(encoding_of(record.dtype), encoding_of(tensor.dtype));
  return record.shape == tensor.shape && (record.dtype == tensor.dtype || converts);
}

namespace {

/// Reads a whole tensor into host memory for a moment.
void consume(const File& file, const TensorRecord& record, const StoredTensor& tensor,
             const ByteProgress& progress) {
  const std::int64_t count = tensor.shape.count();
  std::vector<std::byte> whole(static_cast<std::size_t>(count) * size_of(tensor.dtype));
  StoredTensor here = tensor;
  here.pieces = {{0, count, whole.data()}};
  here.device = nullptr;
  read_pieces(file, record, here, progress);
  tensor.consume(whole.data());
}

/// Collective; ranks that do not read only read the tensors that are consumed whole.
void read_tensors(const Checkpoint& checkpoint, const std::vector<StoredTensor>& tensors,
                  Communicator& world, bool reads, const PhaseProgress& progress) {
  std::int64_t total = 0;
  for (const StoredTensor& tensor : tensors)
    for (const StoredPiece& piece : tensor.pieces)
      total += piece.count * static_cast<std::int64_t>(size_of(tensor.dtype));
  together(world, [&] {
    if (total == 0) return;
    const ByteProgress bytes = counted(progress, "load", total);
    /// A file is opened when the first of its tensors is read.
    struct Source {
      std::string folder;
      std::int64_t bytes = 0;
      std::unique_ptr<File> file{};
    };
    const Manifest& manifest = checkpoint.manifest;
    std::deque<Source> sources;
    std::unordered_map<std::string_view, std::pair<Source*, const TensorRecord*>> records;
    const auto add = [&](const std::string& folder, std::int64_t size,
                         const std::vector<TensorRecord>& stored) {
      sources.push_back({.folder = folder, .bytes = size});
      Source& source = sources.back();
      for (const TensorRecord& record : stored)
        records.emplace(record.name, std::pair{&source, &record});
    };
    add(checkpoint.path, manifest.state_bytes, manifest.tensors);
    for (const BaseFile& base : manifest.bases) add(base.path, base.state_bytes, base.tensors);
    for (const StoredTensor& tensor : tensors) {
      if (!reads && !tensor.consume) continue;
      for (const StoredPiece& piece : tensor.pieces)
        CHOIR_CHECK(piece.first >= 0 && piece.count >= 0 &&
                        piece.first + piece.count <= tensor.shape.count(),
                    "{}: piece {}+{} of {}", tensor.name, piece.first, piece.count,
                    to_string(tensor.shape));
      const auto& [source, record] = records.at(tensor.name);
      if (!source->file)
        source->file = std::make_unique<File>(source->folder + "/" + kStateName, File::Mode::read,
                                              source->bytes);
      if (!tensor.consume)
        read_pieces(*source->file, *record, tensor, bytes);
      else if (!tensor.pieces.empty())
        consume(*source->file, *record, tensor, bytes);
    }
  });
}

}  // namespace

void load_checkpoint(const Checkpoint& checkpoint, const std::vector<StoredTensor>& tensors,
                     Communicator& world, const std::string& scope, const PhaseProgress& progress) {
  together(world, [&] { require_matching(checkpoint, tensors, scope); });
  read_tensors(checkpoint, tensors, world, true, progress);
}

void load_shared_checkpoint(const Checkpoint& checkpoint, const std::vector<StoredTensor>& tensors,
                            Communicator& world, Communicator& sharers,
                            const PhaseProgress& progress) {
  together(world, [&] { require_matching(checkpoint, tensors, ""); });
  read_tensors(checkpoint, tensors, world, sharers.rank() == 0, progress);
  if (sharers.size() == 1) return;
  for (const StoredTensor& tensor : tensors)
    if (!tensor.consume) share_pieces(tensor, sharers);
}

}  // namespace choir
