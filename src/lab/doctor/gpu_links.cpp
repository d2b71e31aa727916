// Examination of the paths between GPUs: reasons why NCCL is slow on this machine, as far as the
// system, the CUDA runtime and the environment tell.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include "src/comm/mesh/device_choice.hpp"
#include "src/core/process.hpp"
#include "src/core/text.hpp"
#include "src/lab/doctor/doctor.hpp"

extern char** environ;

namespace choir {
namespace {

namespace fs = std::filesystem;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

bool any_line_has(const std::string& path, const std::string& text) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.find(text) != std::string::npos) return true;
  return false;
}

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// True if the path exists and the system refuses to open it.
bool denied(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file >= 0) close(file);
  return file < 0 && (errno == EPERM || errno == EACCES);
}

struct Variable {
  const char* name;
  std::function<bool(const std::string&)> harms;
  const char* effect;
};

std::function<bool(const std::string&)> is(std::vector<std::string> values) {
  return [values = std::move(values)](const std::string& value) {
    return std::find(values.begin(), values.end(), lower(value)) != values.end();
  };
}

bool few(const std::string& value) {
  constexpr int kFew = 8;
  return std::atoi(value.c_str()) > 0 && std::atoi(value.c_str()) < kFew;
}

bool another_size(const std::string& value) {
  return std::atoll(value.c_str()) != 4 << 20;
}

bool given(const std::string& value) {
  return !value.empty();
}

/// Settings of NCCL that cost time or memory, from its list of environment variables.
const std::vector<Variable>& harmful_variables() {
  static const std::vector<Variable> all{
      {"NCCL_P2P_DISABLE", is({"1"}), "GPUs of a node communicate through host memory"},
      {"NCCL_P2P_LEVEL", is({"loc", "0"}), "GPUs of a node communicate through host memory"},
      {"NCCL_SHM_DISABLE", is({"1"}), "GPUs without P2P communicate through the network"},
      {"NCCL_IB_DISABLE", is({"1"}), "nodes communicate over TCP"},
      {"NCCL_NET", is({"socket"}), "nodes communicate over TCP"},
      {"NCCL_NET_GDR_LEVEL", is({"loc", "0"}), "network adapters do not access GPU memory"},
      {"NCCL_NVLS_ENABLE", is({"0"}), "NVLink switches do not reduce"},
      {"NCCL_CUMEM_ENABLE", is({"0"}), "memory cannot be registered as a window"},
      {"NCCL_GRAPH_REGISTER", is({"0"}), "recorded steps copy through NCCL's buffers"},
      {"NCCL_GRAPH_MIXING_SUPPORT", is({"0"}),
       "recorded and queued steps may hang, because choir mixes them"},
      {"NCCL_MAX_NCHANNELS", few, "few channels carry less than the links"},
      {"NCCL_MAX_CTAS", few, "few thread blocks carry less than the links"},
      {"NCCL_BUFFSIZE", another_size, "NCCL takes another amount of memory than planned"},
      {"NCCL_ALGO", given, "one algorithm is used for all sizes"},
      {"NCCL_PROTO", given, "one protocol is used for all sizes"},
      {"NCCL_LAUNCH_ORDER_IMPLICIT", is({"0"}),
       "kernels of several communicators may start in any order"},
      {"NCCL_DEBUG", is({"trace"}), "every call is logged"},
  };
  return all;
}

constexpr std::size_t kShown = 4;

/// The first names of a list, "a, b, c, d and 4 more".
std::string some_of(std::vector<std::string> names) {
  const std::size_t more = names.size() > kShown ? names.size() - kShown : 0;
  if (more > 0) names.resize(kShown);
  return join(names, ", ") + (more > 0 ? fmt::format(" and {} more", more) : "");
}

}  // namespace

