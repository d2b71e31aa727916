// Output of bench rows with their provenance, and comparison with an earlier run.

#include "src/lab/bench/bench_results.hpp"

#include <fmt/core.h>
#include <fmt/format.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string_view>

#include "choir/core/error.hpp"
#include "src/comm/agreement.hpp"
#include "src/comm/mpi/mpi_session.hpp"
#include "src/comm/nccl/nccl_communicator.hpp"
#include "src/core/build_info.hpp"
#include "src/core/hash.hpp"
#include "src/core/hints.hpp"
#include "src/core/json_document.hpp"
#include "src/core/json_value.hpp"
#include "src/core/output.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/device/cpu_device.hpp"
#include "src/device/cuda.hpp"

namespace choir {
namespace {

using nlohmann::json;

/// The integers that belong to the key of a row. All texts belong to it, except kTextFields.
constexpr std::array kNumbers{"bytes",       "count", "ranks",       "threads",
                              "micro_batch", "accum", "global_batch"};
constexpr std::array kTextFields{"device_description", "unit", "disturbance"};

template <std::size_t n>
bool among(const std::array<const char*, n>& list, const std::string& name) {
  return std::find(list.begin(), list.end(), name) != list.end();
}

std::string key_of(const json& row) {
  std::vector<std::string> words;
  for (const auto& [name, value] : row.items()) {
    if (value.is_string() && !among(kTextFields, name))
      words.push_back(value.get<std::string>());
    else if (value.is_number_integer() && among(kNumbers, name))
      words.push_back(fmt::format("{} {}", name, value.get<std::int64_t>()));
    else if (name == "communicated" && value.is_boolean() && !value.get<bool>())
      words.emplace_back("without communication");
  }
  return join(words, ", ");
}

/// Seconds by the key of the row.
std::map<std::string, double> times_of(const json& run) {
  std::map<std::string, double> times;
  if (run.contains("median_seconds"))
    times[key_of(run)] = run["median_seconds"].get<double>();
  else
    for (const json& row : run.at("rows")) times[key_of(row)] = row.at("seconds").get<double>();
  return times;
}

/// A field of the provenance; "?" if absent.
std::string word(const json& run, const char* name) {
  const auto found = run.find("provenance");
  return found == run.end() ? "?" : found->value(name, "?");
}

[[noreturn]] void refuse(const std::string& path) {
  throw StorageError(fmt::format("cannot write '{}': {}", path, std::strerror(errno)),
                     "give a file in an existing, writable folder");
}

void write_to(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  if (path == "-") return write_printable(stdout, text);
  // A command that is interrupted must not leave a file that looks like a result.
  std::error_code unknown;
  const bool special =
      std::filesystem::exists(path, unknown) && !std::filesystem::is_regular_file(path, unknown);
  const std::string written = special ? path : path + ".new";
  std::ofstream file(written);
  file << text;
  file.close();
  if (file.fail()) refuse(path);
  if (!special && std::rename(written.c_str(), path.c_str()) != 0) refuse(path);
}

}  // namespace

std::vector<BaselineRow> BaselineComparison::regressions() const {
  std::vector<BaselineRow> list;
  for (const BaselineRow& row : rows)
    if (!(row.ratio() <= 1 + tolerance)) list.push_back(row);
  return list;
}

BaselineComparison compare_with_baseline(const json& baseline, const json& run, double tolerance) {
  const auto refuse = [](const std::string& what) {
    throw DeckError("--baseline: " + what, "give a file that --json of the same bench has written");
  };
  if (!baseline.is_object() || !baseline.contains("bench") || !baseline["bench"].is_string())
    refuse("the file contains no run of a bench");
  if (baseline["bench"] != run.at("bench"))
    refuse(fmt::format("the file is of bench {}, and this is {}",
                       baseline["bench"].get<std::string>(), run["bench"].get<std::string>()));
  BaselineComparison result{.tolerance = tolerance};
  std::map<std::string, double> then;
  try {
    then = times_of(baseline);
    result.origin = fmt::format("{} on {}, {}", word(baseline, "revision"), word(baseline, "host"),
                                word(baseline, "date"));
  } catch (const json::exception& error) {
    refuse(fmt::format("rows or times are missing ({})", plain_cause(error)));
  }
  for (const auto& [key, seconds] : times_of(run)) {
    const auto found = then.find(key);
    if (found == then.end()) {
      ++result.only_now;
      continue;
    }
    result.rows.push_back({key, found->second, seconds});
    then.erase(found);
  }
  result.only_then = static_cast<int>(then.size());
  return result;
}

std::string to_string(const BaselineComparison& c) {
  std::string text =
      fmt::format("against the baseline {}: {} rows in both", c.origin, c.rows.size());
  if (c.only_now > 0) text += fmt::format(", {} only now", c.only_now);
  if (c.only_then > 0) text += fmt::format(", {} only in the baseline", c.only_then);
  text += "\n";
  if (c.rows.empty()) return text + "INVALID: nothing was measured in both runs\n";
  const std::vector<BaselineRow> slower = c.regressions();
  for (const BaselineRow& row : slower)
    text += fmt::format("  {:.6g} ms was {:.6g} ms, {:.2f} x: {}\n", 1e3 * row.now, 1e3 * row.then,
                        row.ratio(), row.what);
  const auto worst =
      std::max_element(c.rows.begin(), c.rows.end(),
                       [](const auto& a, const auto& b) { return a.ratio() < b.ratio(); });
  if (slower.empty())
    return text +
           fmt::format("VALID: no regression, at most {:.2f} x the baseline (allowed {:.2f} x)\n",
                       worst->ratio(), 1 + c.tolerance);
  return text +
         fmt::format("INVALID: regression, {} of {} rows take more than {:.2f} x the baseline\n",
                     slower.size(), c.rows.size(), 1 + c.tolerance);
}

void BenchFiles::require_writable() const {
  for (const std::string& path : {csv, json}) {
    if (path.empty() || path == "-") continue;
    std::error_code unknown;
    const bool there = std::filesystem::exists(path, unknown);
    if (!std::ofstream(path, std::ios::app)) refuse(path);
    if (!there) std::filesystem::remove(path, unknown);
  }
  if (baseline.empty()) return;
  if (!std::filesystem::exists(baseline))
    throw DeckError(fmt::format("--baseline: there is no file '{}'", baseline),
                    advice_on_path(baseline,
                                   "--json FILE of an earlier run of this bench writes "
                                   "one"));
  parse_json(read_deck_text(baseline), baseline);
}

void BenchFiles::write(const std::string& csv_text, const std::string& json_text) const {
  write_to(csv, csv_text);
  write_to(json, json_text);
}

int BenchFiles::finish(const std::string& csv_text, const std::string& json_text,
                       bool valid) const {
  constexpr int kFailed = static_cast<int>(ExitCode::other);
  // The baseline is read first, because the results may overwrite it.
  const std::string then = baseline.empty() ? "" : read_deck_text(baseline);
  write(csv_text, json_text);
  if (baseline.empty()) return valid ? 0 : kFailed;
  const BaselineComparison comparison =
      compare_with_baseline(parse_json(then, baseline).root(), parsed_json(json_text), tolerance);
  std::fflush(stdout);
  print_safely(table() ? stdout : stderr, "{}", to_string(comparison));
  return valid && comparison.holds() ? 0 : kFailed;
}

}  // namespace choir

