#pragma once
// Communicators for device memory that tests use, and memory for them. The device is the GPU; on
// the CPU the staged ones are tested too, because all devices are alike for them.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "src/comm/agreement.hpp"
#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/comm/nccl/nccl_communicator.hpp"
#include "src/comm/node/node_communicator.hpp"
#include "src/comm/staged/staged_communicator.hpp"
#include "src/device/cuda.hpp"
#include "test/support/mpi_test.hpp"

namespace choir::test {

/// NCCL for this program: a library beside it plays NCCL if the GPU is emulated, too.
inline std::string nccl_library() {
  namespace fs = std::filesystem;
  const fs::path fake = fs::read_symlink("/proc/self/exe").parent_path() / "libnccl_fake.so";
  const auto cards = cuda::availability().cards;
  return !cards.empty() && cards[0].name == "host execution" ? fake.string() : "";
}

/// A function of the library that plays NCCL, or of the emulated card.
template <class F>
F emulated_function(const char* name) {
  void* const found = dlsym(dlopen(nccl_library().c_str(), RTLD_NOW), name);
  return reinterpret_cast<F>(found != nullptr ? found : dlsym(RTLD_DEFAULT, name));
}

/// A slot of this size makes many chunks of few data: 1024 floats.
inline constexpr std::size_t kTinySlot = 4096;

/// "mpi", "node": staged through these; "tiny": in small chunks; "waiting": inside wait(); "nccl".
class DeviceKinds : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const auto cards = cuda::availability().cards;
    const int local = world_rank();  // these tests run on one node
    device_ = cards.empty() ? make_device(DeviceKind::cpu)
                            : make_device(DeviceKind::cuda, local % static_cast<int>(cards.size()));
    const std::string& kind = GetParam();
    host_ = kind == "node" ? make_node_communicator(MPI_COMM_WORLD, "host")
                           : make_mpi_communicator(MPI_COMM_WORLD, "host");
    if (kind == "nccl") {
      const bool emulated = !nccl_library().empty();
      if (cards.empty()) GTEST_SKIP() << "there is no GPU";
      if (!emulated && static_cast<int>(cards.size()) < host_->size())
        GTEST_SKIP() << "NCCL wants a GPU for each rank";
      if (const auto found = nccl_availability(nccl_library()); !found.reason.empty())
        GTEST_SKIP() << found.reason;
      comm_ = make_nccl_communicator(*host_, *device_, kind, {.library = nccl_library()});
      return;
    }
    StagedOptions options;
    if (kind == "tiny" || kind == "waiting") options.slot_bytes = kTinySlot;
    options.threaded = kind != "waiting";
    comm_ = make_staged_communicator(*host_, *device_, kind, options);
  }

  Device& device() { return *device_; }
  Communicator& host() { return *host_; }
  Communicator& comm() { return *comm_; }
  int rank() const { return host_->rank(); }
  int size() const { return host_->size(); }
  std::size_t ranks() const { return static_cast<std::size_t>(host_->size()); }
  bool staged() const { return GetParam() != "nccl"; }

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<Communicator> host_, comm_;
};

/// A block of the communicator's own memory. The device's main stream writes and reads it in order,
/// by copies for which the host does not wait.
template <class T>
class OnDevice {
 public:
  OnDevice(Device& device, Communicator& comm, std::size_t count)
      : stream_(device),
        count_(count),
        block_(comm.allocate(count * sizeof(T))),
        in_(device, count * sizeof(T)),
        out_(device, count * sizeof(T)) {}
  ~OnDevice() { stream_.synchronize(); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  T* data() const { return static_cast<T*>(block_->data()); }
  void write(const std::vector<T>& values) {
    stream_.synchronize();  // an earlier write may still be in flight
    std::copy(values.begin(), values.end(), static_cast<T*>(in_.data()));
    stream_.copy_from_host(block_->data(), in_.data(), values.size() * sizeof(T));
  }
  /// Queues the copy back; values() waits for it.
  void fetch() { stream_.copy_to_host(out_.data(), block_->data(), count_ * sizeof(T)); }
  std::vector<T> fetched() const {
    stream_.synchronize();
    const auto* from = static_cast<const T*>(out_.data());
    return {from, from + count_};
  }
  std::vector<T> read() {
    fetch();
    return fetched();
  }

 private:
  Stream stream_;
  std::size_t count_;
  std::unique_ptr<CommBuffer> block_;
  HostBuffer in_, out_;
};

}  // namespace choir::test
