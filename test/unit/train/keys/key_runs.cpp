#include "test/unit/train/keys/key_runs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "choir/deck/deck.hpp"
#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/core/hash.hpp"
#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/device/cpu_device.hpp"
#include "src/lab/plan/layout_plan.hpp"
#include "src/lab/verify/laid_out_run.hpp"
#include "src/lab/verify/verify_record.hpp"
#include "src/run/run_setup.hpp"
#include "src/store/manifest.hpp"
#include "src/train/loop/train.hpp"
#include "src/train/step/engine_options.hpp"
#include "test/unit/train/keys/key_data.hpp"

namespace choir::test {
namespace {

namespace fs = std::filesystem;

constexpr int kSteps = 2;

Workplace one_rank() {
  Workplace place;
  place.device = std::make_unique<CpuDevice>();
  place.mesh = Mesh::planned(Layout(), 0, 1);
  return place;
}

std::string losses_of(const Deck& deck) {
  Workplace place = one_rank();
  LaidOutRun run(deck, place);
  std::string text;
  for (int step = 0; step < kSteps; ++step) {
    const StepResult result = run.step(step);
    text += fmt::format("{} {} {} {} {}\n", result.loss, result.grad_norm, result.learning_rate,
                        result.updated, result.loss_scale);
  }
  RunRecord record;
  record.take(run.engine());
  for (const RunRecord::Tensor& tensor : record.tensors) {
    double sum = 0, squares = 0;
    for (std::int64_t i = tensor.first; i < tensor.first + tensor.count; ++i) {
      const double value = record.values[static_cast<std::size_t>(i)];
      sum += value, squares += value * value;
    }
    text += fmt::format("{} {} {} {}\n", tensor.name, tensor.shape, sum, squares);
  }
  return text;
}

std::string plan_of(const Deck& deck, int ranks, DeviceKind kind) {
  PlanCase request{.deck = deck, .ranks = ranks, .ranks_per_node = 2, .target = {}};
  request.target = {.name = "test", .kind = kind, .memory = 1e12, .ranks_per_node = 2};
  const EngineOptions options = engine_options(deck, BatchSizes{.micro = 1, .accum = 1});
  request.shapes =
      options.model.family().synthetic_batches(options.model, options.seed, 1)->shapes();
  const LayoutPlan plan = plan_layout(request);
  std::string text = fmt::format("bubble {}\n", plan.bubble);
  for (const RolePlan& role : plan.roles) {
    text += fmt::format("rank {}", role.rank);
    for (std::size_t a = 0; a < kAxes; ++a)
      text += fmt::format(" {}/{}/{}", role.at[static_cast<Axis>(a)], role.plan.traffic[a].calls,
                          role.plan.traffic[a].bytes);
    text += fmt::format(" flops {} {} snapshot {}\n{}", role.plan.flops, role.plan.repeated_flops,
                        role.plan.snapshot_bytes, role.plan.memory.to_string());
  }
  return text;
}

/// Names of fields, and values that are not times.
std::string metrics_of(const std::string& path) {
  std::string text;
  for (const std::string& line : split(read_bytes(path), '\n')) {
    if (line.empty()) continue;
    const nlohmann::json record = json_unless_broken(line);
    if (!record.is_object() || !record.contains("loss")) continue;
    for (const auto& [name, value] : record.items()) {
      const bool timed = !(name == "step" || name == "lr" || name == "grad_norm" ||
                           name.find("loss") != std::string::npos || name.starts_with("val_"));
      text += name + (timed ? " " : "=" + dumped(value) + " ");
    }
    text += "\n";
  }
  return text;
}

/// The tensors of a checkpoint as bytes on the disk. The rest of the file contains times.
std::string contents_of(const fs::path& checkpoint) {
  const std::string bytes = read_bytes(checkpoint / kStateName);
  std::uint32_t crc = 0;
  for (const TensorRecord& tensor :
       Manifest::parse(read_bytes(checkpoint / kManifestName)).tensors) {
    const auto at = std::min(static_cast<std::size_t>(tensor.offset), bytes.size());
    const std::string part = bytes.substr(at, static_cast<std::size_t>(tensor.bytes()));
    crc = crc32c(part.data(), part.size(), crc);
  }
  return fmt::format(" tensors {:08x}", crc);
}

std::string files_of(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = fs::relative(entry.path(), folder).string();
    names.push_back(name.substr(0, name.find("tfevents")));  // a time follows
    if (entry.path().filename() == kManifestName)
      names.back() += contents_of(entry.path().parent_path());
  }
  std::sort(names.begin(), names.end());
  return join(names, "\n") + "\n";
}

std::string samples_of(const std::string& folder) {
  std::vector<std::string> texts;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none))
    texts.push_back(entry.path().filename().string() + ": " + read_bytes(entry.path()));
  std::sort(texts.begin(), texts.end());
  return join(texts, "\n");
}