extern char** environ;

namespace choir {
namespace {

/// Settings of libraries, without the variables that launchers set per process.
constexpr std::array<std::string_view, 22> kSettings{
    "OMP_",           "GOMP_",          "OPENBLAS_",       "DNNL_",
    "ONEDNN_",        "NCCL_",          "CUDA_",           "FI_",
    "UCX_",           "MPICH_",         "ROMIO_",          "HDF5_",
    "CHOIR_",         "OMPI_MCA_btl",   "OMPI_MCA_pml",    "OMPI_MCA_mtl",
    "OMPI_MCA_mpi_",  "OMPI_MCA_coll",  "OMPI_MCA_hwloc_", "OMPI_MCA_rmaps_",
    "PRTE_MCA_hwloc", "PRTE_MCA_rmaps_"};
constexpr std::array kJobs{"PBS_JOBID", "SLURM_JOB_ID"};

nlohmann::ordered_json settings() {
  std::set<std::string> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (std::any_of(kSettings.begin(), kSettings.end(),
                    [&](std::string_view start) { return text.starts_with(start); }))
      found.emplace(text);
  }
  auto record = nlohmann::ordered_json::object();
  for (const std::string& text : found)
    record[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  return record;
}

/// The distinct texts, in the order of the ranks.
std::vector<std::string> distinct(const std::vector<std::string>& all) {
  std::vector<std::string> list;
  for (const std::string& text : all)
    if (!text.empty() && std::find(list.begin(), list.end(), text) == list.end())
      list.push_back(text);
  return list;
}

/// Returns the processors of all hosts on rank 0; one rank of each host reads them. Collective.
std::vector<CpuModel> gather_cpus(Mesh& mesh) {
  std::string mine;
  if (mesh.node().rank() == 0) {
    const CpuModel cpu = cpu_model();
    mine = dumped(nlohmann::json{cpu.name, cpu.low, cpu.high, cpu.most, cpu.governor});
  }
  std::vector<CpuModel> cpus;
  for (const std::string& text : gather_texts(mesh.world(), mine)) {
    if (text.empty()) continue;
    const auto cpu = parsed_json(text);
    cpus.push_back(
        {.name = cpu[0], .low = cpu[1], .high = cpu[2], .most = cpu[3], .governor = cpu[4]});
  }
  return cpus;
}

}  // namespace

std::string noise_among(Mesh& mesh, const ContentionMeter& meter) {
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  const bool shared = cores > 0 && mesh.node().size() * omp_get_max_threads() > cores;
  double disturbed[2] = {shared ? 0 : meter.waited(), meter.stolen()};
  mesh.world().all_reduce(disturbed, 2, DType::f64, ReduceOp::max);
  return noise_text(disturbed[0], disturbed[1], 0);
}

std::string bench_provenance(Mesh& mesh, const Device& device, const std::string& deck_text,
                             const std::vector<std::string>& overrides) {
  const cuda::Card* card = cuda::card_of(device);
  const auto hosts = gather_texts(mesh.world(), host_name());
  const auto cards = gather_texts(
      mesh.world(), card == nullptr ? "" : fmt::format("{} {}", card->name, card->uuid));
  const std::vector<CpuModel> cpus = gather_cpus(mesh);
  if (mesh.rank() != 0) return "";
  auto record = parsed_ordered_json(build_provenance(MpiSession::library_version()));
  record["hosts"] = distinct(hosts);
  std::vector<std::string> names;
  for (const CpuModel& cpu : cpus) names.push_back(cpu.name);
  record["cpus"] = distinct(names);
  record["cpu_clocks"] = describe_clocks(cpus);
  if (!deck_text.empty())
    record["deck_crc32c"] = fmt::format("{:08x}", crc32c(deck_text.data(), deck_text.size()));
  record["overrides"] = overrides;
  if (card != nullptr) {
    const cuda::Availability cuda = cuda::availability();
    record["gpus"] = distinct(cards);
    record["cuda"] = cuda.toolkit;
    record["driver_cuda"] = cuda.driver;
    record["nccl"] = nccl_availability().version;
  }
  for (const char* name : kJobs)
    if (const char* job = std::getenv(name)) record["job"] = job;
  record["environment"] = settings();
  return dumped(record);
}

}  // namespace choir