GpuLinkFacts gpu_link_facts(const cuda::Availability& found, const std::string& root) {
  GpuLinkFacts facts;
  std::error_code ignored;
  for (int i = 0; fs::exists(fmt::format("{}/dev/nvidia{}", root, i), ignored); ++i)
    if (denied(fmt::format("{}/dev/nvidia{}", root, i)))
      facts.denied.push_back(fmt::format("/dev/nvidia{}", i));
  for (const cuda::Card& card : found.cards) {
    if (card.name.find(" MIG ") != std::string::npos) facts.slices.push_back(card.name);
    const std::string type = first_line(
        fmt::format("{}/sys/bus/pci/devices/{}/iommu_group/type", root, lower(card.pci)));
    if (type.starts_with("DMA")) facts.translated.push_back(card.pci);
    for (const cuda::Card& other : found.cards)
      if (card.ordinal < other.ordinal && !cuda::can_access(card.ordinal, other.ordinal))
        facts.apart.push_back(fmt::format("{}-{}", card.ordinal, other.ordinal));
  }
  const std::string adapters = root + "/sys/class/infiniband";
  facts.infiniband = fs::exists(adapters, ignored) && !fs::is_empty(adapters, ignored);
  facts.gpu_direct = any_line_has(root + "/proc/modules", "nvidia_peermem") ||
                     any_line_has(root + "/proc/modules", "nv_peer_mem") ||
                     any_line_has(root + "/proc/driver/nvidia/version", "Open Kernel Module");
  return facts;
}

std::map<std::string, std::string> nccl_environment() {
  std::map<std::string, std::string> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (text.starts_with("NCCL_") && equals != std::string::npos)
      found[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return found;
}

std::vector<Finding> judge_gpu_links(const GpuLinkFacts& facts) {
  std::vector<Finding> findings;
  const auto warn = [&](std::string text, std::string remedy) {
    findings.push_back({Health::warning, "GPU links", std::move(text), std::move(remedy)});
  };
  if (!facts.isolation.empty() && !facts.denied.empty())
    warn(fmt::format("{}; the system denies access to {}", facts.isolation, some_of(facts.denied)),
         "request GPUs per node (SLURM: --gpus-per-node with --gpu-bind=none)");
  else if (!facts.isolation.empty())
    warn(facts.isolation, "make all GPUs of the node visible to each rank");
  if (!facts.apart.empty())
    warn(fmt::format("no P2P between GPUs {}: they communicate through host memory",
                     some_of(facts.apart)),
         "compare `nvidia-smi topo -p2p r`; consumer cards, virtual machines and PCI switches with "
         "ACS prevent it");
  if (!facts.slices.empty())
    warn(fmt::format("{} (MIG): slices have no P2P, and ranks on two slices of one card are staged "
                     "through host memory",
                     some_of(facts.slices)),
         "train on whole GPUs (nvidia-smi -mig 0)");
  if (!facts.translated.empty() && facts.cards > 1)
    warn(fmt::format("the IOMMU translates accesses of {}: P2P over PCI passes through the "
                     "processor",
                     some_of(facts.translated)),
         "boot with iommu=pt (bare metal); NVLink is not affected");
  if (facts.infiniband && !facts.gpu_direct)
    warn(
        "network adapters cannot access GPU memory (no GPUDirect RDMA): messages between nodes "
        "are copied through host memory",
        "load nvidia_peermem, or use the open kernel modules of the driver (DMA-BUF)");
  for (const Variable& variable : harmful_variables()) {
    const auto set = facts.environment.find(variable.name);
    if (set != facts.environment.end() && variable.harms(set->second))
      warn(fmt::format("{}={}: {}", set->first, set->second, variable.effect),
           fmt::format("unset {}, unless it is here on purpose", set->first));
  }
  if (findings.empty())
    findings.push_back({Health::ok, "GPU links", "nothing found that slows NCCL", ""});
  return findings;
}

std::vector<Finding> examine_gpu_links(Mesh& mesh) {
  const cuda::Availability found = cuda::availability();
  const std::vector<GpuSeeker> node = gpu_seekers(mesh, found);
  if (found.cards.empty()) return {};
  GpuLinkFacts facts = gpu_link_facts(found, "");
  const bool all_see = std::none_of(node.begin(), node.end(),
                                    [](const GpuSeeker& rank) { return rank.gpus.empty(); });
  if (all_see) facts.isolation = isolation_warning(node, host_name());
  facts.cards = static_cast<int>(std::max(found.cards.size(), node.size()));
  facts.environment = nccl_environment();
  return judge_gpu_links(facts);
}

}  // namespace choir