std::ptrdiff_t count_of(const std::string& text, const std::string& word) {
  std::ptrdiff_t count = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
    ++count;
  return count;
}

}  // namespace

Deck KeyRuns::deck(const KeyBase& base, const std::vector<std::string>& overrides) {
  const std::string mark = "{data}", folder = folder_ / "data";
  std::vector<std::string> words = overrides;
  for (std::string& word : words)
    for (std::size_t at = word.find(mark); at != std::string::npos; at = word.find(mark)) {
      const std::size_t name = at + mark.size() + 1;
      const std::string kind = word.substr(name, word.find_first_of("_.\"", name) - name);
      if (made_.insert(kind).second) write_data(folder, kind);
      word.replace(at, mark.size(), folder);
    }
  return read_deck(test::families(), base.path, words);
}

/// Texts are prepared in the current folder.
class WorkingFolder {
 public:
  explicit WorkingFolder(const std::string& folder) : before_(fs::current_path()) {
    fs::current_path(folder);
  }
  ~WorkingFolder() { fs::current_path(before_); }
  WorkingFolder(const WorkingFolder&) = delete;
  WorkingFolder& operator=(const WorkingFolder&) = delete;

 private:
  fs::path before_;
};

std::string KeyRuns::train(Deck deck) {
  const WorkingFolder here(folder_.path());
  deck.run.dir = folder_ / fmt::format("run{}", runs_++);
  const auto self = make_mpi_communicator(MPI_COMM_SELF, "self");
  Workplace place{.device = std::make_unique<CpuDevice>(),
                  .mesh = Mesh::over(*self, layout_of(deck, 1), mesh_options_of(deck)),
                  .device_reason = {}};
  Logger log(true);
  std::string text;
  try {
    const ExitCode code = choir::train(deck, place, log, now_seconds());
    text = fmt::format("exit {}\n", static_cast<int>(code));
  } catch (const DeckError&) {
    throw;
  } catch (const Error& error) {
    text = fmt::format("exit {}: {}\n", static_cast<int>(error.code()), error.what());
  }
  log.flush();
  const std::string screen = read_bytes(deck.run.dir + "/log.txt");
  text += fmt::format("{} lines of steps, {} legends\n", count_of(screen, "step="),
                      count_of(screen, "legend:"));
  text += metrics_of(deck.run.dir + "/metrics.jsonl") + samples_of(deck.run.dir + "/samples") +
          files_of(deck.run.dir);
  fs::remove_all(deck.run.dir);
  return text;
}

std::string KeyRuns::again(const std::string& observable, const KeyBase& base,
                           const std::vector<std::string>& overrides) {
  const Deck made = deck(base, overrides);
  if (observable == "losses") return losses_of(made);
  if (observable == "run" || observable == "stopped") return train(made);
  const std::vector<std::string> parts = split(observable, ':');
  return plan_of(made, std::stoi(parts.at(1)),
                 parts[0] == "gpus" ? DeviceKind::cuda : DeviceKind::cpu);
}

const std::string& KeyRuns::of(const std::string& observable, const KeyBase& base,
                               const std::vector<std::string>& overrides) {
  std::vector<std::string> words = overrides;
  std::sort(words.begin(), words.end());
  const std::string name = observable + " " + base.path + " " + join(words, " ");
  if (const auto found = seen_.find(name); found != seen_.end()) return found->second;
  return seen_[name] = again(observable, base, overrides);
}

}  // namespace choir::test
