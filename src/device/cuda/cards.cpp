// Detection of GPUs, with the reason if there are none.
#include <fmt/core.h>

#include <cctype>
#include <fstream>

#include "choir/core/error.hpp"
#include "src/device/cuda/check.hpp"
#include "src/device/cuda/cuda_device.hpp"

namespace choir::cuda {
namespace {

// The oldest architecture for which kernels are compiled.
constexpr int kOldestMajor = 8;

std::string uuid_text(const cudaUUID_t& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

int numa_node_of(std::string pci) {
  for (char& c : pci) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  int node = -1;
  std::ifstream("/sys/bus/pci/devices/" + pci + "/numa_node") >> node;
  return node;
}

Card card_number(int ordinal) {
  cudaDeviceProp properties{};
  CHOIR_CUDA(cudaGetDeviceProperties(&properties, ordinal));
  char pci[32] = {};
  CHOIR_CUDA(cudaDeviceGetPCIBusId(pci, sizeof pci, ordinal));
  int kilohertz = 0;
  CHOIR_CUDA(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, ordinal));
  Card card;
  card.ordinal = ordinal;
  card.name = properties.name;
  card.uuid = uuid_text(properties.uuid);
  card.pci = pci;
  card.numa_node = numa_node_of(card.pci);
  card.major = properties.major;
  card.minor = properties.minor;
  card.multiprocessors = properties.multiProcessorCount;
  card.memory = properties.totalGlobalMem;
  card.peak_bf16_flops = peak_bf16_flops(card, 1e3 * kilohertz);
  return card;
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

/// The versions, which are known even without a card.
Availability versions() {
  Availability found;
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  cudaGetLastError();
  if (driver != 0) found.driver = version_text(driver);
  found.toolkit = version_text(runtime);
  return found;
}

Availability none_because(Availability found, cudaError_t status) {
  const auto say = [&](std::string reason, std::string hint) {
    found.reason = std::move(reason), found.hint = std::move(hint);
    return found;
  };
  if (status == cudaErrorInsufficientDriver && found.driver.empty())
    return say("no NVIDIA driver on this machine", "use device=cpu, or run on a GPU node");
  if (status == cudaErrorInsufficientDriver)
    return say(fmt::format("the driver supports CUDA {}, this program needs {}", found.driver,
                           found.toolkit),
               "update the NVIDIA driver, or build with an older CUDA toolkit (CUDA_HOME=DIR)");
  if (status == cudaErrorNoDevice)
    return say("no GPU is visible", "check CUDA_VISIBLE_DEVICES and the job's GPU request");
  return say(fmt::format("CUDA does not start: {} ({})", cudaGetErrorString(status),
                         cudaGetErrorName(status)),
             "check nvidia-smi on this node");
}

}  // namespace

Availability availability() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  Availability found = versions();
  if (status != cudaSuccess || count == 0)
    return none_because(found, status == cudaSuccess ? cudaErrorNoDevice : status);
  try {
    for (int i = 0; i < count; ++i) found.cards.push_back(card_number(i));
  } catch (const Error& error) {
    found.cards.clear();
    found.reason = error.what(), found.hint = error.hint();
  }
  return found;
}

std::unique_ptr<Device> make_device(int ordinal) {
  const Availability found = availability();
  if (found.cards.empty()) throw DeckError("device 'cuda': " + found.reason, found.hint);
  if (ordinal < 0 || ordinal >= static_cast<int>(found.cards.size()))
    throw DeckError(fmt::format("device 'cuda': no GPU number {}; this process sees {}", ordinal,
                                found.cards.size()),
                    "check CUDA_VISIBLE_DEVICES");
  const Card& card = found.cards[static_cast<std::size_t>(ordinal)];
  if (card.major < kOldestMajor)
    throw DeckError(fmt::format("device 'cuda': {} is of architecture sm_{}{}, the kernels need "
                                "sm_{}0 or newer",
                                card.name, card.major, card.minor, kOldestMajor),
                    "use another GPU, or device=cpu");
  return std::make_unique<CudaDevice>(card);
}

}  // namespace choir::cuda
