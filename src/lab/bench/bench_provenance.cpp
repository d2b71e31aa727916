// Provenance of a bench: machine, software and settings.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <string_view>

#include "choir/comm/agreement.hpp"
#include "choir/comm/nccl/nccl_communicator.hpp"
#include "choir/core/clock.hpp"
#include "choir/core/crc32c.hpp"
#include "choir/core/json_value.hpp"
#include "choir/core/process.hpp"
#include "choir/device/cpu_model.hpp"
#include "choir/device/cuda.hpp"
#include "choir/lab/bench/bench_results.hpp"
#include "choir/train/step/build_info.hpp"

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
  auto json = nlohmann::ordered_json::object();
  for (const std::string& text : found)
    json[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  return json;
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

std::string bench_provenance(Mesh& mesh, const Device& device, const std::string& deck_text,
                             const std::vector<std::string>& overrides) {
  const cuda::Card* card = cuda::card_of(device);
  const auto hosts = gather_texts(mesh.world(), host_name());
  const auto cards = gather_texts(
      mesh.world(), card == nullptr ? "" : fmt::format("{} {}", card->name, card->uuid));
  const std::vector<CpuModel> cpus = gather_cpus(mesh);
  if (mesh.rank() != 0) return "";
  auto json = parsed_ordered_json(build_provenance());
  json["hosts"] = distinct(hosts);
  std::vector<std::string> names;
  for (const CpuModel& cpu : cpus) names.push_back(cpu.name);
  json["cpus"] = distinct(names);
  json["cpu_clocks"] = describe_clocks(cpus);
  if (!deck_text.empty())
    json["deck_crc32c"] = fmt::format("{:08x}", crc32c(deck_text.data(), deck_text.size()));
  json["overrides"] = overrides;
  if (card != nullptr) {
    const cuda::Availability cuda = cuda::availability();
    json["gpus"] = distinct(cards);
    json["cuda"] = cuda.toolkit;
    json["driver_cuda"] = cuda.driver;
    json["nccl"] = nccl_availability().version;
  }
  for (const char* name : kJobs)
    if (const char* job = std::getenv(name)) json["job"] = job;
  json["environment"] = settings();
  return dumped(json);
}

}  // namespace choir
