// choir inspect CHECKPOINT|RUN_DIRECTORY [--compare OTHER]
#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "src/app/command_line.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/json_value.hpp"
#include "src/core/output.hpp"
#include "src/core/quantities.hpp"
#include "src/report/checkpoint_report.hpp"
#include "src/report/run_record.hpp"
#include "src/store/comparison.hpp"
#include "src/store/directory.hpp"
#include "src/store/open.hpp"

namespace choir {
namespace {

namespace fs = std::filesystem;

struct InspectRequest {
  const FamilyTable& families;
  std::string path{};
  std::string other{};  ///< the checkpoint that --compare names
  bool verify = false, json = false;
};

/// Reads only the progress tensors.
Progress read_progress(const Checkpoint& checkpoint, Communicator& world) {
  Progress progress;
  std::vector<StoredTensor> tensors;
  const auto& stored = checkpoint.manifest.tensors;
  const bool scaled = std::any_of(stored.begin(), stored.end(), [](const TensorRecord& record) {
    return record.name == "state/loss_scale";
  });
  for (const State& state : progress.states(scaled))
    tensors.push_back({.name = "state/" + state.name,
                       .dtype = state.value.dtype,
                       .shape = state.value.shape,
                       .pieces = {{0, state.value.count(), state.value.data}}});
  load_checkpoint(checkpoint, tensors, world, "state/");
  return progress;
}

/// The value of model.type in a resolved deck; "" if it has none.
std::string type_of_model(const std::string& deck) {
  const nlohmann::json document = parsed_json(deck);
  const nlohmann::json::json_pointer type("/model/type");
  return document.contains(type) && document[type].is_string() ? document[type].get<std::string>()
                                                               : "";
}

int inspect_checkpoint(Communicator& world, const InspectRequest& request) {
  InspectedCheckpoint inspected;
  inspected.checkpoint = open_checkpoint(request.path, world, Verify::sizes);
  const Checkpoint& checkpoint = inspected.checkpoint;
  inspected.meta = TrainMeta::parse(checkpoint.json, checkpoint.path);
  inspected.progress = read_progress(checkpoint, world);
  inspected.reads = report::keys_of_family(request.families, type_of_model(inspected.meta.deck));
  if (request.verify)
    inspected.verification = verify_checkpoint(checkpoint.path, checkpoint.manifest, world);
  if (world.rank() == 0)
    print_safely("{}\n", request.json ? to_json(inspected) : to_text(inspected));
  return static_cast<int>(inspected.damaged() ? ExitCode::storage : ExitCode::done);
}

/// Damage of a checkpoint becomes part of its line and is not an error. Collective.
CheckpointSummary summary_of(const std::string& path, Communicator& world, bool verify) {
  CheckpointSummary summary{.path = path, .step = step_of(fs::path(path).filename().string())};
  try {
    const Manifest manifest = open_checkpoint(path, world, Verify::sizes).manifest;
    summary.saved_at = manifest.saved_at;
    summary.val_loss = manifest.metric;
    summary.bytes = manifest.state_bytes;
    for (const BaseFile& base : manifest.bases)
      summary.bases.push_back(fmt::format("{} (crc32c {:08x}) has {} more tensors",
                                          printable_name(base.path), base.state_crc32c,
                                          base.tensors.size()));
    if (manifest.step != summary.step)
      summary.problem = fmt::format(
          "its manifest belongs to step {}: the checkpoint was copied or renamed", manifest.step);
    else if (verify)
      summary.problem = verify_checkpoint(path, manifest, world).damage;
  } catch (const StorageError& error) {
    summary.problem = error.what();
  }
  return summary;
}

/// True if the checkpoint has disappeared: a run in progress may delete old checkpoints meanwhile.
/// Collective.
bool is_gone(const std::string& path, Communicator& world) {
  std::int32_t gone = world.rank() == 0 && !fs::exists(path) ? 1 : 0;
  world.broadcast(&gone, sizeof gone, 0);
  return gone == 1;
}

int inspect_run(Communicator& world, const std::string& folder, const InspectRequest& request) {
  std::vector<std::string> paths;
  std::string latest;
  together(world, [&] {
    for (const std::int64_t step : CheckpointDirectory(folder).steps())
      paths.push_back(CheckpointDirectory(folder).final_path(step));
    std::error_code ignored;
    latest = fs::read_symlink(fs::path(folder) / "latest", ignored).filename().string();
  });
  std::vector<CheckpointSummary> list;
  for (const std::string& path : paths) {
    CheckpointSummary summary = summary_of(path, world, request.verify);
    if (!summary.problem.empty() && is_gone(path, world)) continue;
    summary.latest = fs::path(path).filename().string() == latest;
    list.push_back(std::move(summary));
  }
  if (list.empty()) open_checkpoint(request.path, world);  // which tells why there is none
  const bool good =
      std::all_of(list.begin(), list.end(), [](const auto& s) { return s.problem.empty(); });
  if (world.rank() == 0)
    print_safely("{}\n", request.json ? to_json(folder, list, request.verify)
                                      : to_text(folder, list, request.verify));
  return static_cast<int>(good ? ExitCode::done : ExitCode::storage);
}

/// Says if two checkpoints hold the same tensors bit for bit, and by how much the worst ones
/// differ. Exit code 1 if any does. Collective; rank 0 reads and prints.
int compare_checkpoints(Communicator& world, const InspectRequest& request) {
  const Checkpoint a = open_checkpoint(request.path, world, Verify::sizes);
  const Checkpoint b = open_checkpoint(request.other, world, Verify::sizes);
  std::int32_t differing = 0;
  together(world, [&] {
    if (world.rank() != 0) return;
    constexpr int kShown = 10;
    const CheckpointComparison result = compare_tensors(a, b);
    const std::vector<std::string>& lines = result.differences;
    differing = static_cast<std::int32_t>(lines.size());
    if (lines.empty()) {
      print_safely("EQUAL: {} and {} hold the same {}, {} bit for bit\n", printable_name(a.path),
                   printable_name(b.path), counted(result.tensors, "tensor"),
                   format_bytes(static_cast<double>(result.bytes)));
      return;
    }
    print_safely("DIFFERENT: {} and {} differ in {}\n", printable_name(a.path),
                 printable_name(b.path), counted(lines.size(), "tensor"));
    print_safely("{}the tensors that differ most:\n", result.group_lines());
    for (int i = 0; i < std::min(kShown, differing); ++i)
      print_safely("  {}\n", printable_name(lines[static_cast<std::size_t>(i)]));
    if (differing > kShown) print_safely("  and {} more\n", differing - kShown);
  });
  world.broadcast(&differing, sizeof differing, 0);
  return static_cast<int>(differing == 0 ? ExitCode::done : ExitCode::other);
}

/// The checkpoint folder of a run or `path` itself if it holds checkpoints; "" if `path` is a
/// checkpoint.
std::string folder_of(const fs::path& path) {
  if (fs::is_directory(path / "checkpoints")) return (path / "checkpoints").string();
  const bool one = fs::exists(path / kManifestName) || fs::exists(path / kStateName) ||
                   step_of(path.lexically_normal().filename().string()) >= 0;
  const bool of_checkpoints = fs::is_directory(path) && !CheckpointDirectory(path).steps().empty();
  return one || !of_checkpoints ? "" : path.string();
}

}  // namespace

int inspect_command(const Invocation& call) {
  CommandLine app(
      "Shows the contents of a checkpoint, or lists the checkpoints of a run directory.",
      "choir inspect");
  InspectRequest request{.families = call.families};
  app.add_option("path", request.path, "checkpoint or run directory").required();
  app.add_flag("--verify", request.verify, "read every byte and check the checksums");
  const CommandOption json = app.add_flag("--json", request.json, "print one JSON object");
  app.add_option("--compare", request.other,
                 "another checkpoint or run directory: say if both hold the same tensors bit for "
                 "bit, and by how much the ten that differ most do; exit code 1 if any differs")
      .excludes(json);
  if (const auto code = parse(app, call)) return *code;
  return with_mpi([&](MpiSession& session) {
    const auto mesh = Mesh::over_world(Layout(1, 1, session.size(), 1), Transport::mpi);
    if (!request.other.empty()) return compare_checkpoints(mesh->world(), request);
    const std::string folder = folder_of(request.path);
    return folder.empty() ? inspect_checkpoint(mesh->world(), request)
                          : inspect_run(mesh->world(), folder, request);
  });
}

}  // namespace choir
